"""One small and one full example of any type of the protocol, made from the type itself."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect as types

from loopd_protocol.commands import COMMAND_TYPES
from loopd_protocol.events import EVENT_TYPES
from loopd_protocol.frames import CLIENT_FRAMES, SERVER_FRAMES

CORPUS: dict[str, tuple[str, dict[str, type]]] = {
    "client": ("t", CLIENT_FRAMES),
    "server": ("t", SERVER_FRAMES),
    "commands": ("t", COMMAND_TYPES),
    "events": ("k", EVENT_TYPES),
}
"""File name → (name of the tag, tag → type)."""

_WORDS = (
    "a", "ses_a", "gate.changed", "http://127.0.0.1:8080/v1", "0 3 * * *", "team=a",
)  # fmt: skip


def examples(cls: type) -> list[dict[str, Any]]:
    """Objects as they stand on the wire; the second has every field."""
    info = types.type_info(cls)
    small, full = _value(info, full=False), _value(info, full=True)
    return [small] if small == full else [small, full]


def _value(kind: types.Type, *, full: bool) -> Any:
    match kind:
        case types.StructType():
            config = kind.cls.__struct_config__
            body = {config.tag_field: config.tag} if config.tag_field else {}
            fields = [f for f in kind.fields if full or f.required]
            return body | {f.encode_name: _value(f.type, full=full) for f in fields}
        case types.UnionType():
            real = [member for member in kind.types if not isinstance(member, types.NoneType)]
            return _value(real[-1 if full else 0], full=full)
        case types.StrType():
            return _text(kind, full=full)
        case types.IntType():
            return (kind.le if full else kind.ge) if kind.le is not None else 7
        case types.BoolType():
            return True
        case types.LiteralType():
            return sorted(kind.values)[-1 if full else 0]
        case types.EnumType():
            return list(kind.cls)[-1 if full else 0].value
        case types.VarTupleType() | types.ListType():
            count = max(kind.min_length or 0, 2 if full else 0)
            return [_value(kind.item_type, full=full) for _ in range(count)]
        case types.TupleType():
            return [_value(item, full=full) for item in kind.item_types]
        case types.DictType():
            return {_value(kind.key_type, full=full): _value(kind.value_type, full=full)} if full else {}
        case types.RawType():
            return {"t": "daemon.status"}
        case types.AnyType():
            return {"deep": [1, "two", None, True]}
    raise TypeError(f"no example for {kind!r}; teach tests/golden/examples.py")


def _text(kind: types.StrType, *, full: bool) -> str:
    if kind.pattern is not None:
        return next(word for word in _WORDS if re.search(kind.pattern, word))
    text = 'naïve "text" \\ \u2028 😀\n' if full else ""
    text = text[: kind.max_length] if kind.max_length is not None else text
    return text or "x" * (kind.min_length or 0)
