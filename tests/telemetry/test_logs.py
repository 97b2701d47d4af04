"""Log lines are one line each, keys and values, and carry no secrets."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.telemetry import configure_logs
from loopd.telemetry.logs import JsonLines, TextLines

RECORDS = st.builds(
    lambda message, extra: ("loopd.store", logging.WARNING, message, extra),
    st.text(max_size=40),
    st.dictionaries(
        st.text("abcdefgh_", min_size=1, max_size=8),
        st.text(max_size=20) | st.integers() | st.binary(max_size=5),
        max_size=4,
    ),
)


@pytest.fixture(autouse=True)
def untouched_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def record(message: str, **extra: Any) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {
            "name": "loopd.store",
            "levelno": 30,
            "levelname": "WARNING",
            "msg": message,
            "created": 1_795_338_000.25,
            "msecs": 250.0,
        }
    )
    vars(made).update(extra)
    return made


def test_a_json_line_has_the_events_keys() -> None:
    line = json.loads(JsonLines().format(record("disk_full", free_bytes=4096, event="x")))
    assert line == {
        "ts": "2026-11-22T09:00:00.250Z", "level": "warning", "logger": "loopd.store", "event": "disk_full",
        "free_bytes": 4096, "event_": "x",
    }  # fmt: skip


def test_a_text_line_reads_from_left_to_right() -> None:
    line = TextLines().format(record("disk_full", free_bytes=4096, path="/a b", none=None))
    assert (
        line == '2026-11-22T09:00:00.250Z warning loopd.store disk_full free_bytes=4096 path="/a b" none=null'
    )


@given(RECORDS)
def test_whatever_is_logged_is_one_line(given_record: tuple[str, int, str, dict[str, Any]]) -> None:
    _, _, message, extra = given_record
    made = record(message.replace("%", ""), **{f"x{key}": value for key, value in extra.items()})
    for formatter in (JsonLines(), TextLines()):
        line = formatter.format(made)
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line
    assert json.loads(JsonLines().format(made))["event"] == message.replace("%", "")


@pytest.mark.parametrize(
    "key", ["token", "api_key", "Authorization", "client_secret", "password_hash", "set_cookie"]
)
def test_secrets_are_redacted(key: str) -> None:
    for formatter in (JsonLines(), TextLines()):
        line = formatter.format(record("x", **{key: "hunter2"}))
        assert "hunter2" not in line
        assert "[redacted]" in line


def test_counts_of_tokens_are_no_secrets() -> None:
    assert json.loads(JsonLines().format(record("x", tokens=5)))["tokens"] == 5


def test_an_exception_is_in_its_line() -> None:
    try:
        raise ValueError("deep\nreason")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    assert "ValueError: deep" in json.loads(JsonLines().format(made))["error"]
    text = TextLines().format(made)
    assert all(line.startswith("    ") for line in text.splitlines()[1:])


@pytest.mark.parametrize("style", ["json", "text"])
def test_configured_logs_go_to_one_stream_once(style: Literal["json", "text"]) -> None:
    stream = io.StringIO()
    configure_logs(level="debug", style=style, stream=io.StringIO())
    configure_logs(level="info", style=style, stream=stream)
    logging.getLogger("loopd.x").info("hello", extra={"n": 1})
    logging.getLogger("loopd.x").debug("unseen")
    logging.getLogger("httpx").info("unseen")
    assert stream.getvalue().count("\n") == 1
    assert "hello" in stream.getvalue()


@pytest.mark.process
def test_nothing_but_stderr_is_written() -> None:
    code = (
        "import logging, warnings; from loopd.telemetry import configure_logs; configure_logs()\n"
        "logging.getLogger('a').error('x'); warnings.warn('careful', stacklevel=1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == ""
    assert [json.loads(line)["level"] for line in done.stderr.splitlines()] == ["error", "warning"]
