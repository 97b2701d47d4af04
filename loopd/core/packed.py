"""Rings of short digests, packed into bytes: cheap to copy, to search and to store. Pure."""

from __future__ import annotations

import hashlib

DIGEST = 6
"""Bytes of a packed digest: 2**-48 for two different things to look the same."""


def digest(*parts: str) -> bytes:
    """Packed digest of some texts in order."""
    whole = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(whole, digest_size=DIGEST).digest()


def find(ring: bytes, item: bytes, size: int) -> int:
    """Offset of the first entry of `size` bytes that begins with `item`, or -1."""
    at = ring.find(item)
    while at >= 0 and at % size:
        at = ring.find(item, at + 1)
    return at


def find_last(ring: bytes, item: bytes, size: int) -> int:
    """Offset of the last entry of `size` bytes that begins with `item`, or -1."""
    at = ring.rfind(item)
    while at >= 0 and at % size:
        at = ring.rfind(item, 0, at + len(item) - 1)
    return at


def push(ring: bytes, item: bytes, most: int) -> bytes:
    """The ring with one more entry; of entries of this size at most `most` are kept."""
    return (ring + item)[-most * len(item) :]
