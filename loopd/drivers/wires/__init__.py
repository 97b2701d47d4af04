"""How endpoints are spoken to: one module for each protocol, one shape for all of them.

A module has `PATH`, `headers(key)`, `schema(tool)`, `request_bytes(spec, messages, tools)` and a
subclass of `Answer`. Nothing else in loopd knows a protocol by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from loopd.core.conversation import Message
from loopd.drivers.wires import completions, messages, responses
from loopd.drivers.wires.answer import Answer
from loopd_protocol.commands import ChatSpec
from loopd_protocol.errors import Refused

__all__ = ["WIRES", "Wire", "endpoint_url"]


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """One protocol.

    Attributes:
        path: behind the base address.
        headers: of a request, from the API key.
        schema: a tool in this protocol's form.
        request_bytes: the exact body of a request from spec, messages and tools in that form.
        answer: makes what collects an answer.
    """

    path: str
    headers: Callable[[str | None], dict[str, str]]
    schema: Callable[[dict[str, Any]], dict[str, Any]]
    request_bytes: Callable[[ChatSpec, Sequence[Message], Sequence[Any]], bytes]
    answer: Callable[[], Answer]


WIRES: dict[str, Wire] = {
    "chat-completions": Wire(
        path=completions.PATH,
        headers=completions.headers,
        schema=completions.schema,
        request_bytes=completions.request_bytes,
        answer=completions.CompletionsAnswer,
    ),
    "messages": Wire(
        path=messages.PATH,
        headers=messages.headers,
        schema=messages.schema,
        request_bytes=messages.request_bytes,
        answer=messages.MessagesAnswer,
    ),
    "responses": Wire(
        path=responses.PATH,
        headers=responses.headers,
        schema=responses.schema,
        request_bytes=responses.request_bytes,
        answer=responses.ResponsesAnswer,
    ),
}


def endpoint_url(base_url: str, path: str) -> str:
    """Where the requests go: `base_url` with `path` behind its own.

    Raises:
        Refused: `invalid` when it has no host, a bad port or credentials in it.
    """
    try:
        parts = urlsplit(base_url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise Refused("invalid", f"base_url {base_url!r}: {error}", path="$.driver.base_url") from error
    if "@" in parts.netloc:
        raise Refused(
            "invalid", "base_url holds credentials; expected them in the variable that api_key_env names"
        )
    if not named or parts.scheme not in {"http", "https"}:
        raise Refused(
            "invalid",
            f"base_url {base_url!r}; expected something like 'http://127.0.0.1:8080/v1'",
            path="$.driver.base_url",
        )
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path, fragment=""))
