"""What a driver hands in, made fit for the journal: the wall against words of any length and kind.

Encoding does not check bounds, decoding does: an id of 300 characters or half of a surrogate pair would
be stored and never read again. Names and numbers are cut here; long texts are kept whole in blobs.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
from msgspec.structs import replace

from loopd.core.conversation import AgentRequest, StepDone, TurnEnd
from loopd_protocol.bounds import MAX_INT
from loopd_protocol.events import ToolCall, Usage

LABEL_CHARS = 200
TOKENS_MAX = 10**9
"""Of one model call, whatever its endpoint says: sums of it stay within the bounds of the protocol."""
DIGEST_CHARS = 80
REASON_CHARS = 4_000
CALL_KEY_CHARS = 64
"""Longest call id that names an effect as it is; of longer ones the digest does."""


def readable(text: str) -> str:
    """`text` as Unicode: surrogate pairs joined, lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def label(text: str) -> str:
    """A short machine-readable word."""
    return readable(text)[:LABEL_CHARS]


def effect_key(call: ToolCall) -> str:
    """What names a call among the effects of its step."""
    name = readable(call.id)
    return name if len(name) <= CALL_KEY_CHARS else hashlib.sha256(name.encode()).hexdigest()


def arguments(args: Any) -> Any:
    """Arguments that JSON can hold; what it cannot is replaced by its `repr`."""
    try:
        msgspec.json.encode(args)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError):
        return json.loads(readable(json.dumps(args, default=repr, skipkeys=True, ensure_ascii=False)))
    except RecursionError:
        return {"_raw": "[loopd: nested too deeply]"}
    return args


def tool_call(call: ToolCall) -> ToolCall:
    """A call within the bounds of the protocol."""
    return replace(
        call,
        id=label(call.id),
        name=label(call.name),
        args=arguments(call.args),
        result=None if call.result is None else readable(call.result),
        result_sha256=_digest(call.result_sha256),
        masked_sha256=_digest(call.masked_sha256),
        result_bytes=None if call.result_bytes is None else _count(call.result_bytes),
        tool_class=label(call.tool_class),
        exit_code=None if call.exit_code is None else max(-MAX_INT, min(call.exit_code, MAX_INT)),
        error_class=None if call.error_class is None else label(call.error_class),
    )


def usage(given: Usage | None) -> Usage | None:
    """Tokens within what one call can use."""
    if given is None:
        return None
    return Usage(
        input_tokens=min(_count(given.input_tokens), TOKENS_MAX),
        output_tokens=min(_count(given.output_tokens), TOKENS_MAX),
        cached_tokens=min(_count(given.cached_tokens), TOKENS_MAX),
        measured=given.measured,
        scope=label(given.scope),
    )


def step(done: StepDone) -> StepDone:
    """A step within the bounds of the protocol; its texts may still be long."""
    return replace(
        done,
        text=readable(done.text),
        calls=tuple(tool_call(call) for call in done.calls),
        usage=usage(done.usage),
        finish=label(done.finish),
        state_fingerprint=_digest(done.state_fingerprint),
        request_sha256=_digest(done.request_sha256),
    )


def end(given: TurnEnd) -> TurnEnd:
    """The end of a turn within the bounds of the protocol."""
    return replace(given, error=readable(given.error)[:REASON_CHARS], cause=label(given.cause))


def agent_request(given: AgentRequest) -> AgentRequest:
    """A request of the agent whose texts are Unicode."""
    return replace(given, name=label(given.name), args=arguments(given.args))


def _digest(given: str | None) -> str | None:
    if given is None or (len(given) <= DIGEST_CHARS and given.isascii()):
        return given
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()


def _count(given: int) -> int:
    return max(0, min(given, MAX_INT))
