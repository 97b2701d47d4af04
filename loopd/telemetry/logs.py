"""Log lines on stderr: one JSON object or one readable line each, keys instead of sentences.

Rooms log with the standard library: `logging.getLogger("loopd.store").warning("disk_full",
extra={"free_bytes": 4096})`. The message is the event's name, `extra` are its keys.
"""

from __future__ import annotations

import logging
import re
import sys
from time import gmtime, strftime
from typing import Any, Literal, TextIO

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_SECRET = re.compile(r"(?i)(^|_)(token|secret|password|authorization|api_key|cookie)($|_)")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_REDACTED = "[redacted]"
VALUE_MAX_CHARS = 2_000


def keys_of(record: logging.LogRecord) -> dict[str, Any]:
    """The `extra` of a record. Values under names such as `token` or `api_key` are redacted."""
    return {
        key: _REDACTED if _SECRET.search(key) else value
        for key, value in vars(record).items()
        if key not in _STANDARD
    }


class JsonLines(logging.Formatter):
    """`{"ts":"…","level":"info","logger":"loopd.store","event":"disk_full","free_bytes":4096}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, always: newlines and control characters are escaped."""
        line: dict[str, Any] = {
            "ts": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for key, value in keys_of(record).items():
            line[f"{key}_" if key in line else key] = value
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        text = msgspec.json.encode(line, enc_hook=repr).decode()
        # JSON itself lets C1 controls and line separators through; here they would end or hide a line.
        return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


class TextLines(logging.Formatter):
    """`2026-11-21T22:50:00.123Z warning loopd.store disk_full free_bytes=4096`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, but for tracebacks, which follow indented."""
        words = [_moment(record), f"{record.levelname.lower():7}", record.name, _visible(record.getMessage())]
        words += [f"{key}={_value(value)}" for key, value in keys_of(record).items()]
        line = " ".join(words)
        if record.exc_info:
            line += "".join(
                f"\n    {_visible(part)}" for part in self.formatException(record.exc_info).splitlines()
            )
        return line


def configure(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["json", "text"] = "json",
    stream: TextIO | None = None,
) -> logging.Handler:
    """Send everything that is logged in this process to one stream (default: stderr).

    Replaces the root logger's handlers, so a second call wins. Returns the handler.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These name every request on `info`; the daemon's own events say what matters.
    for noisy in ("httpx", "httpcore", "uvicorn.access", "uvicorn.error", "aiosqlite", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(capture=True)
    return handler


def _moment(record: logging.LogRecord) -> str:
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(record.created))}.{int(record.msecs):03d}Z"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()
    if len(text) > VALUE_MAX_CHARS:
        text = f"{text[:VALUE_MAX_CHARS]}…({len(text)} chars)"
    text = _visible(text)
    return f'"{text}"' if " " in text or not text else text


def _visible(text: str) -> str:
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
