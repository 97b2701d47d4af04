"""A simulated week of twenty agents in virtual time: the real engine, the real journal on a disk, nothing waits."""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import anyio
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
BEGIN_MS = int(datetime(2026, 10, 28, tzinfo=UTC).timestamp() * 1_000)
POLICY = Policy(content_days=1, metadata_days=2, every_s=3_600)
"""Ages as short against a week as 30 and 400 days are against years, over the end of a month: everything must be
deleted in time, content each day, the metadata of October on the sixth."""

SAMPLES = 10
"""How often the resident memory is read each day, while all agents work."""

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


def resident_mib() -> float:
    """Resident memory of this process now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1_024
    raise AssertionError("the kernel does not say")


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.anyio
async def test_a_week_of_twenty_agents_stays_in_bounded_disk_and_memory(tmp_path: Path) -> None:
    clock = ManualClock(now_ms=BEGIN_MS)
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
        done = 0
        resident: list[float] = []

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
            nonlocal done
            for turn in range(turns):
                await dispatcher.dispatch(cm.Send(sid=sid, text=f"go on with part {turn}, please"), HUMAN)
                loop = await router.loop_of(sid)
                while loop.turn is not None:
                    await loop.turn.finished.wait()
                assert loop.session.turn is None
                assert not loop.session.inbox
                done += 1
                if done % (PER_DAY // SAMPLES) == 0:
                    resident.append(resident_mib())

        async def shift(sids: list[str]) -> None:
            async with anyio.create_task_group() as agents:
                for sid in sids:
                    agents.start_soon(work, sid, PER_DAY // AGENTS)

        crew = [await create(f"day0-{n}") for n in range(AGENTS // 2)]
        for day in range(DAYS):
            # Twenty agents at any time: each works for two days, half of them are new each morning.
            crew += [await create(f"day{day + 1}-{n}") for n in range(AGENTS // 2)]
            resident.clear()
            await shift(crew)
            for sid in crew[: AGENTS // 2]:
                await dispatcher.dispatch(cm.SessionEnd(sid=sid, reason="its work is over"), HUMAN)
            del crew[: AGENTS // 2]
            clock.advance(DAY_MS)
            swept = await upkeep.once()
            gc.collect()
            measures = await store.measures()
            days.append(
                {
                    "day": day + 1,
                    "events": store.head,
                    "content": swept["content"],
                    "blobs": swept["blobs"],
                    "months": swept["months"],
                    "sessions": swept["sessions"],
                    "disk_mib": round(
                        (measures["pages"] * measures["page_bytes"] + measures["wal_bytes"]) / 2**20, 1
                    ),
                    "used_mib": round(
                        (measures["pages"] - measures["free_pages"]) * measures["page_bytes"] / 2**20, 1
                    ),
                    "resident_mib": round(median(resident), 1),
                }
            )
            print(days[-1], flush=True)
        proof = await store.verify()
        print({key: proof[key] for key in ("ok", "checked", "took_ms")}, flush=True)
        assert [f for f in proof["findings"] if f["check"] != "I3"] == []  # virtual time: overdue is no fault
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await router.aclose()
    assert done == PER_DAY // AGENTS * AGENTS * DAYS
    assert days[-1]["events"] > 4 * done
    # From the second day on as much content is deleted as is added.
    content = [day["content"] for day in days]
    assert max(content[2:]) < min(content[2:]) * 1.1, days
    # Metadata grows by the same each day, until its month is old enough: then all of it goes, and its sessions.
    growth = [b["used_mib"] - a["used_mib"] for a, b in pairwise(days[1:5])]
    assert max(growth) < min(growth) * 1.2 + 0.5, days
    print({"metadata_bytes_a_turn": round(median(growth) * 2**20 / (PER_DAY // AGENTS * AGENTS))})
    assert [day["months"] for day in days] == [*[[]] * 5, ["2026-10"], []]
    assert days[5]["sessions"] >= AGENTS
    assert max(day["disk_mib"] for day in days[5:]) < days[4]["disk_mib"], days
    assert days[-1]["used_mib"] < days[3]["used_mib"], days
    # Memory is that of twenty agents, on every day.
    early, late = (
        median(day["resident_mib"] for day in days[1:4]),
        median(day["resident_mib"] for day in days[4:]),
    )
    assert abs(late - early) < early * 0.1, days
