"""Write the golden database of the newest schema: `python -m tests.golden.store.write`.

It refuses to overwrite: a released file is evidence.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio

from loopd.core.writes import Append, Fact, Idempotency
from loopd.engine.clock import ManualClock
from loopd.engine.retention import Policy
from loopd.engine.router import Router
from loopd.engine.upkeep import Upkeep
from loopd.store import SqliteStore
from loopd.store.schema import migrations
from loopd.testing.store_suite import Story
from loopd_protocol import events as ev
from loopd_protocol.command import DAY_MS
from loopd_protocol.holds import Degeneration, UserSuspend
from loopd_protocol.retention_events import RetentionHeld
from loopd_protocol.sources import Source

HERE = Path(__file__).parent


async def fill(path: Path) -> dict[str, object]:
    """A little of everything; returns what the test expects."""
    blobs = [b'{"messages":[]}' * 400, bytes(range(256))]
    async with await SqliteStore.open(path, boot="bt_golden", now_ms=1_000) as store:
        ancient = Story(3, at_ms=2_000)
        await store.submit(ancient.created("ancient"))
        await store.submit(ancient.tell(*ancient.turn("It is done.")))
        await store.submit(ancient.tell(ev.SessionEnded(status="done_success", stop_reason="goal")))
        started = ev.DaemonStarted(
            version="0.1.0", boot="bt_golden", pid=4_711, epoch=1, log=store.cursor_log
        )
        await store.submit(Append(sid=None, at_ms=1_000, facts=(Fact(event=started, ss=0),)))
        night, ended = Story(1, at_ms=70 * DAY_MS), Story(2, at_ms=70 * DAY_MS)
        await store.submit(night.created("night"))
        await store.submit(ended.created("ended"))
        goal = ev.GoalChanged(status="active", origin="user", text="keep the tests green")
        await store.submit(night.tell(goal))
        for index in range(7):
            envelope = night.envelope(f"look at {index}")
            await store.submit(
                night.tell(envelope, blobs=[blobs[index % 2]]),
            )
            await store.submit(night.tell(*night.turn("16/100. Not complete.", envelopes=(envelope.id,))))
        await store.submit(
            night.tell(
                ev.CronChanged(job="hourly", change="put", expr="0 * * * *", text="go on", next_ms=3_600_000),
                ev.CronOccurrence(job="hourly", due_ms=60_000, result="missed", next_ms=7_200_000),
                ev.WakeSet(id="w1", due_ms=90_000, note="look again"),
                ev.EffectIntent(
                    id="f1", n=7, call="c1", tool="shell", args_sha256="ab" * 32, tool_class="exec"
                ),
                ev.EffectOutcome(id="f1", outcome="uncertain"),
                night.gate(
                    Degeneration(until_ms=400 * DAY_MS, rule="repeated_text", by="rule:repeated_text")
                ),
            )
        )
        hold = UserSuspend(by="uid:1000", reason="cost review")
        key = Idempotency(principal="uid:1000", key="01JK", command_sha256="cd" * 32, result=b"{}")
        standing = night.state.gate.holds if night.state else ()
        await store.submit(night.tell(night.gate(*standing, hold), idempotency=key))
        await store.submit(night.tell(night.envelope("held", source=Source.CRON)))
        await store.submit(ended.tell(ev.SessionEnded(status="aborted_constraint", stop_reason="operator")))
        frozen = ev.DaemonFrozen(by="uid:0", reason="audit")
        await store.submit(Append(sid=None, at_ms=72 * DAY_MS, facts=(Fact(event=frozen, ss=0),)))
        await _age(store)
        page = await store.page(sid=None, after=None, before=None, limit=1_000)
        proof = await store.verify()
        assert proof["ok"], proof["findings"]
        return {
            "log_id": store.log_id,
            "head": store.head,
            "events": [[event.seq, event.sid, event.kind] for event in page],
            "sessions": {
                s.sid: [s.state.ss, s.state.status, s.state.turns] for s in (night, ended) if s.state
            },
            "blobs": {sha256(content).hexdigest(): len(content) for content in blobs},
        }


async def _age(store: SqliteStore) -> None:
    """A month is deleted, content of another is, and a session is kept from both."""
    clock = ManualClock(180 * DAY_MS)
    router = Router(store=store, clock=clock, make_driver=_nobody, on_delta=lambda *_: None)
    for row in await store.directory():
        router.directory.follow(row)
    held = RetentionHeld(sid="ses_1", num=1, name="night", by="uid:0", reason="case 7")
    await router.say(held, principal="uid:0")
    done = await Upkeep(router, store, Policy(content_days=30, metadata_days=100), pause_share=0).once()
    assert done["months"] == ["1970-01"]
    assert done["sessions"] == 1
    assert done["content"] > 0


def _nobody(*_: object) -> Any:
    raise AssertionError("nobody takes turns here")


def main() -> int:
    """Write both files, or refuse."""
    target = HERE / f"schema_{migrations()[-1][0]}.db.gz"
    if target.exists():
        print(f"{target.name} exists; a golden file is never rewritten", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        expected = anyio.run(fill, path)
        target.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    target.with_suffix("").with_suffix(".json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"wrote {target.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
