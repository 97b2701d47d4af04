"""The journal stays small on a real daemon, and a copy of it is whole, whatever happens meanwhile."""

from __future__ import annotations

import gzip
import sqlite3
import threading
from pathlib import Path

import pytest

from tests.e2e.harness import NO_RULES, Daemon, House, working

pytestmark = pytest.mark.process
DAY_MS = 86_400_000
BUSY = {"continuation.min_gap_ms": 0, **NO_RULES}
GOLDEN = Path(__file__).parents[1] / "golden" / "store"


class Moved:
    """A daemon whose wall clock is moved by a file."""

    def __init__(self, house: House, **retention: int) -> None:
        self.file = house.folder / "offset"
        self.days(0)
        ages = "".join(f"{name} = {value}\n" for name, value in retention.items())
        config = f'[testing]\nenabled = true\nclock_offset_file = "{self.file}"\n[retention]\n{ages}'
        self.daemon = house.daemon(config=config).start()

    def days(self, count: float) -> None:
        """It is so many days later."""
        self.file.write_text(str(int(count * DAY_MS)))


def talk(daemon: Daemon, script: Path, name: str) -> str:
    """A session that takes three turns and ends."""
    before = daemon.head()
    sid = daemon.scripted(script, name=name, set=BUSY)
    for turn in range(3):
        daemon.call("send", sid, text=f"the secret of {name} {turn}")
        daemon.until(sid, "turn.completed", count=turn + 1, after=before)
    return sid


def test_content_goes_metadata_stays_and_a_legal_hold_keeps_both(house: House) -> None:
    moved = Moved(house, content_days=30, metadata_days=100)
    daemon, script = moved.daemon, house.script(working())
    old, held = talk(daemon, script, "old"), talk(daemon, script, "held")
    assert daemon.ctl("retention", "hold", "held", "--reason", "case 7")["held"] is True
    for sid in (old, held):
        daemon.call("session.end", sid, reason="done")
    turns = daemon.events(old, "turn.*")
    moved.days(40)
    due = daemon.ctl("retention", "run", "--dry-run")
    assert due["content"]["events"] > 0
    assert due["content"]["policy"] == "content 30 d"
    assert b"secret of old" in house.folder.joinpath("d", "journal.sqlite-wal").read_bytes()
    done = daemon.ctl("retention", "run", "--wait")
    assert done["last"]["content"] > 0
    assert done["holds"][0]["name"] == "held"
    assert [e["b"]["text"] for e in daemon.events(old, "envelope.accepted")] == ["", "", ""]
    texts = [e["b"]["text"] for e in daemon.events(held, "envelope.accepted")]
    assert texts == [f"the secret of held {turn}" for turn in range(3)]
    after = daemon.events(old, "turn.*")
    assert [(e["seq"], e["k"], e["ts"]) for e in after] == [(e["seq"], e["k"], e["ts"]) for e in turns]
    refused = daemon.loopctl("show", f"{old}@2", "--prompt")
    assert refused.returncode == 3
    assert "the content of turn 2 was deleted on " in refused.stderr
    assert "by the policy 'content 30 d'" in refused.stderr
    assert daemon.ctl("show", f"{old}@2")["deleted"]["policy"] == "content 30 d"
    assert "secret" in str(daemon.ctl("show", f"{held}@2", "--prompt")["prompt"]["messages"])
    daemon.verified()
    daemon.verified(old)

    moved.days(140)
    daemon.ctl("retention", "run", "--wait")
    state = daemon.ctl("retention", "status")
    assert state["segments"][0]["kept_for"] == [{"sid": held, "why": "legal hold"}]
    daemon.ctl("retention", "release", "held")
    daemon.ctl("retention", "run", "--wait")
    state = daemon.ctl("retention", "status")
    assert state["segments"][0]["deleted_ms"] is not None
    for sid in (old, held):
        assert daemon.refusal("session.get", sid).code == "not_found"
    cursor = {"log": daemon.call("daemon.status")["log"], "seq": 0}
    first = next(f for f in daemon.client().subscribe(after=cursor) if f["t"] in {"gap", "ev"})
    assert (first["t"], first["why"], first["to"]) == ("gap", "retention", state["segments"][-1]["last"])
    daemon.verified()
    daemon.kill()
    daemon.start()
    daemon.verified()
    new = talk(daemon, script, "new")
    assert new not in {old, held}


def test_a_snapshot_is_one_moment_of_a_log_that_is_written_all_the_time(house: House) -> None:
    daemon = house.daemon().start()
    sid = daemon.scripted(house.script(working()), name="busy", set=BUSY)
    stop, written = threading.Event(), []

    def write() -> None:
        client = daemon.client()
        while not stop.is_set():
            written.append(client.call({"t": "send", "sid": sid, "text": "x" * 2_000})["seq"])

    daemon.call("suspend", sid)
    daemon.call("consumer.create", name="archiver", after=0)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        copies = []
        for number in range(3):
            path = house.folder / f"copy{number}" / "journal.sqlite"
            path.parent.mkdir()
            before = daemon.head()
            copies.append((path, before, daemon.ctl("db", "snapshot", str(path), "--verify")))
    finally:
        stop.set()
        thread.join()
    assert len(written) > 20
    for path, before, told in copies:
        assert told["head"] >= before
        assert told["verified"]["events"] == told["head"]
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            assert (
                connection.execute("SELECT max(seq), count(*) FROM journal").fetchone() == (told["head"],) * 2
            )
        proof = daemon.ctl("verify", "--data", str(path.parent))
        assert proof["ok"] is True
    again = daemon.loopctl("db", "snapshot", str(copies[0][0]))
    assert again.returncode == 4
    assert "never replaces" in again.stderr
    assert daemon.refusal("db.snapshot", path="relative.sqlite").code == "invalid"
    other = house.daemon("copy2")
    other.start()  # a copy is a journal like any other, but not the same one: it goes on otherwise
    assert other.ctl("status")["sessions"]["live"] == 1
    log, original = (each.call("daemon.status")["log"] for each in (other, daemon))
    assert log != original
    assert other.call("daemon.status")["head"] > copies[2][2]["head"]
    for seq in (1, copies[2][2]["head"] + 1):
        frames = other.client().subscribe(after={"log": original, "seq": seq})
        assert next(f for f in frames if f["t"] in {"gap", "ev"})["why"] == "foreign_log"
    assert other.call("consumer.ack", name="archiver", seq=5)["cursor"] == {"log": log, "seq": 5}
    assert other.refusal("consumer.ack", name="archiver", seq=6, log=original).code == "conflict"
    started = other.events(None, "daemon.started")
    assert [e["b"].get("log") for e in started][-2:] == [original, log]
    other.kill()
    other.start()
    assert other.call("daemon.status")["log"] == log, "once is enough"
    other.verified()


@pytest.mark.parametrize("old", sorted(GOLDEN.glob("schema_*.db.gz")), ids=lambda path: path.name)
def test_a_daemon_takes_over_the_journal_of_every_earlier_version(house: House, old: Path) -> None:
    daemon = house.daemon()
    daemon.data.mkdir()
    daemon.data.chmod(0o700)
    (daemon.data / "journal.sqlite").write_bytes(gzip.decompress(old.read_bytes()))
    daemon.start()
    assert daemon.ctl("db", "status")["schema"] >= 2
    state = daemon.ctl("retention", "status")
    swept, gone = state["content_seq"], [s["month"] for s in state["segments"] if s["deleted_ms"] is not None]
    assert (swept > 0, gone) == ((False, []) if "schema_1." in old.name else (True, ["1970-01"]))
    assert daemon.ctl("status")["sessions"]["live"] == 1


def test_the_state_of_the_database_is_told(house: House) -> None:
    daemon = house.daemon().start()
    daemon.scripted(house.script(working()))
    state = daemon.ctl("db", "status")
    assert state["shrinks"] is True
    assert state["head"] == daemon.head()
    assert state["pages"] * state["page_bytes"] > 0
    assert state["sessions"] == 1
