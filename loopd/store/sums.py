"""Sums of rows that no chain covers: stored answers of commands, rows of the house.

A sum finds what a disk did to a row. It is no signature: whoever may write the file can make a new one.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

SUM_BYTES = 8

_encode = msgspec.msgpack.Encoder().encode


def row_sum(*values: str | int | bytes | None) -> bytes:
    """The sum of a row's columns, in the order of its table."""
    return sha256(_encode(values)).digest()[:SUM_BYTES]


def is_whole(stored: bytes | None, *values: str | int | bytes | None) -> bool:
    """Whether the columns are what they were; a row of before schema 3 has no sum and counts as whole."""
    return stored is None or stored == row_sum(*values)
