"""A laptop that slept: what comes after a deadline is late, also when the timer has not come yet."""

from __future__ import annotations

import pytest

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol import policy_commands as pc
from loopd_protocol import policy_events as pe
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall
from loopd_protocol.policy import PolicyRuleSpec
from tests.engine.stage import CHANNEL, Stage, say, stage

pytestmark = pytest.mark.anyio

ASK = (PolicyRuleSpec(effect="ask", tool_class="exec"),)
HOUR = 3_600_000
DAY = 24 * HOUR


async def refused(on: Stage, command: cm.Command) -> Refused:
    with pytest.raises(Refused) as caught:
        await on.call(command)
    return caught.value


async def asked(on: Stage, told: list[str]) -> tuple[str, pe.ApprovalRequested]:
    """A turn that waits for a person."""

    async def works(request: TurnRequest, host: TurnHost) -> TurnEnd:
        call = ToolCall(id="c0", name="shell", args={"command": "make"}, tool_class="exec")
        try:
            await host.intent(call)
            await host.outcome(call, "ok")
            told.append("ran")
        except Refused as refusal:
            told.append(refusal.message)
        await say(host, calls=(call,))
        return TurnEnd(outcome="completed")

    sid = await on.new("asks", run=works, policy=ASK, name="w")
    await on.send(sid)
    await on.settle()
    (question,) = await on.decoded(sid, pe.ApprovalRequested)
    return sid, question


@pytest.mark.parametrize("ticked", [True, False], ids=["behind the tick", "before the tick"])
async def test_an_answer_after_the_deadline_is_refused_whether_or_not_the_timer_has_come(ticked: bool):
    told: list[str] = []
    async with stage() as on:
        sid, question = await asked(on, told)
        on.clock.advance(question.until_ms - on.clock.now_ms())
        if ticked:
            await on.pump()
        late = await refused(on, pc.ApprovalAnswer(sid="w", id=question.id, answer="allow"))
        assert late.code == "conflict"
        await on.settle()
        (expired,) = await on.decoded(sid, pe.ApprovalExpired)
        assert (expired.cause, expired.late_ms) == ("deadline", 0)
        assert await on.decoded(sid, pe.ApprovalAnswered, ev.EffectIntent) == []
        assert told[0].startswith("nobody approved it within")


async def test_an_answer_in_the_last_moment_counts():
    told: list[str] = []
    async with stage() as on:
        sid, question = await asked(on, told)
        on.clock.advance(question.until_ms - on.clock.now_ms() - 1)
        await on.call(pc.ApprovalAnswer(sid=sid, id=question.id, answer="allow"))
        await on.settle()
        assert told == ["ran"]


async def test_a_key_whose_answer_came_in_time_is_answered_alike_after_the_deadline():
    told: list[str] = []
    async with stage() as on:
        sid, question = await asked(on, told)
        given = pc.ApprovalAnswer(sid=sid, id=question.id, answer="allow")
        await on.call(given, key="k")
        on.clock.advance(question.until_ms - on.clock.now_ms() + HOUR)
        assert (await on.call(given, key="k")).dup


async def test_a_hold_that_is_over_is_not_extended():
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.Interrupt(sid=sid, for_ms=HOUR))
        await on.send(sid, "later", caller=CHANNEL)
        on.clock.advance(2 * HOUR)
        until_ms = on.clock.now_ms() + DAY
        late = await refused(on, cm.GateExtend(sid=sid, kind="Interrupted", until_ms=until_ms))
        assert late.code == "conflict"
        await on.settle()
        gone = [e for e in await on.decoded(sid, ev.GateChanged) if "Interrupted" in e.removed]
        assert [(e.cause, e.late_ms) for e in gone] == [("deadline", HOUR)]
        assert (await on.state(sid)).turns == 1


async def parked(on: Stage) -> str:
    """A session that has taken its steps and asks for more."""

    async def works(request: TurnRequest, host: TurnHost) -> TurnEnd:
        for number in range(3):
            call = ToolCall(id=f"c{number}", name="write_file", args={"path": str(number)}, ok=True)
            await say(host, f"part {number}", calls=(call,), state_fingerprint=f"s{number}")
        return TurnEnd(outcome="completed")

    few = {"stop.max_steps": 3, "stop.max_extensions": 0, "stop.park_s": 3_600}
    sid = await on.new("works", run=works, preset="hardened", set=few, goal="win", name="p")
    await on.pump_through(5_000)
    assert [hold.kind for hold in (await on.state(sid)).gate.holds] == ["AwaitingApproval"]
    return sid


async def test_more_steps_are_not_granted_behind_the_deadline_of_the_question():
    async with stage() as on:
        sid = await parked(on)
        question = f"apr_{(await on.state(sid)).num}_steps"
        on.clock.advance(2 * HOUR)
        late = await refused(on, pc.ApprovalAnswer(sid=sid, id=question, answer="allow"))
        assert late.code == "session_terminal"
        (ended,) = await on.decoded(sid, ev.SessionEnded)
        assert ended.stop_reason == "more_steps_denied"


async def test_a_resumption_behind_that_deadline_begins_a_new_run():
    async with stage() as on:
        sid = await parked(on)
        on.clock.advance(2 * HOUR)
        resumed = (await on.call(cm.SessionResume(sid="p"))).result
        assert (resumed["sid"], resumed["run"], resumed["status"]) == (sid, 2, "live")
        told = [type(e) for e in await on.decoded(sid, ev.SessionEnded, ev.SessionResumed)]
        assert told == [ev.SessionEnded, ev.SessionResumed]
        assert (
            await refused(on, cm.SessionCreate(driver=cm.ScriptedSpec(script="works"), name="p"))
        ).code == ("already_exists")


async def test_what_cannot_be_written_first_refuses_the_answer_and_changes_nothing():
    told: list[str] = []
    async with stage() as on:
        sid, question = await asked(on, told)
        on.clock.advance(question.until_ms - on.clock.now_ms() + HOUR)
        on.store.refuse = Refused("storage_full", "no room")
        late = await refused(on, pc.ApprovalAnswer(sid=sid, id=question.id, answer="allow"))
        assert late.code == "storage_full"
        on.store.refuse = None
        assert await on.decoded(sid, pe.ApprovalAnswered, ev.EffectIntent) == []


@pytest.mark.parametrize("how", ["put", "remove", "pause", "resume"])
async def test_a_moment_of_a_job_is_accounted_for_before_the_job_is_changed(how: str):
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.CronPut(sid=sid, job="j", expr="0 * * * *", text="work"))
        if how == "resume":
            await on.call(cm.CronPause(sid=sid, job="j"))
        (job,) = (await on.state(sid)).crons
        assert job.next_ms is not None
        on.clock.advance(job.next_ms - on.clock.now_ms() + 1)
        match how:
            case "put":
                await on.call(cm.CronPut(sid=sid, job="j", expr="30 * * * *", text="other work"))
            case "remove":
                await on.call(cm.CronRemove(sid=sid, job="j"))
            case "pause":
                await on.call(cm.CronPause(sid=sid, job="j"))
            case _:
                await on.call(cm.CronResume(sid=sid, job="j"))
        await on.pump()
        await on.settle()
        told = [(e.due_ms, e.result) for e in await on.decoded(sid, ev.CronOccurrence)]
        expected = ["skipped"] if how == "resume" else ["due", "fired"]
        assert told == [(job.next_ms, result) for result in expected]
