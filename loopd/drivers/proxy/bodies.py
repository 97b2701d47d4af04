"""Whole bodies in and out of the proxy, bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

BODY_BYTES = 64 * 1024 * 1024
"""Largest request that is read, and largest body that is kept."""

Head = list[tuple[bytes, bytes]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class TooLarge(Exception):
    """The request is larger than what is read."""


class Gone(Exception):
    """The agent went away."""


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request.

    Raises:
        TooLarge: it is larger than `BODY_BYTES`.
        Gone: the agent hung up before its end.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES:
            raise TooLarge
        if not message.get("more_body"):
            return b"".join(parts)


async def answer(send: Send, status: int, body: bytes, *, media: str = "application/json") -> None:
    """Send a whole answer."""
    headers = [(b"content-type", media.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
