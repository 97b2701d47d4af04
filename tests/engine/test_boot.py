"""What a boot finds and does, and what it does not believe."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.engine import boot as boot_module
from loopd.engine.boot import Boot
from loopd.engine.ports import TurnHost
from loopd.store import opening
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall
from tests.engine.stage import Gate, Stage, say, stage

pytestmark = pytest.mark.anyio
MINUTE, HOUR = 60_000, 3_600_000


async def dying_in_a_tool(on: Stage, *calls: ToolCall) -> str:
    """A session whose tools have begun and will never end."""
    gate = Gate()

    async def begins(request: TurnRequest, host: TurnHost) -> TurnEnd:
        if request.n > 1:
            await say(host, "and on")
            return TurnEnd(outcome="completed")
        for call in calls:
            await host.intent(call)
        await gate.wait()
        raise AssertionError

    sid = await on.new("begins", run=begins)
    await on.send(sid, "go")
    await gate.reached.wait()
    return sid


MAIL = ToolCall(id="c1", name="send_mail", args={"to": "all"})
WRITE = ToolCall(id="c2", name="write_file", args={"path": "a", "content": "x" * 9_000}, repeatable=True)


async def test_the_model_is_told_of_a_tool_whose_outcome_nobody_knows() -> None:
    async with stage() as on:
        sid = await dying_in_a_tool(on, MAIL, WRITE)
        async with stage(image=on.store.image(), clock=on.clock) as again:
            again.plays = on.plays
            await again.send(sid, "are you there?")
            await again.settle()
            (request,) = again.requests
            assert [(m.role, m.source) for m in request.messages] == [
                ("user", "human"),
                ("assistant", "model"),
                ("tool", "tool"),
                ("assistant", "model"),
                ("tool", "tool"),
                ("user", "session"),
                ("user", "human"),
            ]
            first, unknown, second, again_then = request.messages[1:5]
            assert [(c.name, c.args) for c in (*first.calls, *second.calls)] == [
                (MAIL.name, MAIL.args),
                (WRITE.name, WRITE.args),
            ]
            assert (unknown.call_id, again_then.call_id) == ("c1", "c2")
            assert "outcome unknown" in unknown.text
            assert "no harm" in again_then.text


async def test_uncertain_effects_are_listed_until_a_person_settles_them() -> None:
    async with stage() as on:
        sid = await dying_in_a_tool(on, MAIL, WRITE)
        assert [e["outcome"] for e in (await on.call(cm.EffectList(state="open"))).result["effects"]] == [
            "",
            "",
        ]
        async with stage(image=on.store.image(), clock=on.clock) as again:
            again.plays = on.plays
            (effect,) = (await again.call(cm.EffectList())).result["effects"]
            assert (effect["sid"], effect["tool"], effect["call"]) == (sid, "send_mail", "c1")
            assert (await again.call(cm.Why(sid=sid))).result["uncertain"] == [effect["id"]]
            done = await again.call(
                cm.EffectResolve(sid=sid, id=effect["id"], outcome="happened", note="seen")
            )
            assert done.result["uncertain"] == []
            assert (await again.call(cm.EffectList())).result["effects"] == []
            settled = (await again.call(cm.EffectList(sid=sid, state="any"))).result["effects"][-1]
            assert (settled["outcome"], settled["resolved_by"], settled["note"]) == (
                "happened",
                "uid:1000",
                "seen",
            )
            with pytest.raises(Refused, match="not_found"):
                await again.call(cm.EffectResolve(sid=sid, id=effect["id"], outcome="happened"))


async def test_a_boot_says_what_it_found_and_did() -> None:
    async with stage() as on:
        sid = await dying_in_a_tool(on, MAIL, WRITE)
        late = await on.new()
        await on.call(cm.Suspend(sid=late, until_ms=on.clock.now_ms() + MINUTE))
        on.clock.advance(HOUR)
        async with stage(image=on.store.image(), clock=on.clock) as again:
            found = again.router.boot.event(boot=again.store.boots, took_ms=5)
            assert found.interrupted == {sid: 1}
            assert (found.uncertain_count, found.repeatable_count) == (1, 1)
            assert list(found.uncertain.values()) == [sid]
            assert (found.overdue, found.spread_ms) == (1, boot_module.SPREAD_MS)
            assert (found.clean, found.sessions, found.down_ms) == (False, 2, HOUR)
            await again.router.say(found, principal="daemon")
            (told,) = (await again.call(cm.RecoveryGet())).result["boots"]
            assert told["interrupted"] == {sid: 1}
            assert told["boot"] == again.store.boots


async def test_a_boot_names_the_sessions_that_a_full_disk_let_it_not_take_over_yet() -> None:
    async with stage() as on:
        sid = await dying_in_a_tool(on, MAIL)
        full = Refused("storage_full", "no room")
        async with stage(image=on.store.image(), clock=on.clock, refuse=full) as again:
            found = again.router.boot.event(boot=again.store.boots, took_ms=5)
            assert found.postponed == {sid: "no room"}
            assert (found.interrupted, found.refused) == ({}, {})
            again.store.refuse = None
            await again.pump(1_000)
            assert (await again.state(sid)).turn is None
            found = again.router.boot.event(boot=again.store.boots, took_ms=5)
            assert (found.postponed, found.interrupted) == ({}, {sid: 1})


async def test_an_interrupted_session_whose_tool_never_reported_is_settled_too() -> None:
    stuck = anyio.Event()

    async def begins(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await host.intent(MAIL)
        with anyio.CancelScope(shield=True):  # a tool that does not hear the cancellation
            await stuck.wait()
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new("begins", run=begins)
        await on.send(sid)
        await on.until(lambda: on.active)
        with anyio.move_on_after(0.2):
            await on.call(cm.Interrupt(sid=sid))
        image = on.store.image()
        async with stage(image=image, clock=on.clock) as again:
            outcomes = await again.decoded(sid, ev.EffectOutcome)
            assert [e.outcome for e in outcomes] == ["uncertain"]
            assert await again.decoded(sid, ev.TurnInterrupted) == await on.decoded(sid, ev.TurnInterrupted)
        stuck.set()


# -- a row that somebody edited --------------------------------------------------------------------


async def a_suspended_session() -> tuple[bytes, str, str, Any]:
    async with stage() as on:
        sid, other = await on.new(), await on.new()
        await on.call(cm.Suspend(sid=sid, reason="do not touch"))
        return on.store.image(), sid, other, on.clock


async def test_a_session_whose_holds_were_edited_is_left_alone_and_the_others_work() -> None:
    image, sid, other, clock = await a_suspended_session()
    async with stage() as blank:
        twin = await blank.new()
        open_state = await blank.state(twin)
    connection = opening.connect(":memory:")
    connection.deserialize(image)
    state = msgspec.msgpack.decode(
        connection.execute("SELECT state FROM session WHERE sid = ?", (sid,)).fetchone()[0]
    )
    state["gate"] = msgspec.to_builtins(open_state.gate) | {"gen": 1}
    connection.execute(
        "UPDATE session SET holds = '', state = ? WHERE sid = ?", (msgspec.msgpack.encode(state), sid)
    )
    forged = connection.serialize()
    connection.close()
    async with stage(image=forged, clock=clock) as again:
        with pytest.raises(Refused, match=r"corrupt: session .* is left alone: its state has the holds"):
            await again.send(sid)
        assert "left alone" in (await again.call(cm.Why(sid=sid))).result["unwell"]
        assert (await again.send(other)).result["held"] is False
        await again.settle()
        assert {r.sid for r in again.requests} == {other}
        again.audit = _nothing  # type: ignore[method-assign]  (the forged row does not verify, as it should)


async def _nothing() -> None:
    return None


# -- unstable ------------------------------------------------------------------------------------------


async def test_after_three_starts_behind_crashes_cron_waits_five_minutes_and_people_do_not() -> None:
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.CronPut(sid=sid, job="j", expr="* * * * *", text="look"))
        image, clock = on.store.image(), on.clock
    for _ in range(2):
        async with stage(image=image, clock=clock) as again:
            image = again.store.image()
    async with stage(image=image, clock=clock, boot=Boot()) as third:
        began = clock.now_ms()
        assert third.router.boot.scheduled_from_ms == began + 5 * MINUTE
        await third.pump_through(4 * MINUTE)
        await third.settle()
        assert third.requests == []
        await third.send(sid, "hello")
        await third.settle()
        assert [list(r.messages)[-1].text for r in third.requests] == ["hello"]
        await third.pump_through(MINUTE + 1_000)
        await third.settle()
        assert [list(r.messages)[-1].text for r in third.requests] == ["hello", "look"]
        accounts = [o for o in await third.decoded(sid, ev.CronOccurrence) if o.result != "due"]
        dues = [o.due_ms for o in accounts]
        assert dues == list(range(dues[0], dues[-1] + 1, MINUTE)), "each moment of the wait is accounted for"


async def test_starts_in_order_make_nobody_wait() -> None:
    async with stage() as on:
        image, clock = on.store.image(), on.clock
    for _ in range(4):
        async with stage(image=image, clock=clock) as again:
            await again.router.say(ev.DaemonStopped(reason="drain"), principal="daemon")
            image = again.store.image()
    async with stage(image=image, clock=clock) as last:
        assert last.router.boot.scheduled_from_ms == 0
        assert last.router.boot.clean


# -- keys of commands that change nothing ----------------------------------------------------------------


async def test_a_command_that_changed_nothing_changes_nothing_when_it_is_asked_again_after_a_restart() -> (
    None
):
    async with stage() as on:
        sid = await on.new()
        first = await on.call(cm.Unsuspend(sid=sid), key="k")
        await on.call(cm.Suspend(sid=sid))
        async with stage(image=on.store.image(), clock=on.clock) as again:
            answer = await again.call(cm.Unsuspend(sid=sid), key="k")
            assert (answer.dup, answer.result["gate"]) == (True, first.result["gate"])
            assert [h.kind for h in (await again.state(sid)).gate.holds] == ["UserSuspend"]


async def test_an_unfreeze_that_found_nothing_frozen_does_not_thaw_a_later_freeze() -> None:
    async with stage() as on:
        await on.call(cm.DaemonUnfreeze(), key="k")
        await on.call(cm.DaemonFreeze())
        await on.call(cm.DaemonUnfreeze(), key="k")
        assert on.router.frozen
        await on.call(cm.DaemonUnfreeze())


async def test_keys_are_forgotten_after_seven_days(tmp_path: Any) -> None:
    async with stage() as on:
        sid = await on.new()
        await on.send(sid, "one")
        await on.call(cm.Send(sid=sid, text="x"), key="k")
        on.clock.advance(7 * 24 * HOUR + 1)
        await on.send(sid, "two")
        assert on.store._ledger.forget_keys() > 0
        rows = on.store._connection.execute("SELECT count(*) FROM idempotency WHERE key = 'k'").fetchone()
        assert rows == (0,)
