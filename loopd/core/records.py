"""Records that rules judge: steps and turns reduced to what can be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from loopd.core import polls, traits
from loopd.core.masks import mask, masked_digest
from loopd.core.stops.signatures import error_signature
from loopd.core.tools import tool_class
from loopd_protocol.events import ToolCall, TurnStep
from loopd_protocol.sources import Trigger

__all__ = [
    "CallRecord",
    "StepRecord",
    "TurnRecord",
    "call_label",
    "call_record",
    "canonical",
    "digest",
    "fingerprint",
    "mask",
    "masked_digest",
    "step_record",
    "text_digest",
    "tool_class",
    "visible_chars",
]

LABEL_CHARS = 120
"""Longest rendering of a call in evidence and notes."""

SHORT_CHARS = 512
"""Results up to this length are masked when they are new; longer ones only when the call is not."""

_SIGNATURE_CHARS = 4_000


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tool call, reduced.

    Attributes:
        fingerprint: `name:` and 16 hex digits of the arguments, see `fingerprint`.
        ok: None for unknown; a rejected or denied call is recorded like any other.
        result: digest of the whole raw result (hex), None when it is missing (unknown).
        result_chars: visible characters of the result.
        label: the call as one short line for people and models; may be empty.
        masked: digest of the masked result when somebody asked for it, else None.
        identity: 16 hex digits, equal for calls that are the same thing: volatile fields, needless
            white space and a shell's trailing comments do not count.
        program: what errors are counted by: the tool, of a shell also the program.
        target, numbers: the call with its numbers taken out (a digest), and those numbers.
        failed: as far as it is known; `error`: signature of the failure; `infra`: a service's failure.
        unresolved: it named a tool that does not exist.
        noop, waits, polls, writes, reads, background, measures: see `loopd.core.traits.Traits`.
        ended: what a poll looks at is over.
        negative: the result says that nothing was found.
        echo: the result gives back the call's own words.
        failing: of a test run: how many checks fail, None for unknown.
        short: the result is short enough to be masked at once.
    """

    name: str
    fingerprint: str
    ok: bool | None = None
    result: str | None = None
    result_chars: int = 0
    tool_class: str = "other"
    exit_code: int | None = None
    error_class: str | None = None
    label: str = ""
    masked: str | None = None
    identity: str = ""
    program: str = ""
    target: str = ""
    numbers: tuple[int, ...] = ()
    failed: bool = False
    error: str = ""
    infra: bool = False
    unresolved: bool = False
    noop: bool = False
    waits: bool = False
    polls: bool = False
    writes: bool = False
    reads: bool = False
    background: bool = False
    measures: bool = False
    ended: bool = False
    echo: bool = False
    negative: bool = False
    failing: int | None = None
    short: bool = False


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step, reduced. `n` counts steps in the session, from 1; `at_ms` is wall time (UTC).

    Attributes:
        billed: output tokens of the step, None for unknown.
        phase: what the agent says it is doing, or empty.
        compacted: the context was compacted before this step.
    """

    n: int
    turn: int
    trigger: Trigger
    at_ms: int
    text: str = ""
    calls: tuple[CallRecord, ...] = ()
    tokens: int = 0
    state_fingerprint: str | None = None
    tools_withheld: bool = False
    billed: int | None = None
    phase: str = ""
    compacted: bool = False


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One ended turn, reduced.

    Attributes:
        text: the turn's final text (that of its last step).
        calls: tool calls in the whole turn.
        outcome: as in `turn.completed`, or `interrupted`.
        progressed: there was progress in it (`loopd.core.progress`).
        started_ms: when it began; 0 for unknown.
    """

    n: int
    trigger: Trigger
    at_ms: int
    outcome: str
    text: str = ""
    calls: int = 0
    steps: int = 0
    tokens: int = 0
    progressed: bool = False
    started_ms: int = 0


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=repr).encode


def canonical(args: Any) -> bytes:
    """Arguments as JSON with sorted keys and compact separators: the bytes that are hashed.

    Non-ASCII characters are escaped and numbers stay as they came (1 is not 1.0), so that equal
    arguments have equal bytes in every implementation of the published detectors.
    """
    return _canonical(args).encode()


def fingerprint(name: str, args: Any) -> str:
    """Identity of a call: `name:` and the first 16 hex digits of SHA-256 over `canonical`."""
    return _fingerprint(name, canonical(args))


def _fingerprint(name: str, arguments: bytes) -> str:
    return f"{name}:{hashlib.sha256(arguments).hexdigest()[:16]}"


def digest(text: str) -> str:
    """SHA-256 (hex) of a text, byte for byte."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_LOWER = bytes(byte + 32 if 65 <= byte <= 90 else byte for byte in range(256))
_DROPPED = b"0123456789 \t\r\n\x0b\x0c"


def text_digest(text: str) -> str:
    """SHA-256 (hex) of a text without its digits, white space and case.

    "16/100. Not complete." and "17/100.  not complete." have the same one. Two passes over bytes, so
    that 2 KB take a few microseconds.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass").translate(_LOWER, _DROPPED)).hexdigest()


def visible_chars(text: str) -> int:
    """Length of a text without the white space around it."""
    return len(text.strip())


def call_label(name: str, args: Any) -> str:
    """The call as one short line, for evidence and notes."""
    return _label(name, _canonical(args))


def _label(name: str, arguments: str) -> str:
    line = f"{name}({'' if arguments in ('{}', 'null') else arguments})"
    return line if len(line) <= LABEL_CHARS else line[: LABEL_CHARS - 1] + "…"


def call_record(call: ToolCall, *, masked: bool = False) -> CallRecord:
    """Reduce one call.

    The result's digest is the one the driver took of the whole output, else that of the text given
    here. The class is the driver's, else that of the tool table.

    Args:
        call: as the driver or the journal has it.
        masked: also digest the masked result, if it is not there yet; costs 240 µs per KB.
    """
    arguments = _canonical(call.args)
    result = call.result_sha256
    chars = 0
    if call.result is not None:
        chars = visible_chars(call.result)
        if result is None:
            result = digest(call.result)
        elif call.result_bytes is not None and call.result_blob is not None:
            chars = max(chars, call.result_bytes)
    elif call.result_bytes is not None:
        chars = call.result_bytes
    masked_result = call.masked_sha256
    if masked and masked_result is None and call.result is not None:
        masked_result = masked_digest(call.result)
    kind = call.tool_class if call.tool_class != "other" else tool_class(call.name, call.args)
    look = traits.traits_of(call.name, call.args, kind, arguments, _canonical)
    failed = traits.failed(ok=call.ok, exit_code=call.exit_code, result=call.result, kind=kind)
    infra = traits.infra(ok=False if failed else call.ok, error_class=call.error_class, result=call.result)
    target, numbers = traits.numbers_of(look.identity)
    # what only reads and is answered "still running" is a poll, whatever it is called
    polling = look.polls or (look.reads and not failed and not look.noop and polls.lives(call.result))
    return CallRecord(
        name=call.name,
        fingerprint=_fingerprint(call.name, arguments.encode()),
        ok=call.ok,
        result=result.removeprefix("sha256:") if result is not None else None,
        result_chars=chars,
        tool_class=kind,
        exit_code=call.exit_code,
        error_class=call.error_class,
        label=_label(call.name, arguments),
        masked=masked_result,
        identity=_short(f"{call.name}\0{look.identity}"),
        program=look.program,
        target=_short(f"{call.name}\0{target}") if numbers else "",
        numbers=numbers,
        failed=failed,
        error=_signature(call, look.program) if failed and not infra else "",
        infra=infra,
        unresolved=failed and traits.unresolved(ok=call.ok, error_class=call.error_class, result=call.result),
        noop=look.noop,
        waits=look.waits,
        polls=polling,
        writes=look.writes,
        reads=look.reads,
        background=look.background,
        measures=look.measures,
        ended=polling and traits.ended(call.result),
        negative=traits.negative(call.result),
        echo=traits.echoes(call.args, call.result),
        failing=traits.failing(ok=not failed, result=call.result) if kind == "test" else None,
        short=call.result is not None and len(call.result) <= SHORT_CHARS,
    )


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _signature(call: ToolCall, program: str) -> str:
    result = call.result or ""
    head = result if len(result) <= _SIGNATURE_CHARS else result[:_SIGNATURE_CHARS]
    return error_signature(program, call.exit_code, head)


def step_record(
    event: TurnStep,
    trigger: Trigger,
    at_ms: int,
    *,
    masked: Callable[[CallRecord], bool] | None = None,
) -> StepRecord:
    """Reduce one step event.

    Args:
        event: as it was, or will be, written to the journal.
        trigger: what began its turn.
        at_ms: when the step ended (UTC).
        masked: asked for each call whether its masked digest is wanted; None: for no call.
    """
    usage = event.usage
    calls = tuple(call_record(call) for call in event.calls)
    if masked is not None:
        calls = tuple(
            replace(record, masked=masked_digest(call.result))
            if record.masked is None and call.result is not None and masked(record)
            else record
            for record, call in zip(calls, event.calls, strict=True)
        )
    return StepRecord(
        n=event.total,
        turn=event.n,
        trigger=trigger,
        at_ms=at_ms,
        text=event.text,
        calls=calls,
        tokens=usage.input_tokens + usage.output_tokens if usage is not None else 0,
        state_fingerprint=event.state_fingerprint,
        tools_withheld=event.tools_withheld,
        billed=usage.output_tokens if usage is not None else None,
        phase=event.phase or "",
    )
