"""Turns, model calls and tools as OpenTelemetry spans with the semantic conventions for generative AI. Pure.

Each turn is a trace: `invoke_agent` with a `chat` span for each model call and an `execute_tool` span for each tool;
findings and gate changes are events of the turn's span, and each hold is a span of its own. Ids follow from log,
session and place, so the same history makes the same spans, whenever it is exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import msgspec

from loopd import __version__
from loopd.core.redactor import Redactor

Value = str | int | bool | tuple[str, ...]
INTERNAL, CLIENT = 1, 3
SESSIONS_KEPT = 10_000
TEXT_MAX = 16_384
"""Characters of a message, of arguments or of a result in one attribute."""

_FAILED = frozenset({"model_error", "failed", "deadline", "interrupted"})


class SpanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened during a span."""

    name: str
    at_ms: int
    attributes: dict[str, Value] = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A finished span; ids are raw bytes, moments milliseconds."""

    trace: bytes
    id: bytes
    parent: bytes | None
    name: str
    kind: int
    start_ms: int
    end_ms: int
    attributes: dict[str, Value] = {}
    events: tuple[SpanEvent, ...] = ()
    error: str = ""


class _Turn:
    """A turn while it runs."""

    def __init__(self, n: int, trigger: str, at_ms: int) -> None:
        self.n = n
        self.trigger = trigger
        self.at_ms = at_ms
        self.step_ms = at_ms
        self.steps = 0
        self.input = self.output = 0
        self.intents: dict[str, tuple[int, str]] = {}
        self.ends: dict[str, int] = {}
        self.events: list[SpanEvent] = []
        self.spans: list[Span] = []


class _Session:
    def __init__(self) -> None:
        self.name = ""
        self.driver: Mapping[str, Any] = {}
        self.turn: _Turn | None = None
        self.holds: dict[str, tuple[int, dict[str, Any]]] = {}


class Spans:
    """Makes spans of events that come in order; sessions may be interleaved.

    Args:
        log: identity of the log.
        content: messages, arguments and results too.
        redactor: goes over content.
    """

    def __init__(self, *, log: str, content: bool = False, redactor: Redactor | None = None) -> None:
        self._log = log
        self._content = content
        self._redactor = redactor or Redactor()
        self._sessions: dict[int | str, _Session] = {}

    def feed(self, sid: int | str, seq: int, at_ms: int, kind: str, body: bytes) -> list[Span]:
        """Take in an event; the spans that ended with it."""
        session = self._sessions.get(sid)
        if session is None:
            if len(self._sessions) >= SESSIONS_KEPT:
                del self._sessions[next(iter(self._sessions))]
            session = self._sessions[sid] = _Session()
        value: dict[str, Any] = msgspec.json.decode(body)
        match kind:
            case "session.created":
                session.name, session.driver = str(value.get("name") or ""), value.get("driver") or {}
            case "turn.started":
                session.turn = _Turn(int(value["n"]), str(value.get("trigger")), at_ms)
            case "turn.step":
                self._step(sid, session, value, at_ms)
            case "effect.intent" if session.turn is not None:
                session.turn.intents[str(value["call"])] = at_ms, str(value.get("tool"))
            case "effect.outcome" if session.turn is not None:
                call = str(value["id"]).split(".", 3)[-1]
                session.turn.ends[call] = at_ms
            case "turn.completed" | "turn.interrupted":
                return self._ended(sid, session, kind, value, at_ms)
            case "degeneration.detected":
                self._happened(
                    session, kind, at_ms, value, ("rule", "verdict", "level", "score", "threshold")
                )
            case "gate.changed":
                return self._gate(sid, session, value, seq, at_ms)
            case "session.ended":
                self._sessions.pop(sid, None)
            case _:
                pass
        return []

    def finish(self) -> list[Span]:
        """Spans of what had not ended."""
        found = []
        for sid, session in self._sessions.items():
            if session.turn is not None:
                found += self._ended(sid, session, "turn.running", {}, session.turn.step_ms)
        return found

    # -- turns --------------------------------------------------------------------------------

    def _step(self, sid: int | str, session: _Session, value: dict[str, Any], at_ms: int) -> None:
        n = int(value["n"])
        turn = session.turn
        if turn is None or turn.n != n:
            turn = session.turn = _Turn(n, "", at_ms)
        turn.steps = int(value.get("step") or turn.steps + 1)
        usage = value.get("usage") or {}
        calls = value.get("calls") or ()
        first_tool = min((at for at, _ in turn.intents.values()), default=at_ms)
        trace, root = self._ids(sid, n)
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "chat",
            **self._model(session, value.get("model")),
            "gen_ai.conversation.id": str(sid),
            "gen_ai.response.finish_reasons": (str(value.get("finish") or "stop"),),
            "loopd.step": turn.steps,
        }
        for key, name in (
            ("input_tokens", "input_tokens"),
            ("output_tokens", "output_tokens"),
            ("cached_tokens", "cache_read.input_tokens"),
        ):
            if usage.get(key):
                attributes[f"gen_ai.usage.{name}"] = int(usage[key])
        turn.input += int(usage.get("input_tokens") or 0)
        turn.output += int(usage.get("output_tokens") or 0)
        if self._content:
            attributes["gen_ai.output.messages"] = self._said(value, calls)
        model = str(attributes.get("gen_ai.request.model") or "")
        turn.spans.append(
            Span(
                trace=trace,
                id=self._id(sid, n, "chat", turn.steps),
                parent=root,
                name=f"chat {model}".strip(),
                kind=CLIENT,
                start_ms=turn.step_ms,
                end_ms=max(turn.step_ms, first_tool),
                attributes=attributes,
            )
        )
        for place, call in enumerate(calls):
            turn.spans.append(self._tool(sid, turn, place, call, at_ms, first_tool))
        turn.step_ms = at_ms
        turn.intents, turn.ends = {}, {}

    def _tool(  # noqa: PLR0917
        self, sid: int | str, turn: _Turn, place: int, call: dict[str, Any], at_ms: int, first: int
    ) -> Span:
        name, key = str(call.get("name")), str(call.get("id"))
        trace, root = self._ids(sid, turn.n)
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": key,
            "gen_ai.tool.type": "function",
            "gen_ai.conversation.id": str(sid),
        }
        error = "" if call.get("ok") is not False else str(call.get("error_class") or "tool")
        if error:
            attributes["error.type"] = error
        if self._content:
            attributes["gen_ai.tool.call.arguments"] = self._clean(call.get("args"))
            attributes["gen_ai.tool.call.result"] = self._clean(call.get("result"))
        begin = turn.intents.get(key, (first, ""))[0]
        return Span(
            trace=trace,
            id=self._id(sid, turn.n, "tool", turn.steps, place),
            parent=root,
            name=f"execute_tool {name}",
            kind=INTERNAL,
            start_ms=begin,
            end_ms=max(begin, turn.ends.get(key, at_ms)),
            attributes=attributes,
            error=error,
        )

    def _ended(
        self, sid: int | str, session: _Session, kind: str, value: dict[str, Any], at_ms: int
    ) -> list[Span]:
        turn, session.turn = session.turn, None
        if turn is None:
            duration = int(value.get("duration_ms") or 0)
            turn = _Turn(int(value.get("n") or 0), "", at_ms - duration)
        outcome = {"turn.interrupted": "interrupted", "turn.running": "running"}.get(kind) or str(
            value.get("outcome")
        )
        trace, root = self._ids(sid, turn.n)
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": session.name,
            "gen_ai.agent.id": str(sid),
            "gen_ai.conversation.id": str(sid),
            **self._model(session, None),
            "gen_ai.usage.input_tokens": turn.input,
            "gen_ai.usage.output_tokens": turn.output,
            "loopd.turn": turn.n,
            "loopd.trigger": turn.trigger,
            "loopd.outcome": outcome,
            "loopd.steps": turn.steps,
        }
        error = ""
        if outcome in _FAILED:
            error = str(value.get("cause") or outcome)
            attributes["error.type"] = error
        top = Span(
            trace=trace,
            id=root,
            parent=None,
            name=f"invoke_agent {session.name}".strip(),
            kind=INTERNAL,
            start_ms=turn.at_ms,
            end_ms=max(turn.at_ms, at_ms),
            attributes=attributes,
            events=tuple(turn.events),
            error=error,
        )
        return [top, *turn.spans]

    # -- gate ---------------------------------------------------------------------------------

    def _gate(
        self, sid: int | str, session: _Session, value: dict[str, Any], seq: int, at_ms: int
    ) -> list[Span]:
        self._happened(session, "gate.changed", at_ms, value, ("gate", "cause", "by"))
        found = []
        for kind in value.get("removed") or ():
            begun = session.holds.pop(kind, None)
            if begun is None:
                continue
            since, hold = begun
            attributes: dict[str, Value] = {
                "gen_ai.conversation.id": str(sid),
                "loopd.hold": kind,
                "loopd.hold.by": str(hold.get("by") or ""),
                "loopd.hold.removed_by": str(value.get("cause") or ""),
            }
            if hold.get("rule"):
                attributes["loopd.rule"] = str(hold["rule"])
            found.append(
                Span(
                    trace=self._hash(sid, "hold", kind, seq)[:16],
                    id=self._hash(sid, "hold span", kind, seq)[:8],
                    parent=None,
                    name=f"hold {kind}",
                    kind=INTERNAL,
                    start_ms=since,
                    end_ms=max(since, at_ms),
                    attributes=attributes,
                )
            )
        added = value.get("added")
        if added is not None:
            session.holds[str(added.get("kind"))] = int(added.get("since_ms") or at_ms), added
        return found

    def _happened(
        self, session: _Session, name: str, at_ms: int, value: dict[str, Any], fields: Iterable[str]
    ) -> None:
        if session.turn is None or len(session.turn.events) >= 128:
            return
        attributes: dict[str, Value] = {
            f"loopd.{field}": value[field] for field in fields if isinstance(value.get(field), str | int)
        }
        session.turn.events.append(SpanEvent(name=name, at_ms=at_ms, attributes=attributes))

    # -- words --------------------------------------------------------------------------------

    def _model(self, session: _Session, answered: Any) -> dict[str, Value]:
        driver = session.driver
        found: dict[str, Value] = {
            "gen_ai.provider.name": str(driver.get("api") or driver.get("kind") or "loopd")
        }
        model = str(answered or driver.get("model") or "")
        if model:
            found["gen_ai.request.model"] = model
        parts = urlsplit(str(driver.get("base_url") or ""))
        if parts.hostname:
            found["server.address"] = parts.hostname
            if parts.port:
                found["server.port"] = parts.port
        return found

    def _said(self, value: dict[str, Any], calls: Iterable[dict[str, Any]]) -> str:
        parts: list[dict[str, Any]] = []
        if value.get("text"):
            parts.append({"type": "text", "content": self._redactor.text(str(value["text"]))[:TEXT_MAX]})
        parts += [
            {
                "type": "tool_call",
                "id": call.get("id"),
                "name": call.get("name"),
                "arguments": self._redactor.value(call.get("args")),
            }
            for call in calls
        ]
        message = {"role": "assistant", "parts": parts, "finish_reason": value.get("finish") or "stop"}
        return msgspec.json.encode([message]).decode()

    def _clean(self, value: Any) -> str:
        made = self._redactor.value(value)
        return (made if isinstance(made, str) else msgspec.json.encode(made).decode())[:TEXT_MAX]

    def _hash(self, *parts: Any) -> bytes:
        return sha256("\n".join(map(str, (self._log, *parts))).encode()).digest()

    def _ids(self, sid: int | str, n: int) -> tuple[bytes, bytes]:
        return self._hash(sid, "turn", n)[:16], self._id(sid, n, "turn")

    def _id(self, *parts: Any) -> bytes:
        return self._hash("span", *parts)[:8]


def resource(log: str = "") -> dict[str, Value]:
    """Attributes of what the spans come from."""
    found: dict[str, Value] = {"service.name": "loopd", "service.version": __version__}
    return {**found, "service.instance.id": log} if log else found
