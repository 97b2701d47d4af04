"""Live spans over OTLP, with the OpenTelemetry SDK (`pip install loopd[otel]`); off unless it is configured.

The exporter is a cursor of the log like any other reader: when the collector is away, it waits and goes on where
it was; nothing piles up in memory and no session ever waits for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, Protocol

import anyio
import anyio.to_thread

from loopd.core.redactor import Redactor
from loopd.core.writes import StoredEvent
from loopd.telemetry.spans import Span, Spans, resource
from loopd_protocol.errors import Refused

logger = logging.getLogger("loopd.otlp")

BATCH_EVENTS = 512
RETRY_S = (1.0, 2.0, 5.0, 15.0, 60.0)
TIMEOUT_S = 10


class Chunk(Protocol):
    """Events behind a cursor."""

    @property
    def events(self) -> Sequence[StoredEvent]:
        """In order of `seq`."""

    @property
    def cursor(self) -> int:
        """Where to read on."""


class Log(Protocol):
    """The live end of the log."""

    @property
    def head(self) -> int:
        """`seq` of the newest event."""

    async def read(self, after: int, *, limit: int = 512) -> Chunk:
        """What follows."""

    async def wait(self, after: int) -> int:
        """Wait for more."""


class OtlpFeed:
    """Sends spans of everything that happens from now on.

    Attributes:
        sent, failed: spans that were taken, and tries that failed.

    Raises:
        Refused: `invalid` when the extra is not installed, or the variable of the headers is not set.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        log: str,
        headers_env: str | None = None,
        content: bool = False,
        redactor: Redactor | None = None,
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        except ImportError as error:
            raise Refused(
                "invalid",
                "telemetry.otlp.endpoint is set, and OpenTelemetry is missing: pip install 'loopd[otel]'",
            ) from error
        self._exporter: Any = OTLPSpanExporter(
            endpoint=endpoint, headers=_headers(headers_env), timeout=TIMEOUT_S
        )
        self._resource = Resource.create(dict(resource(log)))
        self._spans = Spans(log=log, content=content, redactor=redactor)
        self.sent = self.failed = 0

    async def run(self, log: Log) -> None:
        """Read the log from its present end on, for ever."""
        cursor = log.head
        while True:
            await log.wait(cursor)
            chunk = await log.read(cursor, limit=BATCH_EVENTS)
            cursor = chunk.cursor
            made: list[Span] = []
            for event in chunk.events:
                if event.sid is not None and event.body:
                    made += self._spans.feed(event.sid, event.seq, event.at_ms, event.kind, event.body)
            if made:
                await self._send(made)

    async def _send(self, spans: list[Span]) -> None:
        ready = [_readable(span, self._resource) for span in spans]
        tries = 0
        while not await anyio.to_thread.run_sync(self._export, ready, abandon_on_cancel=True):
            self.failed += 1
            wait_s = RETRY_S[min(tries, len(RETRY_S) - 1)]
            if tries == 0:
                logger.warning("spans not taken", extra={"spans": len(ready), "again_in_s": wait_s})
            tries += 1
            await anyio.sleep(wait_s)
        self.sent += len(ready)

    def _export(self, spans: Sequence[Any]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

        try:
            return bool(self._exporter.export(spans) is SpanExportResult.SUCCESS)
        except Exception as error:  # noqa: BLE001  the wall: a library's fault must not end the daemon
            logger.debug("export failed", extra={"cause": str(error)})
            return False

    async def aclose(self) -> None:
        """Let go of the connection."""
        await anyio.to_thread.run_sync(self._exporter.shutdown)


def _headers(variable: str | None) -> dict[str, str] | None:
    if variable is None:
        return None
    text = os.environ.get(variable)
    if text is None:
        raise Refused(
            "invalid", f"environment variable {variable!r} is not set; expected headers for the collector"
        )
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _readable(span: Span, source: Any) -> Any:
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags  # noqa: PLC0415

    def context(span_id: bytes) -> SpanContext:
        return SpanContext(
            int.from_bytes(span.trace), int.from_bytes(span_id), is_remote=False, trace_flags=TraceFlags(1)
        )

    return ReadableSpan(
        name=span.name,
        context=context(span.id),
        parent=None if span.parent is None else context(span.parent),
        resource=source,
        attributes={key: value for key, value in span.attributes.items() if value != ""},
        events=[
            Event(event.name, attributes=dict(event.attributes), timestamp=event.at_ms * 1_000_000)
            for event in span.events
        ],
        kind=SpanKind.CLIENT if span.kind == 3 else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.start_ms * 1_000_000,
        end_time=span.end_ms * 1_000_000,
        instrumentation_scope=InstrumentationScope("loopd", str(resource()["service.version"])),
    )
