"""Spans in the JSON encoding of OTLP. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loopd import __version__
from loopd.telemetry.spans import Span, Value, resource

ERROR = 2


def document(spans: Iterable[Span], *, log: str = "") -> dict[str, Any]:
    """An `ExportTraceServiceRequest` in the JSON encoding of OTLP."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource(log))},
                "scopeSpans": [
                    {
                        "scope": {"name": "loopd", "version": __version__},
                        "spans": [_as_json(span) for span in spans],
                    }
                ],
            }
        ]
    }


def _as_json(span: Span) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": span.trace.hex(),
        "spanId": span.id.hex(),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ms * 1_000_000),
        "endTimeUnixNano": str(span.end_ms * 1_000_000),
        "attributes": _attributes(span.attributes),
        "events": [
            {
                "name": event.name,
                "timeUnixNano": str(event.at_ms * 1_000_000),
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        "status": {"code": ERROR, "message": span.error} if span.error else {},
    }
    if span.parent is not None:
        made["parentSpanId"] = span.parent.hex()
    return made


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value != ""]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [{"stringValue": each} for each in value]}}
    return {"stringValue": value}
