"""Content as it is stored: compressed where that pays, named by its digest."""

from __future__ import annotations

import zlib
from hashlib import sha256

from loopd_protocol.errors import Refused

_PAYS = 0.9
"""A blob is stored compressed when that takes at most this share of its bytes."""


def packed(sha: str, content: bytes, at_ms: int) -> tuple[bytes, int, int, str, int, bytes]:
    """A blob as stored: compressed where that pays.

    Raises:
        Refused: `invalid` when `sha` is not the digest of the content.
    """
    found = sha256(content)
    if found.hexdigest() != sha:
        raise Refused("invalid", f"a blob hashes to {found.hexdigest()!r}; it was handed in as {sha!r}")
    if len(content) >= 256:
        small = zlib.compress(content, 1)
        if len(small) <= len(content) * _PAYS:
            return found.digest(), at_ms, at_ms, "zlib", len(content), small
    return found.digest(), at_ms, at_ms, "raw", len(content), content


def unpacked(codec: str, data: bytes) -> bytes:
    """The content of a stored blob."""
    return zlib.decompress(data) if codec == "zlib" else data
