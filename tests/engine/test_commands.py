"""The dispatcher: keys, conditions, names, batches, the whole house."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from loopd.core.access import Answer, Caller
from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.policy_commands import PEOPLE_ONLY
from loopd_protocol.sources import Source
from tests.engine.stage import AGENT, CHANNEL, HUMAN, Gate, Play, Stage, say, stage

pytestmark = pytest.mark.anyio


async def refusal(on: Stage, command: cm.Command, caller: Caller = HUMAN, **given: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        await on.call(command, caller, **given)
    return refused.value


async def suspended(on: Stage, **given: Any) -> str:
    sid = await on.new(**given)
    await on.call(cm.Suspend(sid=sid, quarantine=True))
    return sid


async def accepted(on: Stage, sid: str) -> list[str]:
    return [event.text for event in await on.decoded(sid, ev.EnvelopeAccepted)]


# -- idempotency -------------------------------------------------------------------------------------


async def test_the_same_key_and_command_again_gets_the_same_answer_and_happens_once() -> None:
    async with stage() as on:
        sid = await suspended(on)
        first = await on.send(sid, "x", key="k1")
        again = await on.send(sid, "x", key="k1")
        assert not first.dup
        assert again.dup
        assert (again.seq, again.result) == (first.seq, first.result)
        assert await accepted(on, sid) == ["x"]


@pytest.mark.parametrize("other", ["text", "session", "type"])
async def test_a_key_that_was_used_for_another_command_is_a_conflict(other: str) -> None:
    async with stage() as on:
        sid, second = await suspended(on), await suspended(on)
        await on.send(sid, "x", key="k1")
        command: cm.Command = {
            "text": cm.Send(sid=sid, text="y"),
            "session": cm.Send(sid=second, text="x"),
            "type": cm.Unsuspend(sid=sid),
        }[other]
        assert (await refusal(on, command, key="k1")).code == "idempotency_conflict"
        assert await accepted(on, sid) == ["x"]


async def test_a_key_belongs_to_its_principal_and_survives_a_restart() -> None:
    async with stage() as on:
        sid = await suspended(on)
        first = await on.send(sid, "x", key="k1")
        await on.send(sid, "x", caller=AGENT, key="k1")
        async with stage(image=on.store.image(), clock=on.clock) as again:
            answer = await again.send(sid, "x", key="k1")
            assert (answer.dup, answer.seq, answer.result) == (True, first.seq, first.result)
            assert await accepted(again, sid) == ["x", "x"]


@pytest.mark.parametrize("kind", ["send", "create", "freeze", "interrupt", "cron"])
async def test_concurrent_duplicates_happen_once(kind: str) -> None:
    async with stage() as on:
        sid = await suspended(on)
        command: cm.Command = {
            "send": cm.Send(sid=sid, text="x"),
            "create": cm.SessionCreate(driver=cm.ScriptedSpec(script="plain"), name="twin"),
            "freeze": cm.DaemonFreeze(),
            "interrupt": cm.Interrupt(sid=sid),
            "cron": cm.CronPut(sid=sid, job="j", expr="0 0 1 1 *", text="x"),
        }[kind]
        head = on.store.head
        answers: list[Answer] = []

        async def call() -> None:
            answers.append(await on.call(command, key="k"))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(call)
        assert sorted(answer.dup for answer in answers) == [False] + [True] * 7
        assert len({answer.seq for answer in answers}) == 1
        grown = [e.kind for e in await on.events() if e.seq > head]
        assert len(grown) == len(set(grown)), f"something happened twice: {grown}"


async def test_a_command_whose_caller_went_away_before_its_commit_is_not_carried_out_again() -> None:
    async with stage() as on:
        sid = await suspended(on)
        on.store.held = True
        answers: list[Answer] = []
        first = anyio.CancelScope()

        async def call(scope: anyio.CancelScope) -> None:
            with scope:
                answers.append(await on.send(sid, "x", key="k"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, first)
            await on.settle()
            first.cancel()
            await on.settle()
            tasks.start_soon(call, anyio.CancelScope())
            await on.settle()
            on.store.release()
        assert await accepted(on, sid) == ["x"]
        assert answers[-1].dup


async def test_a_key_is_free_again_when_its_command_was_refused() -> None:
    async with stage() as on:
        sid = await suspended(on)
        on.store.refuse = Refused("storage_full", "no room")
        assert (await refusal(on, cm.Send(sid=sid, text="x"), key="k")).code == "storage_full"
        on.store.refuse = None
        assert not (await on.send(sid, "x", key="k")).dup
        assert await accepted(on, sid) == ["x"]


async def test_a_command_that_changed_nothing_keeps_its_key_as_well() -> None:
    """Its retry must not take effect later, when the world has changed."""
    async with stage() as on:
        sid = await on.new()
        first = await on.call(cm.Unsuspend(sid=sid), key="k")
        await on.call(cm.Suspend(sid=sid))
        again = await on.call(cm.Unsuspend(sid=sid), key="k")
        assert again.dup
        assert again.result == first.result
        assert [h.kind for h in (await on.state(sid)).gate.holds] == ["UserSuspend"]
        assert (await refusal(on, cm.GateOpen(sid=sid), key="k")).code == "idempotency_conflict"


async def test_dedupe_is_a_key_of_the_session_whoever_sends() -> None:
    async with stage() as on:
        sid, other = await suspended(on), await suspended(on)
        first = await on.call(cm.Send(sid=sid, text="x", dedupe="m1"))
        again = await on.call(cm.Send(sid=sid, text="x again", dedupe="m1"), CHANNEL)
        elsewhere = await on.call(cm.Send(sid=other, text="x", dedupe="m1"))
        assert (again.dup, again.result["id"], again.seq) == (True, first.result["id"], first.seq)
        assert not elsewhere.dup
        assert await accepted(on, sid) == ["x"]


async def test_a_key_beside_dedupe_gets_the_seq_of_its_envelope_whatever_was_written_meanwhile() -> None:
    async with stage() as on:
        sid, other = await suspended(on), await suspended(on)
        command = cm.Send(sid=sid, text="x", dedupe="m1")
        told = []

        async def keyed() -> None:
            told.append(await on.call(command, key="k1"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keyed)
            for n in range(5):
                tasks.start_soon(on.call, cm.Send(sid=other, text=f"note {n}"))
        (first,) = told
        assert on.store.head > first.seq
        async with stage(image=on.store.image(), clock=on.clock) as again:
            answer = await again.call(command, key="k1")
            assert (answer.dup, answer.seq, answer.result) == (True, first.seq, first.result)


async def test_concurrent_sends_with_one_dedupe_are_one_envelope() -> None:
    async with stage() as on:
        sid = await suspended(on)
        async with anyio.create_task_group() as tasks:
            for caller in (HUMAN, AGENT, CHANNEL) * 3:
                tasks.start_soon(on.call, cm.Send(sid=sid, text="x", dedupe="m1"), caller)
        assert await accepted(on, sid) == ["x"]


# -- preconditions -----------------------------------------------------------------------------------


async def test_a_condition_that_does_not_hold_changes_nothing() -> None:
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await gate.wait()
        await say(host)
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new(run=waits)
        await on.send(sid)
        await gate.reached.wait()
        session = await on.state(sid)
        head = on.store.head
        for wrong in (
            {"if_rev": session.ss - 1},
            {"if_gate_gen": session.gate.gen + 1},
            {"if_turn": 2},
            {"if_turn": 0},
        ):
            refused = await refusal(on, cm.Suspend(sid=sid), **wrong)
            assert refused.code == "precondition_failed"
            assert refused.path == f"$.{next(iter(wrong))}"
        assert on.store.head == head
        await on.call(cm.Suspend(sid=sid), if_rev=session.ss, if_gate_gen=session.gate.gen, if_turn=1)
        gate.open()


async def test_of_two_commands_with_one_revision_the_first_wins() -> None:
    async with stage() as on:
        sid = await on.new()
        rev = (await on.state(sid)).ss
        codes: list[str] = []

        async def call(text: str) -> None:
            try:
                await on.call(cm.GoalSet(sid=sid, text=text), if_rev=rev)
                codes.append("ok")
            except Refused as refused:
                codes.append(refused.code)

        async with anyio.create_task_group() as tasks:
            for text in "abc":
                tasks.start_soon(call, text)
        assert sorted(codes) == ["ok", "precondition_failed", "precondition_failed"]


# -- names -------------------------------------------------------------------------------------------


async def test_a_session_is_found_by_its_name_and_its_name_is_free_when_it_ended() -> None:
    async with stage() as on:
        sid = await on.new(name="worker")
        assert (await on.call(cm.SessionGet(sid="worker"))).result["sid"] == sid
        taken = await refusal(on, cm.SessionCreate(driver=cm.ScriptedSpec(script="plain"), name="worker"))
        assert taken.code == "already_exists"
        await on.call(cm.SessionEnd(sid="worker"))
        for ref in (sid, "worker"):  # an ended session keeps its name until it is taken again
            assert (await on.call(cm.SessionGet(sid=ref))).result["status"] == "aborted_constraint"
        second = await on.new(name="worker")
        assert second != sid
        async with stage(image=on.store.image(), clock=on.clock) as again:
            assert (await again.call(cm.SessionGet(sid="worker"))).result["sid"] == second


async def test_sessions_without_a_name_get_one_each_also_when_they_are_made_at_once() -> None:
    async with stage() as on:
        await on.new(name="s3")
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(on.new)
        rows = (await on.call(cm.SessionList())).result["sessions"]
        assert len({row["name"] for row in rows}) == 7


async def test_a_name_is_taken_from_the_moment_it_is_asked_for_and_free_after_a_failure() -> None:
    async with stage() as on:
        results: list[str] = []

        async def create() -> None:
            try:
                await on.new(name="one")
                results.append("ok")
            except Refused as refused:
                results.append(refused.code)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(create)
        assert sorted(results) == ["already_exists"] * 3 + ["ok"]
        wrong = cm.SessionCreate(driver=cm.ScriptedSpec(script="impossible"), name="two")
        assert (await refusal(on, wrong)).code == "invalid"
        await on.new(name="two")


@pytest.mark.parametrize(
    "command",
    [
        cm.SessionGet(sid="nobody"),
        cm.Send(sid="nobody", text="x"),
        cm.Suspend(sid="nobody"),
        cm.Why(sid="nobody"),
        cm.InboxList(sid="nobody"),
        cm.HistoryPage(sid="nobody"),
        cm.TurnGet(sid="nobody"),
        cm.CronList(sid="nobody"),
        cm.CronHistory(sid="nobody"),
        cm.Verify(sid="nobody"),
        cm.SessionList(selector=cm.Selector(sids=("nobody",))),
        cm.Batch(selector=cm.Selector(sids=("nobody",)), cmd=cm.Suspend(sid="x")),
    ],
    ids=lambda command: command.type,
)
async def test_an_unknown_session_is_not_found_and_named(command: cm.Command) -> None:
    async with stage() as on:
        refused = await refusal(on, command)
        assert refused.code == "not_found"
        assert "'nobody'" in refused.message
        assert on.store.head == 0


async def test_what_is_not_there_in_a_session_is_not_found() -> None:
    async with stage() as on:
        sid = await on.new()
        for command in (
            cm.CronRun(sid=sid, job="j"),
            cm.CronNext(sid=sid, job="j"),
            cm.InboxDrop(sid=sid, id="env_9"),
            cm.TurnGet(sid=sid, n=1),
        ):
            assert (await refusal(on, command)).code == "not_found", command


async def test_settings_that_contradict_the_registry_are_refused_and_nothing_is_created() -> None:
    async with stage(max_sessions=2) as on:
        for given in ({"set": {"gate.inbox": 1}}, {"set": {"gate.inbox_cap": 0}}, {"preset": "softened"}):
            driver = cm.ScriptedSpec(script="plain")
            assert (await refusal(on, cm.SessionCreate(driver=driver, **given))).code in {
                "invalid",
                "unknown_field",
            }
        assert on.store.head == 0
        await on.new()
        sid = await on.new()
        assert (
            await refusal(on, cm.SessionCreate(driver=cm.ScriptedSpec(script="plain")))
        ).code == "overloaded"
        await on.call(cm.SessionEnd(sid=sid))
        await on.new()


# -- who may ---------------------------------------------------------------------------------------


async def test_a_caller_without_the_scope_is_refused_with_an_event_and_changes_nothing() -> None:
    async with stage() as on:
        sid = await on.new()
        reader = Caller(principal="token:r", scopes=frozenset({"read"}), source=Source.CHANNEL)
        for command in (
            cm.Suspend(sid=sid),
            cm.DaemonFreeze(),
            cm.HistoryPage(sid=sid),
            cm.Batch(selector=cm.Selector(), cmd=cm.Suspend(sid="x")),
        ):
            assert (await refusal(on, command, reader)).code == "forbidden"
        denied = [ev.decode(e.body) for e in await on.events(None, "command.denied")]
        assert [(d.principal, d.cmd) for d in denied] == [  # type: ignore[attr-defined]
            ("token:r", name) for name in ("suspend", "daemon.freeze", "history.page", "batch")
        ]
        assert (await on.state(sid)).gate.is_open


async def test_the_source_is_that_of_the_connection() -> None:
    async with stage() as on:
        sid = await suspended(on)
        system = Caller(principal="x", scopes=HUMAN.scopes, source=Source.SYSTEM)
        for caller in (HUMAN, AGENT, CHANNEL, system):
            await on.send(sid, caller=caller)
        assert [w.source.value for w in (await on.state(sid)).inbox] == [
            "human",
            "agent",
            "channel",
            "channel",
        ]


# -- batch -----------------------------------------------------------------------------------------


async def test_a_batch_names_what_it_would_touch_and_does_nothing_else_when_it_is_dry() -> None:
    async with stage() as on:
        red = [await on.new(labels={"team": "red"}) for _ in range(2)]
        blue = await on.new(labels={"team": "blue"})
        ended = await on.new(labels={"team": "red"})
        await on.call(cm.SessionEnd(sid=ended))
        head = on.store.head
        batch = cm.Batch(selector=cm.Selector(labels={"team": "red"}), cmd=cm.Suspend(sid="x"), dry_run=True)
        would = (await on.call(batch)).result["would"]
        assert [row["sid"] for row in would] == red
        assert on.store.head == head
        done = await on.call(cm.Batch(selector=cm.Selector(labels={"team": "red"}), cmd=cm.Suspend(sid="x")))
        assert [(r["sid"], r["ok"]) for r in done.result["results"]] == [(sid, True) for sid in red]
        assert (await on.state(blue)).gate.is_open
        assert not (await on.state(red[0])).gate.is_open


async def test_one_session_that_refuses_does_not_stop_a_batch() -> None:
    async with stage() as on:
        first, second, third = [await on.new() for _ in range(3)]
        await on.call(cm.SessionEnd(sid=second))
        batch = cm.Batch(
            selector=cm.Selector(sids=(first, second, third), ended=True), cmd=cm.Send(sid="x", text="hi")
        )
        results = (await on.call(batch)).result["results"]
        assert [r["ok"] for r in results] == [True, False, True]
        assert results[1]["error"]["code"] == "session_terminal"


FOR_MANY: list[cm.Command] = [
    cm.Suspend(sid="x"),
    cm.Unsuspend(sid="x"),
    cm.Interrupt(sid="x"),
    cm.GateOpen(sid="x"),
    cm.GateExtend(sid="x", kind="UserSuspend", until_ms=2_000_000_000_000),
    cm.GoalSet(sid="x", text="another"),
    cm.GoalPause(sid="x"),
    cm.GoalResume(sid="x"),
    cm.GoalInfeasible(sid="x"),
    cm.GoalComplete(sid="x"),
    cm.GoalClear(sid="x"),
    cm.Send(sid="x", text="hi"),
    cm.SessionEnd(sid="x"),
    cm.SessionResume(sid="x"),
    cm.SessionSet(sid="x", set={"rules.repeated_text.threshold": 9}),
    cm.BudgetSet(sid="x", kind="turns"),
    cm.CronPut(sid="x", job="j", expr="0 4 * * *", text="t"),
    cm.CronPause(sid="x", job="j"),
    cm.CronResume(sid="x", job="j"),
    cm.CronRemove(sid="x", job="j"),
    cm.CronRun(sid="x", job="j"),
]
"""All that can be done to many but legal holds: their desk is not on this stage."""


def test_the_list_of_what_is_for_many_is_whole() -> None:
    assert {type(command) for command in FOR_MANY} == set(cm.ForMany.__args__) - {
        cm.RetentionHold,
        cm.RetentionRelease,
    }


@pytest.mark.parametrize("command", FOR_MANY, ids=lambda command: command.type)
async def test_each_change_is_made_to_many_and_one_refusal_stops_none(command: Any) -> None:
    async with stage() as on:
        sids = [await on.new(labels={"team": "red"}) for _ in range(3)]
        for sid in sids:
            await on.call(cm.CronPut(sid=sid, job="j", expr="0 3 * * *", text="t"))
            await on.call(cm.Suspend(sid=sid, until_ms=1_900_000_000_000, quarantine=True))
            await on.call(cm.GoalSet(sid=sid, text="win"))
            match command:
                case cm.CronResume():
                    await on.call(cm.CronPause(sid=sid, job="j"))
                case cm.GateOpen():
                    await on.call(cm.Interrupt(sid=sid))
                case cm.BudgetSet() if sid != sids[1]:
                    await on.call(cm.BudgetSet(sid=sid, kind="turns", limit=90))
        ended = [sids[0], sids[2]] if isinstance(command, cm.SessionResume) else [sids[1]]
        for sid in ended:
            await on.call(cm.SessionEnd(sid=sid))
        await on.settle()
        selector = cm.Selector(labels={"team": "red"}, ended=True)
        head, states = on.store.head, [await on.state(sid) for sid in sids]
        dry = await on.call(cm.Batch(selector=selector, cmd=command, dry_run=True))
        assert [row["sid"] for row in dry.result["would"]] == sids
        await on.settle()
        assert (on.store.head, [await on.state(sid) for sid in sids]) == (head, states)
        results = (await on.call(cm.Batch(selector=selector, cmd=command))).result["results"]
        assert [(row["sid"], row["ok"]) for row in results] == list(
            zip(sids, (True, False, True), strict=True)
        )
        assert results[1]["error"]["code"]
        assert (await on.state(sids[1])) == states[1]
        assert all([await on.state(sids[n]) != states[n] for n in (0, 2)])


@pytest.mark.parametrize("command", FOR_MANY, ids=lambda command: command.type)
async def test_a_batch_needs_the_scope_of_what_it_does(command: Any) -> None:
    async with stage() as on:
        await on.new()
        needs = cm.SCOPES[command.type]
        dry = cm.Batch(selector=cm.Selector(), cmd=command, dry_run=True)
        all_scopes = frozenset(cm.SCOPES.values())
        lacking = Caller(principal="token:l", scopes=all_scopes - {needs})
        assert (await refusal(on, dry, lacking)).code == "forbidden"
        enough = Caller(principal="token:e", scopes=frozenset({"read", needs}))
        assert len((await on.call(dry, enough)).result["would"]) == 1
        if command.type in PEOPLE_ONLY:
            assert (await refusal(on, dry, AGENT)).code == "forbidden"


async def test_a_batch_sets_no_limit_of_a_label() -> None:
    async with stage() as on:
        await on.new()
        command = cm.BudgetSet(kind="turns", limit=9, label="team=red")
        (row,) = (await on.call(cm.Batch(selector=cm.Selector(), cmd=command))).result["results"]
        assert (row["ok"], row["error"]["code"]) == (False, "invalid")


# -- the whole house --------------------------------------------------------------------------------


async def test_a_freeze_holds_everything_over_restarts_until_it_is_lifted() -> None:
    async with stage() as on:
        sid = await on.new(goal="win")
        waiting = await on.new()
        await on.call(cm.DaemonFreeze(reason="maintenance"))
        held = await on.send(waiting)
        assert (held.result["held"], held.result["by"]) == (True, ["freeze"])
        await on.pump_through(3_600_000)
        assert on.requests == []
        assert (await on.call(cm.Why(sid=sid))).result["house"] == "freeze"
        image = on.store.image()
    async with stage(image=image, clock=on.clock) as again:
        await again.pump_through(3_600_000)
        assert again.requests == []
        await again.call(cm.DaemonUnfreeze())
        await again.settle()
        await again.pump_through(2_000)
        assert {r.sid for r in again.requests} == {sid, waiting}
        image = again.store.image()
    async with stage(image=image, clock=on.clock) as third:
        await third.pump_through(2_000)
        assert third.requests, "thawed once is thawed"


async def test_a_freeze_that_could_not_be_written_does_not_stand() -> None:
    async with stage() as on:
        sid = await on.new()
        on.store.refuse = Refused("storage_full", "no room")
        assert (await refusal(on, cm.DaemonFreeze())).code == "storage_full"
        on.store.refuse = None
        await on.send(sid)
        await on.settle()
        assert len(on.requests) == 1


async def test_nothing_starts_between_a_freeze_and_its_commit() -> None:
    async with stage() as on:
        sid = await on.new()
        on.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.call, cm.DaemonFreeze())
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(on.send, sid)
            await on.settle()
            on.store.release()
        await on.settle()
        frozen = (await on.events(None, "daemon.frozen"))[0].seq
        assert not [e for e in await on.events(sid, "turn.started") if e.seq > frozen]


async def test_a_frozen_house_does_not_keep_the_timers_busy() -> None:
    async with stage() as on:
        await on.new(goal="win")
        await on.call(cm.DaemonFreeze())
        await on.pump(2_000)
        due = on.router.timers.next_ms()
        assert due is None or due > on.clock.now_ms()


async def test_a_draining_daemon_takes_no_work_and_answers_questions() -> None:
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await gate.wait()
        await say(host)
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new(run=waits, goal="win")
        await on.send(sid)
        await gate.reached.wait()
        assert (await on.call(cm.DaemonDrain(budget_ms=5_000))).result == {"draining": True, "running": 1}
        assert on.stops == [("drain", 5_000)]
        for command in (
            cm.Send(sid=sid, text="x"),
            cm.Suspend(sid=sid),
            cm.SessionCreate(driver=cm.ScriptedSpec(script="plain")),
        ):
            refused = await refusal(on, command)
            assert refused.code == "draining"
            assert refused.retry_after_ms
        assert (await on.call(cm.Why(sid=sid))).result["turn"]["n"] == 1
        gate.open()
        await on.router.finished()
        await on.pump_through(60_000)
        assert len(on.requests) == 1, "no continuation while draining"


async def test_a_stop_cuts_what_runs_with_its_mark() -> None:
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        host.delta("so far")
        await gate.wait()
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sids = [await on.new("waits", run=waits) for _ in range(3)]
        for sid in sids:
            await on.send(sid)
        await gate.reached.wait()
        await on.call(cm.DaemonStop())
        assert await on.router.cut_all("drain", by="daemon") == 3
        for sid in sids:
            (cut,) = await on.decoded(sid, ev.TurnInterrupted)
            assert (cut.cause, cut.partial) == ("drain", "so far")
        assert on.active == set()


async def test_only_turns_that_were_cut_are_counted_as_cut() -> None:
    gates = [Gate() for _ in range(3)]

    def until(gate: Gate) -> Play:
        async def run(request: TurnRequest, host: TurnHost) -> TurnEnd:
            await gate.wait()
            return TurnEnd(outcome="completed")

        return run

    async with stage() as on, anyio.create_task_group() as tasks:
        sids = [await on.new(f"waits {n}", run=until(gate)) for n, gate in enumerate(gates)]
        for sid, gate in zip(sids, gates, strict=True):
            await on.send(sid)
            await gate.reached.wait()
        on.store.held = True
        counts: list[int] = []

        async def cut() -> None:
            counts.append(await on.router.cut_all("drain", by="daemon"))

        tasks.start_soon(cut)
        await on.settle()
        gates[2].open()  # its driver ends by itself while the first mark is on its way to the disk
        await on.settle()
        on.store.release()
        await on.until(lambda: counts)
        marked = [await on.decoded(sid, ev.TurnInterrupted) for sid in sids]
        assert counts == [sum(map(len, marked))] == [3]


# -- answers ---------------------------------------------------------------------------------------


async def test_suspend_answers_with_the_turn_in_flight_and_the_seq_that_proves_it() -> None:
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await gate.wait()
        await say(host)
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new(run=waits)
        await on.send(sid)
        await gate.reached.wait()
        answer = await on.call(cm.Suspend(sid=sid, reason="look"))
        assert answer.result["gate"] == "closed"
        assert answer.result["turn"]["will"] == "finish"
        assert answer.result["turn"]["n"] == 1
        stored = {e.seq: e for e in await on.events(sid)}
        assert stored[answer.seq].kind == "gate.changed"
        gate.open()
        await on.settle()
        assert (await on.state(sid)).turn is None


async def test_what_waits_is_listed_with_its_text_and_can_be_dropped() -> None:
    async with stage() as on:
        sid = await suspended(on)
        first, second = await on.send(sid, "one"), await on.send(sid, "two")
        listed = (await on.call(cm.InboxList(sid=sid))).result["envelopes"]
        assert [(e["id"], e["text"], e["by"]) for e in listed] == [
            (first.result["id"], "one", ["UserSuspend"]),
            (second.result["id"], "two", ["UserSuspend"]),
        ]
        await on.call(cm.InboxDrop(sid=sid, id=first.result["id"]))
        await on.call(cm.Unsuspend(sid=sid))
        await on.settle()
        assert [m.text for m in on.requests[-1].messages] == ["two"]


async def test_history_is_paged_forwards_and_backwards_without_a_hole() -> None:
    async with stage() as on:
        sid = await suspended(on)
        for i in range(25):
            await on.send(sid, f"m{i}")
        every = [e.seq for e in await on.events(sid)]
        forwards: list[int] = []
        while True:
            after = forwards[-1] if forwards else 0
            page = (await on.call(cm.HistoryPage(sid=sid, after=after, limit=7))).result
            forwards += [e["seq"] for e in page["events"]]
            if not page["more"]:
                break
        assert forwards == every
        backwards: list[int] = []
        while True:
            page = (
                await on.call(cm.HistoryPage(sid=sid, before=backwards[0] if backwards else None, limit=7))
            ).result
            backwards = [e["seq"] for e in page["events"]] + backwards
            if not page["more"]:
                break
        assert backwards == every


async def test_lists_are_paged_and_sorted() -> None:
    async with stage() as on:
        for name in ("c", "a", "b"):
            await on.new(name=name)
        for sort, order in (("created", "cab"), ("name", "abc")):
            names, after = "", None
            while True:
                page = (await on.call(cm.SessionList(sort=sort, limit=2, after=after))).result  # type: ignore[arg-type]
                names += "".join(row["name"] for row in page["sessions"])
                after = page["next"]
                if after is None:
                    break
            assert names == order


async def test_the_next_moments_of_a_job_or_an_expression_are_shown() -> None:
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.CronPut(sid=sid, job="j", expr="0 * * * *", text="x"))
        now = on.clock.now_ms()
        hours = [now + i * 3_600_000 for i in (1, 2, 3)]
        assert (await on.call(cm.CronNext(sid=sid, job="j", count=3))).result["next"] == hours
        assert (await on.call(cm.CronNext(expr="0 * * * *", count=3))).result["next"] == hours
        assert (await refusal(on, cm.CronNext())).code == "invalid"
        await on.call(cm.CronPause(sid=sid, job="j"))
        assert (await on.call(cm.CronNext(sid=sid, job="j"))).result["next"] == []


async def test_a_run_by_hand_goes_through_the_gate_and_is_in_the_history_of_the_job() -> None:
    async with stage() as on:
        sid = await suspended(on)
        await on.call(cm.CronPut(sid=sid, job="j", expr="0 * * * *", text="look"))
        answer = await on.call(cm.CronRun(sid=sid, job="j"))
        assert (answer.result["held"], answer.result["by"]) == (True, ["UserSuspend"])
        await on.call(cm.CronRun(sid=sid, job="j"))
        await on.call(cm.Unsuspend(sid=sid))
        await on.settle()
        rows = (await on.call(cm.CronHistory(sid=sid, job="j"))).result["occurrences"]
        assert [row["result"] for row in rows] == ["late", "coalesced"]
        assert on.requests[-1].trigger == "cron"
