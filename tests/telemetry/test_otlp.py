"""Spans for a collector: against a real receiver that decodes what the SDK sends."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio
import msgspec
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loopd.bus import Bus
from loopd.core.redactor import Redactor
from loopd.core.writes import StoredEvent
from loopd.telemetry.otlp import OtlpFeed
from loopd.telemetry.otlp_json import document
from loopd.telemetry.spans import Span, Spans
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.holds import Degeneration
from loopd_protocol.sources import Trigger

CREATED = ev.SessionCreated(
    sid="ses_1", num=1, name="mapper", driver={"kind": "chat", "model": "small", "base_url": "http://127.0.0.1:8080/v1"}, preset="published",
)  # fmt: skip
HOLD = Degeneration(by="rule:x", rule="repeated_text", until_ms=9_000, since_ms=1_500)
STORY: tuple[tuple[int, ev.Event], ...] = (
    (1_000, CREATED),
    (1_100, ev.TurnStarted(n=1, trigger=Trigger.HUMAN)),
    (1_200, ev.EffectIntent(id="1.1.1.c1", n=1, call="c1", tool="shell", args_sha256="00", tool_class="exec")),
    (1_300, ev.EffectOutcome(id="1.1.1.c1", outcome="ok")),
    (
        1_350,
        ev.TurnStep(
            n=1, step=1, total=1, text="use password=hunter22",
            calls=(ToolCall(id="c1", name="shell", args={"cmd": "ls"}, ok=False, result="no", error_class="tool"),),
            usage=Usage(input_tokens=10, output_tokens=3), request_sha256="ab",
        ),
    ),
    (1_400, ev.DegenerationDetected(rule="repeated_text", verdict="close", level="hard", score=3, threshold=3)),
    (1_500, ev.GateChanged(gate="closed", cause="detection", by="rule:x", gen=1, holds=(HOLD,), added=HOLD)),
    (1_600, ev.TurnCompleted(n=1, outcome="model_error", steps=1, duration_ms=500)),
    (2_000, ev.GateChanged(gate="open", cause="gate_open", by="uid:1", gen=2, removed=("Degeneration",))),
)  # fmt: skip


def spans_of(**options: Any) -> dict[str, Span]:
    spans = Spans(log="lg_1", **options)
    made = [
        span
        for seq, (at_ms, event) in enumerate(STORY, 1)
        for span in spans.feed("ses_1", seq, at_ms, event.kind, msgspec.json.encode(event))
    ]
    assert spans.finish() == []
    return {span.name: span for span in made}


def test_a_turn_is_a_trace_of_model_calls_and_tools() -> None:
    made = spans_of()
    assert set(made) == {"invoke_agent mapper", "chat small", "execute_tool shell", "hold Degeneration"}
    turn, chat, tool = made["invoke_agent mapper"], made["chat small"], made["execute_tool shell"]
    assert (turn.start_ms, turn.end_ms, turn.error) == (1_100, 1_600, "model_error")
    assert turn.attributes["gen_ai.usage.input_tokens"] == 10
    assert (chat.start_ms, chat.end_ms) == (1_100, 1_200), "the model's part ends where the first tool begins"
    assert (tool.start_ms, tool.end_ms, tool.error) == (1_200, 1_300, "tool")
    assert {chat.trace, tool.trace, turn.trace} == {turn.trace}
    assert {chat.parent, tool.parent} == {turn.id}
    assert chat.attributes["server.port"] == 8080
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert [event.name for event in turn.events] == ["degeneration.detected", "gate.changed"]
    hold = made["hold Degeneration"]
    assert (hold.start_ms, hold.end_ms, hold.attributes["loopd.rule"]) == (1_500, 2_000, "repeated_text")


def test_no_content_leaves_unless_it_is_asked_for_and_then_without_secrets() -> None:
    assert "hunter22" not in str(spans_of())
    assert "ls" not in str(spans_of()["execute_tool shell"].attributes)
    told = spans_of(content=True, redactor=Redactor("secrets", key=b"k"))
    assert "hunter22" not in str(told)
    assert "[redacted:" in str(told["chat small"].attributes["gen_ai.output.messages"])
    assert json.loads(str(told["execute_tool shell"].attributes["gen_ai.tool.call.arguments"])) == {
        "cmd": "ls"
    }


def test_the_same_history_makes_the_same_spans() -> None:
    assert spans_of() == spans_of()


def test_the_json_is_what_the_protocol_says() -> None:
    made = document(spans_of().values(), log="lg_1")
    for span in made["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:  # OTLP's JSON has hex where protobuf's own has base64
                span[name] = __import__("base64").b64encode(bytes.fromhex(span[name])).decode()
    parsed = json_format.ParseDict(made, ExportTraceServiceRequest())
    assert len(parsed.resource_spans[0].scope_spans[0].spans) == 4


class Receiver:
    """A collector: keeps every request it decodes, after refusing some."""

    def __init__(self, refusals: int = 0) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = threading.Event()
        self._refusals = refusals
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if outer._refusals:
                    outer._refusals -= 1
                    self.send_response(400)
                    self.end_headers()
                    return
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                outer.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()
                outer.arrived.set()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    @contextmanager
    def serving(self) -> Iterator[Receiver]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class NoPages:
    async def page(self, **_: Any) -> list[StoredEvent]:
        return []


def stored() -> list[StoredEvent]:
    return [
        StoredEvent(
            seq=seq, sid="ses_1", ss=seq, at_ms=at, kind=event.kind, kv=1, body=msgspec.json.encode(event)
        )
        for seq, (at, event) in enumerate(STORY, 1)
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("refusals", [0, 1])
async def test_a_collector_gets_spans_as_they_end_also_when_it_refused_at_first(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopd.telemetry.otlp.RETRY_S", (0.01,))
    monkeypatch.setenv("COLLECTOR_HEADERS", "x-team=night,authorization=Bearer abc")
    bus = Bus(log_id="lg_1", head=0, pages=NoPages())
    with Receiver(refusals).serving() as receiver:
        feed = OtlpFeed(receiver.endpoint, log="lg_1", headers_env="COLLECTOR_HEADERS")
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(feed.run, bus)
                await anyio.lowlevel.checkpoint()
                bus.publish(stored())
                while not feed.sent:
                    await anyio.to_thread.run_sync(receiver.arrived.wait, 0.05)
                tasks.cancel_scope.cancel()
        await feed.aclose()
    spans = [
        s for r in receiver.requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans
    ]
    assert sorted(span.name for span in spans) == [
        "chat small",
        "execute_tool shell",
        "hold Degeneration",
        "invoke_agent mapper",
    ]
    turn = next(span for span in spans if span.name == "invoke_agent mapper")
    expected = spans_of()["invoke_agent mapper"]
    assert (turn.trace_id, turn.span_id) == (expected.trace, expected.id), "the live span is the exported one"
    assert turn.start_time_unix_nano == 1_100_000_000
    assert turn.status.code == 2
    names = {a.key for a in receiver.requests[0].resource_spans[0].resource.attributes}
    assert {"service.name", "service.version", "service.instance.id"} <= names
    assert (receiver.headers[0]["x-team"], receiver.headers[0]["authorization"]) == ("night", "Bearer abc")
    assert feed.failed == refusals


def test_headers_that_are_not_there_are_told_at_the_start() -> None:
    with pytest.raises(Refused, match="NOT_THERE"):
        OtlpFeed("http://127.0.0.1:1/v1/traces", log="x", headers_env="NOT_THERE")
