"""A simulated week of twenty agents in virtual time: the real engine, the real journal on a disk, nothing waits."""

from __future__ import annotations

import gc
import os
import resource
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from loopd.core.access import ALL_SCOPES, Caller
from loopd.core.conversation import StepDone, TurnEnd, TurnRequest
from loopd.engine.clock import ManualClock
from loopd.engine.commands import Dispatcher
from loopd.engine.ports import TurnHost
from loopd.engine.queries import Queries
from loopd.engine.retention import Policy
from loopd.engine.router import Router
from loopd.engine.upkeep import Upkeep
from loopd.store import SqliteStore
from loopd_protocol import commands as cm
from loopd_protocol.command import DAY_MS
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Source

HUMAN = Caller(principal="uid:1000", scopes=ALL_SCOPES, source=Source.HUMAN)
AGENTS = 20
TURNS = int(os.environ.get("LOOPD_WEEK_TURNS", "200000"))
DAYS = 7
PER_DAY = TURNS // DAYS
POLICY = Policy(content_days=1, metadata_days=2, every_s=3_600)
"""Ages as short against a week as 30 and 400 days are against years: everything must be deleted in time."""

NO_RULES = {
    f"rules.{rule}.enabled": False
    for rule in ("repeated_text", "barren_streak", "tool_repetition", "progress_stall")
}
RESULT = "line after line of what the tool printed, as tools do, " * 30


class Agent:
    """Takes turns at once: two steps with a tool call each."""

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        for step in range(2):
            call = ToolCall(
                id=f"c{request.n}.{step}",
                name="write_file",
                args={"path": f"{request.n}.md"},
                ok=True,
                result=f"{request.sid} {request.n} {step} {RESULT}",
            )
            await host.step(
                StepDone(
                    text=f"Part {request.n}.{step} of {request.sid} is written.",
                    calls=(call,),
                    usage=Usage(input_tokens=900, output_tokens=80),
                )
            )
        return TurnEnd(outcome="completed")

    def render(self, request: TurnRequest) -> bytes | None:
        return None

    async def aclose(self) -> None:
        pass


def resident_kib() -> int:
    """Resident memory of this process now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.anyio
async def test_a_week_of_twenty_agents_stays_in_bounded_disk_and_memory(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / "journal.sqlite"
    days: list[dict[str, Any]] = []
    async with (
        await SqliteStore.open(path, boot="week", now_ms=clock.now_ms()) as store,
        anyio.create_task_group() as tasks,
    ):
        router = Router(store=store, clock=clock, make_driver=lambda *_: Agent(), on_delta=lambda *_: None)
        await router.open(tasks, frozen=False)
        upkeep = Upkeep(router, store, POLICY, pause_share=0)
        dispatcher = Dispatcher(router, Queries(router, dict), lambda *_: None)

        async def create(name: str) -> str:
            spec = {
                "t": "session.create",
                "name": name,
                "driver": {"kind": "scripted", "script": "x"},
                "preset": "published",
                "set": NO_RULES,
            }
            made = await dispatcher.dispatch(msgspec.convert(spec, cm.SessionCreate), HUMAN)
            return str(made.result["sid"])

        async def work(sid: str, turns: int) -> None:
            for turn in range(turns):
                await dispatcher.dispatch(cm.Send(sid=sid, text=f"go on with part {turn}, please"), HUMAN)
                loop = await router.loop_of(sid)
                while loop.session.turn is not None or loop.session.inbox or loop.turn is not None:
                    await anyio.lowlevel.checkpoint()

        async def shift(names: list[str]) -> None:
            sids = [await create(name) for name in names]
            async with anyio.create_task_group() as agents:
                for sid in sids:
                    agents.start_soon(work, sid, PER_DAY // AGENTS)
            for sid in sids[: AGENTS // 2]:  # half of them end, half live on and keep their context
                await dispatcher.dispatch(cm.SessionEnd(sid=sid, reason="the day is over"), HUMAN)

        for day in range(DAYS):
            await shift([f"day{day}-{n}" for n in range(AGENTS)])
            clock.advance(DAY_MS)
            done = await upkeep.once()
            gc.collect()
            measures = await store.measures()
            days.append(
                {
                    "day": day + 1,
                    "events": store.head,
                    "content": done["content"],
                    "blobs": done["blobs"],
                    "slowest_step_ms": done["slowest_step_ms"],
                    "disk_mib": round(
                        (measures["pages"] * measures["page_bytes"] + measures["wal_bytes"]) / 2**20, 1
                    ),
                    "used_mib": round(
                        (measures["pages"] - measures["free_pages"]) * measures["page_bytes"] / 2**20, 1
                    ),
                    "resident_mib": round(resident_kib() / 1_024, 1),
                }
            )
            print(days[-1])
        proof = await store.verify()
        assert [f for f in proof["findings"] if f["check"] != "I3"] == []  # virtual time: overdue is no fault
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await router.aclose()
    turns = sum(PER_DAY // AGENTS * AGENTS for _ in range(DAYS))
    assert days[-1]["events"] > 4 * turns
    # From the second day on as much is deleted as is added; metadata waits for its month to end.
    content = [day["content"] for day in days]
    assert all(content[day] > 0 for day in range(1, DAYS))
    growth = [b["used_mib"] - a["used_mib"] for a, b in pairwise(days[2:])]
    assert max(growth) < days[0]["used_mib"] * 0.8, days
    assert days[-1]["resident_mib"] < days[2]["resident_mib"] * 1.25 + 16, days
