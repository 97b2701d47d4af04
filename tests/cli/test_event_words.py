"""Every event that there is has words of its own: nobody has to read JSON to follow a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopd.cli import event_words, lines
from loopd.cli.console import Console

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol" / "0.1" / "events.ndjson"
EVENTS: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_bytes().split(b"\n") if line]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(event["k"]))
def test_each_kind_of_event_has_words_whatever_it_leaves_out(event: dict[str, Any]) -> None:
    frame = {"seq": 7, "ss": 1, "sid": "ses_1", "ts": 1_764_000_000_000, "k": event["k"], "b": event}
    told = lines.line(frame, Console(), {"ses_1": "fixer"})
    assert event["k"] in lines.WORDS
    assert f"  {event['k']}" in told
    assert "\n" not in told


FULL = {event["k"]: event for event in sorted(EVENTS, key=len)}


@pytest.mark.parametrize("kind", event_words.WORDS)
def test_words_name_nothing_that_is_not_there(kind: str) -> None:
    words = event_words.WORDS[kind](FULL[kind])
    assert words.strip()
    assert "None" not in words
    assert "{" not in words


def test_a_model_call_says_how_it_went_how_big_it_was_and_what_it_took() -> None:
    body = {
        "n": 4, "model": "qwen3:8b", "outcome": "error", "cause": "rate_limited", "status": 429,
        "request_bytes": 33_546, "response_bytes": 120, "duration_ms": 1_900,
        "usage": {"input_tokens": 8_990, "output_tokens": 0, "measured": False},
    }  # fmt: skip
    told = lines.WORDS["model.called"](body)
    assert told == ("4 qwen3:8b error (rate_limited) 429 in 1.9s: 32.8 KiB → 120 B, about 8990 + 0 tokens")
