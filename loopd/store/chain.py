r"""The hash chains of the journal: which bytes are hashed, in which order.

Two chains run through the rows: `h` over the whole log, `sh` over the rows of one session. Both hash
the same row digest, so one exported session verifies alone::

    row  = header ‖ SHA-256(body) ‖ blob
    h_n  = SHA-256(h_{n-1}  ‖ row)       h_0  = SHA-256("loopd log 1\n" ‖ log_id)
    sh_n = SHA-256(sh_{n-1} ‖ row)       sh_0 = SHA-256("loopd session 1\n" ‖ log_id ‖ "\n" ‖ num)

`header` is fixed-width big-endian, then three texts::

    seq u64 · sid u64 · ss u64 · epoch u32 · boot u32 · at_ms u64 · kv u32 · turn u64 · cause_seq u64
    kind: length u16, UTF-8 · principal: length u16, UTF-8

`sid` is the session's number, 0 for events of the daemon; `turn` and `cause_seq` are 0 for none.
`body` are the stored bytes, never re-encoded; `blob` is the 32 raw bytes of the row's blob digest, or
nothing; `num` in the session's first link is decimal ASCII. Rows of the daemon have no `sh`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import sha256

HEADER = struct.Struct(">QQQIIQIQQ")

_GIL_KEPT_BYTES = 2_047
"""hashlib lets go of the GIL above this; beside a busy loop each re-take costs a switch interval."""

_CHUNKED_MAX_BYTES = 16_384


def log_genesis(log_id: str) -> bytes:
    """`h_0` of a log."""
    return sha256(b"loopd log 1\n" + log_id.encode()).digest()


def session_genesis(log_id: str, num: int) -> bytes:
    """`sh_0` of a session."""
    return sha256(b"loopd session 1\n" + log_id.encode() + b"\n" + str(num).encode()).digest()


def body_digest(body: bytes) -> bytes:
    """SHA-256 of a body, in pieces small enough that medium bodies do not release the GIL."""
    size = len(body)
    if size <= _GIL_KEPT_BYTES or size > _CHUNKED_MAX_BYTES:
        return sha256(body).digest()
    view = memoryview(body)
    digest = sha256(view[:_GIL_KEPT_BYTES])
    for start in range(_GIL_KEPT_BYTES, size, _GIL_KEPT_BYTES):
        digest.update(view[start : start + _GIL_KEPT_BYTES])
    return digest.digest()


@lru_cache(maxsize=1_024)
def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def row_bytes(
    *,
    seq: int,
    sid: int | None,
    ss: int,
    epoch: int,
    boot: int,
    at_ms: int,
    kv: int,
    turn: int | None,
    cause_seq: int | None,
    kind: str,
    principal: str,
    body_sha: bytes,
    blob: bytes | None,
) -> bytes:
    """The bytes of a row that both chains hash.

    Raises:
        struct.error: a number is negative or too large for its field, or a text over 65,535 bytes.
    """
    return b"".join(
        (
            HEADER.pack(seq, sid or 0, ss, epoch, boot, at_ms, kv, turn or 0, cause_seq or 0),
            _text(kind),
            _text(principal),
            body_sha,
            blob or b"",
        )
    )


def link(previous: bytes, row: bytes) -> bytes:
    """The next value of a chain."""
    return sha256(previous + row).digest()
