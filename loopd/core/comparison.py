"""What the model saw in one turn and not in another, message by message. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import msgspec

COMPARED = ("role", "source", "text", "calls", "call_id")
"""Fields that make two messages the same; where they are stored does not matter."""

MESSAGES_MAX = 5_000


def compared(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Operations that turn `a` into `b`.

    Returns:
        `{"op": "same", "a": [first, last], "b": [first, last]}`, `{"op": "removed", "a": i, "message"}`,
        `{"op": "added", "b": j, "message"}` and `{"op": "changed", "a": i, "b": j, "before", "after"}`, in order.
    """
    ours, theirs = [_key(m) for m in a[:MESSAGES_MAX]], [_key(m) for m in b[:MESSAGES_MAX]]
    made: list[dict[str, Any]] = []
    for tag, i, i_end, j, j_end in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag == "equal":
            made.append({"op": "same", "a": [i, i_end - 1], "b": [j, j_end - 1]})
            continue
        both = min(i_end - i, j_end - j)
        paired = 0
        while paired < both and a[i + paired].get("role") == b[j + paired].get("role"):
            made.append(
                {
                    "op": "changed",
                    "a": i + paired,
                    "b": j + paired,
                    "before": dict(a[i + paired]),
                    "after": dict(b[j + paired]),
                }
            )
            paired += 1
        made += [{"op": "removed", "a": n, "message": dict(a[n])} for n in range(i + paired, i_end)]
        made += [{"op": "added", "b": n, "message": dict(b[n])} for n in range(j + paired, j_end)]
    return made


def _key(message: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode([message.get(name) for name in COMPARED])
