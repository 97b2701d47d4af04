"""Records that rules judge: steps and turns reduced to what can be compared."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from loopd_protocol.sources import Trigger


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tool call, reduced.

    Attributes:
        fingerprint: `name:` and 16 hex digits of the arguments, see `fingerprint`.
        ok: None for unknown; a rejected or denied call is recorded like any other.
        result: digest of the whole raw result (hex), None when it is missing (unknown).
        result_chars: visible characters of the result.
    """

    name: str
    fingerprint: str
    ok: bool | None = None
    result: str | None = None
    result_chars: int = 0
    tool_class: str = "other"
    exit_code: int | None = None
    error_class: str | None = None


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step, reduced. `n` counts steps in the session, from 1; `at_ms` is wall time (UTC)."""

    n: int
    turn: int
    trigger: Trigger
    at_ms: int
    text: str = ""
    calls: tuple[CallRecord, ...] = ()
    tokens: int = 0
    state_fingerprint: str | None = None
    tools_withheld: bool = False


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One ended turn, reduced.

    Attributes:
        text: the turn's final text (that of its last step).
        calls: tool calls in the whole turn.
        outcome: as in `turn.completed`, or `interrupted`.
    """

    n: int
    trigger: Trigger
    at_ms: int
    outcome: str
    text: str = ""
    calls: int = 0
    steps: int = 0
    tokens: int = 0


def canonical(args: Any) -> bytes:
    """Arguments as JSON with sorted keys and compact separators: the bytes that are hashed."""
    raise NotImplementedError


def fingerprint(name: str, args: Any) -> str:
    """Identity of a call: `name:` and the first 16 hex digits of SHA-256 over `canonical`."""
    return f"{name}:{hashlib.sha256(canonical(args)).hexdigest()[:16]}"
