"""Questions to a person about tool calls, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from loopd.core.inputs import (
    Advanced,
    CutRequested,
    EffectEnded,
    EffectIntended,
    GateExtendRequested,
    Recovered,
    SuspendRequested,
)
from loopd.core.policy import judge
from loopd.core.policy_inputs import ApprovalGiven, PermitAsked, Settle
from loopd.core.report import KINDS, Happened, run_report
from loopd.core.settings import settings_for
from loopd_protocol import events as ev
from loopd_protocol import policy_events as pe
from loopd_protocol.errors import Refused
from loopd_protocol.holds import AwaitingApproval
from loopd_protocol.policy import PolicyRule
from tests.core.world import World

ASK = PolicyRule(effect="ask", tool_class="exec", reason="look first")
DENY = PolicyRule(effect="deny", command="git push *", reason="not you")
DAY_MS = 86_400_000


def world(*rules: PolicyRule, goal: str | None = None, **overrides: Any) -> World:
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    made = World(dotted, policy=rules or (DENY, ASK), goal=goal)
    made.send()
    return made


def permit(made: World, command: str = "make", call: str = "c1") -> Advanced:
    """What a live turn does before a tool runs."""
    session = made.session
    assert session.turn is not None
    verdict = judge(
        session.permits.all_rules,
        made.house().settings.approvals.default,
        tool="shell",
        tool_class="exec",
        args={"command": command},
        workspace=None,
    )
    assert verdict is not None
    return made.apply(
        PermitAsked(
            n=session.turn.n, call=call, tool="shell", tool_class="exec", args_sha256="x", verdict=verdict
        )
    )


def settled(done: Advanced) -> list[tuple[str, bool]]:
    return [(e.id, e.allowed) for e in done.effects if isinstance(e, Settle)]


def answer(made: World, approval: str, how: str = "allow", **more: Any) -> Advanced:
    return made.apply(ApprovalGiven(by="uid:1", id=approval, answer=how, **more))  # type: ignore[arg-type]


def test_a_denied_call_is_told_to_the_agent_and_journaled() -> None:
    made = world()
    done = permit(made, "git push origin")
    assert (
        done.denied
        == "the rule `deny command='git push *'` forbids it: not you. Do not try the same again; go on without it."
    )
    (denied,) = made.of(pe.EffectDenied)
    assert (denied.tool, denied.excerpt, denied.rule) == (
        "shell",
        "git push origin",
        "deny command='git push *'",
    )
    assert made.kinds == []
    assert not made.of(ev.EffectIntent)


def test_a_question_closes_the_gate_with_a_deadline_and_its_answer_opens_it() -> None:
    made = world(approvals__wait_s=600)
    done = permit(made)
    approval = done.asked
    assert approval is not None
    (hold,) = made.session.gate.holds
    assert isinstance(hold, AwaitingApproval)
    assert (hold.kind, hold.until_ms, hold.request) == ("AwaitingApproval", made.now + 600_000, approval)
    made.now += 1_000
    assert settled(answer(made, approval)) == [(approval, True)]
    assert made.kinds == []
    assert made.session.permits.pending == ()


def test_a_second_answer_is_a_conflict_and_an_unknown_question_is_not_found() -> None:
    made = world()
    approval = permit(made).asked or ""
    answer(made, approval)
    for how in ("allow", "deny"):
        with pytest.raises(Refused) as refused:
            answer(made, approval, how)
        assert refused.value.code == "conflict"
        assert "allow by uid:1" in refused.value.message
    with pytest.raises(Refused) as refused:
        answer(made, "apr_1_9999")
    assert refused.value.code == "not_found"


def test_a_conflict_is_known_also_when_the_answer_is_long_forgotten() -> None:
    made = world()
    first = permit(made).asked or ""
    answer(made, first)
    for number in range(40):
        answer(made, permit(made, f"make {number}").asked or "")
    with pytest.raises(Refused) as refused:
        answer(made, first)
    assert refused.value.code == "conflict"


def test_at_the_deadline_it_is_denied_by_itself() -> None:
    made = world(approvals__wait_s=60)
    approval = permit(made).asked or ""
    seen = made.tick_through(made.now + 60_000)
    (expired,) = [e for e in seen if isinstance(e, pe.ApprovalExpired)]
    assert (expired.id, expired.cause, expired.late_ms) == (approval, "deadline", 0)
    assert made.kinds == []
    with pytest.raises(Refused, match="nobody answered in time"):
        answer(made, approval)


def test_several_questions_hold_the_gate_until_the_last_is_settled() -> None:
    made = world(approvals__wait_s=60)
    first = permit(made, "make a", "c1").asked or ""
    made.now += 10_000
    second = permit(made, "make b", "c2").asked or ""
    answer(made, second)
    assert made.kinds == ["AwaitingApproval"]
    seen = made.tick_through(made.now + 50_000)
    assert [e.id for e in seen if isinstance(e, pe.ApprovalExpired)] == [first]
    assert made.kinds == []


def test_extending_the_hold_gives_its_questions_more_time() -> None:
    made = world(approvals__wait_s=60)
    approval = permit(made).asked or ""
    made.apply(GateExtendRequested(by="uid:1", kind="AwaitingApproval", until_ms=made.now + 3_600_000))
    assert not [e for e in made.tick_through(made.now + 120_000) if isinstance(e, pe.ApprovalExpired)]
    assert settled(answer(made, approval)) == [(approval, True)]


@pytest.mark.parametrize("how", ["interrupt", "crash", "end of the turn"])
def test_a_question_dies_with_its_turn_and_nothing_has_run(how: str) -> None:
    made = world(goal="win")
    approval = permit(made).asked or ""
    if how == "interrupt":
        done = made.apply(CutRequested(cause="deadline"))
    elif how == "crash":
        made.crash()
        done = made.apply(Recovered(boot=2))
    else:
        done = made.finish()
    assert settled(done) == [(approval, False)]
    (expired,) = made.of(pe.ApprovalExpired)
    assert expired.cause == "turn_over"
    assert "AwaitingApproval" not in made.kinds
    assert not made.of(ev.EffectIntent, ev.EffectOutcome)
    with pytest.raises(Refused) as refused:
        answer(made, approval)
    assert refused.value.code == "conflict"


def test_an_answer_for_the_session_is_remembered_over_a_crash_and_only_for_that_command() -> None:
    made = world()
    answer(made, permit(made, "make all").asked or "", scope="session")
    answer(made, permit(made, "rm x").asked or "", "deny", scope="session", reason="never")
    made.crash()
    made.refold_everything()
    assert permit(made, "make all").asked is None
    assert permit(made, "rm x").denied is not None
    assert permit(made, "make all && make install").asked is not None


def test_waiting_is_no_running_time_and_no_step() -> None:
    made = world(approvals__wait_s=7_200)
    approval = permit(made).asked or ""
    made.now += 3_600_000
    steps = made.session.steps
    answer(made, approval)
    made.now += 5_000
    made.step(text="done")
    assert made.session.steps == steps + 1
    assert made.session.account.wall == 5_000


def test_a_suspension_during_a_question_stands_behind_it() -> None:
    made = world()
    approval = permit(made).asked or ""
    made.apply(SuspendRequested(by="uid:1"))
    answer(made, approval)
    assert made.kinds == ["UserSuspend"]


def test_where_it_is_asked_for_a_denial_ends_the_session() -> None:
    made = world(approvals__on_deny="end")
    answer(made, permit(made).asked or "", "deny")
    (ended,) = made.of(ev.SessionEnded)
    assert (ended.status, ended.stop_reason) == ("aborted_constraint", "denied")
    assert made.of(ev.IssueWritten)


def test_a_parked_session_is_answered_by_the_same_command() -> None:
    for how, status in (("allow", "live"), ("deny", "aborted_stuck")):
        made = World({"stop.max_steps": 3, "stop.max_extensions": 0}, preset="hardened", goal="win")
        made.tick_through(made.now + 2_000)
        for number in range(3):
            made.step(
                text=f"part {number}",
                calls=(
                    ev.ToolCall(
                        id=f"c{number}",
                        name="write_file",
                        args={"path": str(number)},
                        ok=True,
                        tool_class="edit",
                    ),
                ),
                state_fingerprint=f"s{number}",
            )
        if made.kinds != ["AwaitingApproval"]:
            pytest.fail(f"not parked: {made.kinds}, {[e.rule for e in made.of(ev.DegenerationDetected)]}")
        made.finish()
        answer(made, "apr_1_steps", how)
        assert made.session.status == status
        with pytest.raises(Refused) as refused:
            answer(made, "apr_1_steps", how)
        assert refused.value.code in {"conflict", "session_terminal"}


def test_policy_does_not_stand_in_the_way_of_what_it_allows() -> None:
    made = world(PolicyRule(effect="allow", command="make *"), PolicyRule(effect="ask"))
    session = made.session
    assert session.turn is not None
    n = session.turn.n
    assert permit(made, "make").asked is None
    made.apply(EffectIntended(n=n, call="c1", tool="shell", args_sha256="x", tool_class="exec"))
    made.apply(EffectEnded(n=n, call="c1", outcome="ok"))
    assert made.of(pe.ApprovalRequested, pe.EffectDenied) == []


def test_the_report_of_a_run_tells_who_decided_and_what_was_denied() -> None:
    made = world()
    permit(made, "git push origin")
    answer(made, permit(made).asked or "", "deny", reason="use make -n")
    happened = [
        Happened(ss=ss, at_ms=at, event=ev.decode(body))
        for ss, at, body in made.events
        if ev.decode(body).kind in KINDS
    ]
    settings = settings_for(made.session.preset, made.session.overrides)
    told = [entry.what for entry in run_report(made.session, settings, happened, {}, made.now).timeline]
    assert "shell denied by deny command='git push *': git push origin" in told
    assert any(what.endswith("deny by uid:1 use make -n") for what in told)
