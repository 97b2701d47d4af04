"""What stands on the screen, without a screen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.cli.console import Cell, columns
from loopd.cli.screen import rows

NOW = 1_795_300_000_000
GOLDEN = Path(__file__).parents[2] / "golden" / "screen"


def session(name: str, **fields: Any) -> dict[str, Any]:
    return {"sid": f"ses_{name}", "name": name, "status": "live", "gate": "open", "holds": [], **fields}


def hold(kind: str, until_ms: int | None = NOW + 90_000, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "until_ms": until_ms, "by": "uid:1000", "reason": "", **fields}


FLEET = [
    session("patient", goal={"status": "active", "text": "wait"}, turns=3, progress_ms=NOW - 5_000),
    session(
        "stuck",
        gate="closed",
        holds=[
            hold("Degeneration", by="rule:repeated_text", reason="5 equal answers in a row, nothing called")
        ],
        goal={"status": "active", "text": "score 100"},
        turns=812,
        repeat_streak=5,
        barren_streak=12,
        tokens={"input": 2_100_000, "output": 900, "barren": 14_000},
        progress_ms=NOW - 39_600_000,
    ),
    session("held", gate="closed", holds=[hold("UserSuspend", None, reason="cost review")], turns=40),
    session(
        "busy",
        turn={"n": 9, "trigger": "cron", "started_ms": NOW - 61_000},
        goal={"status": "active", "text": "x"},
        turns=9,
        tokens={"total": 1_400},
        progress_ms=NOW - 61_000,
    ),
    session("lost", goal={"status": "infeasible", "text": "y"}, turns=2, progress_ms=NOW - 100_000),
    session("over", status="aborted_stuck", stop_reason="tool_repetition", turns=77),
]


def drawn(width: int) -> str:
    lines = [rows.row(one, NOW) for one in rows.order(FLEET, "sick")]
    kept, widths = rows.layout(lines, width)
    header = [Cell(rows.HEADER[place]) for place in range(len(rows.HEADER))]
    shown = [rows.fitted(line, kept, widths) for line in [header, *lines]]
    return "\n".join(
        "  ".join(
            cell.text + " " * (w - columns(cell.text)) for cell, w in zip(line, widths, strict=True)
        ).rstrip()
        for line in shown
    )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_fleet_looks_like_its_snapshot(
    width: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    request.addfinalizer(time.tzset)
    request.addfinalizer(monkeypatch.undo)
    assert drawn(width) + "\n" == (GOLDEN / f"fleet_{width}.txt").read_text()


def test_who_needs_a_person_stands_first_and_who_has_ended_last() -> None:
    assert [one["name"] for one in rows.order(FLEET, "sick")] == [
        "stuck",
        "lost",
        "busy",
        "held",
        "patient",
        "over",
    ]


def test_a_suspended_session_has_the_pause_sign_and_an_infeasible_goal_is_red() -> None:
    by_name = {one["name"]: one for one in FLEET}
    assert rows.mark(by_name["held"]).text == "⏸"
    assert rows.standing(by_name["held"]).text == "suspended"
    assert (rows.standing(by_name["lost"]).text, rows.standing(by_name["lost"]).style) == (
        "infeasible",
        "red",
    )


def test_every_hold_of_a_session_says_why_and_until_when() -> None:
    shown = rows.facts(FLEET[1], {"next": {"what": "hold_ends", "at_ms": NOW + 90_000}}, NOW)
    holds = [cell.text for name, cell in shown if name == "hold"]
    assert len(holds) == 1
    assert "5 equal answers" in holds[0]
    assert "in 1m 30s" in holds[0]
    assert ("next", "hold_ends in 1m 30s") in [(name, cell.text) for name, cell in shown]


def test_what_an_agent_wrote_cannot_reach_the_terminal() -> None:
    evil = session("x\x1b[2J", goal={"status": "active", "text": "\x1b]0;own\x07 \u202eback"})
    words = [cell.text for cell in rows.row(evil, NOW)] + [cell.text for _, cell in rows.facts(evil, {}, NOW)]
    assert [word for word in words if not word.isprintable()] == []


@given(
    width=st.integers(20, 300),
    names=st.lists(st.text(max_size=40), min_size=1, max_size=5),
    reason=st.text(max_size=200),
)
def test_no_line_is_wider_than_its_terminal(width: int, names: list[str], reason: str) -> None:
    fleet = [session(name, holds=[hold("Degeneration", reason=reason)], gate="closed") for name in names]
    lines = [rows.row(one, NOW) for one in fleet]
    kept, widths = rows.layout(lines, width)
    assert rows.WHY in kept
    assert rows.SESSION in kept
    for line in lines:
        for cell, most in zip(rows.fitted(line, kept, widths), widths, strict=True):
            assert columns(cell.text) <= most
    if width >= 80:
        assert sum(widths) + rows.GAP * (len(widths) - 1) <= width


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (1_000, "1k"), (1_449, "1.4k"), (38_912, "38k"), (2_100_900, "2.1M")],
)
def test_counts_are_short(number: int, shown: str) -> None:
    assert rows.short(number) == shown
