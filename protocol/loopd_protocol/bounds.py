"""Bounded types of the wire: msgspec takes integers and strings of any size unless told."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MAX_INT = 2**53 - 1
"""Largest integer that JavaScript and jq keep exactly."""

MAX_TEXT_CHARS = 1_000_000
"""Longest envelope text, in characters. The frame limit (1 MiB of bytes) applies as well."""

AtMs = Annotated[int, Meta(ge=0, le=MAX_INT)]
"""A moment: milliseconds since the Unix epoch, UTC."""
DurationMs = Annotated[int, Meta(ge=0, le=MAX_INT)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Signed = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)]
Seq = Annotated[int, Meta(ge=0, le=MAX_INT)]
"""Position in the daemon's log (`seq`) or in a session (`ss`), from 1; 0 is before the first."""
Label = Annotated[str, Meta(max_length=200)]
"""A short machine-readable word: rule id, cause, principal."""
Key = Annotated[str, Meta(min_length=1, max_length=128)]
Reason = Annotated[str, Meta(max_length=4_000)]
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
SessionRef = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
"""A session's id (`ses_…`) or its unique name."""
Digest = Annotated[str, Meta(max_length=80)]
"""Hexadecimal SHA-256 of bytes, possibly with a `sha256:` prefix."""
