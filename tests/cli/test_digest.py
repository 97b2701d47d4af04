"""The digest counts what happened since a moment, and nothing before it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loopd.cli.digest import needs_you, summary


def event(kind: str, ts: int = 10, sid: str | None = "ses_1", **body: Any) -> dict[str, Any]:
    return {"k": kind, "ts": ts, "sid": sid, "seq": ts, "b": {"k": kind, **body}}


SESSIONS = [
    {"sid": "ses_1", "name": "bench", "status": "live", "holds": [{"kind": "Degeneration", "until_ms": 99}]},
    {"sid": "ses_2", "name": "held", "status": "live", "holds": [{"kind": "UserSuspend", "until_ms": None}]},
    {"sid": "ses_3", "name": "lost", "status": "live", "holds": [], "goal": {"status": "infeasible"}},
    {"sid": "ses_4", "name": "over", "status": "aborted_stuck", "holds": [{"kind": "Degeneration"}]},
]


def test_it_tells_who_worked_who_was_caught_and_who_needs_a_person() -> None:
    events = [
        event("turn.completed"),
        event("turn.step", usage={"input_tokens": 100, "output_tokens": 5}),
        event("degeneration.detected", rule="repeated_text", verdict="close"),
        event("degeneration.detected", rule="repeated_text", verdict="close"),
        event("degeneration.detected", rule="sweep", verdict="close", shadow=True),
        event("session.ended", sid="ses_4", status="aborted_stuck", stop_reason="tool_repetition"),
        event("cron.occurrence", job="nightly", result="missed"),
        event("cron.occurrence", job="nightly", result="fired"),
        event("command.denied", sid=None, principal="token:a", cmd="suspend", code="forbidden"),
        event("daemon.started", sid=None, recovered=2),
        event("turn.interrupted", sid="ses_2"),
    ]
    counted = summary(iter(events), SESSIONS, 5)
    assert (counted["turns"], counted["interrupted"], counted["tokens"]) == (1, 1, 105)
    assert [(one["name"], one["turns"]) for one in counted["worked"]] == [("bench", 1), ("held", 0)]
    assert [(one["rule"], one["times"]) for one in counted["caught"]] == [("repeated_text", 2)]
    assert [(one["name"], one["stop_reason"]) for one in counted["ended"]] == [("over", "tool_repetition")]
    assert [(one["job"], one["result"], one["times"]) for one in counted["crons"]] == [
        ("nightly", "missed", 1)
    ]
    assert counted["denied"] == [{"principal": "token:a", "cmd": "suspend", "code": "forbidden", "times": 1}]
    assert counted["boots"] == [{"at_ms": 10, "recovered": 2}]
    assert [one["name"] for one in counted["needs_you"]] == ["bench", "lost"]


def test_what_a_person_held_or_what_has_ended_does_not_need_one() -> None:
    assert [needs_you(one) for one in SESSIONS] == [True, False, True, False]


@given(
    st.lists(
        st.builds(
            event,
            st.sampled_from(["turn.completed", "turn.step", "turn.interrupted"]),
            sid=st.sampled_from(["ses_1", "ses_2"]),
            usage=st.fixed_dictionaries({"input_tokens": st.integers(0, 999)}),
        )
    )
)
def test_the_sums_are_those_of_the_sessions(events: list[dict[str, Any]]) -> None:
    counted = summary(iter(events), SESSIONS, 0)
    worked = counted["worked"]
    assert counted["turns"] == sum(one["turns"] for one in worked)
    assert counted["turns"] == sum(one["k"] == "turn.completed" for one in events)
    assert counted["tokens"] == sum(
        one["b"]["usage"]["input_tokens"] for one in events if one["k"] == "turn.step"
    )
