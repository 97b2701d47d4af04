"""The files of a daemon that is gone: what was tampered with is found, without a daemon and without writing."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Said, run
from tests.e2e.harness import FILLER, Daemon, House

pytestmark = pytest.mark.process
TOP = Path(__file__).resolve().parents[2]


class Estate:
    """What a daemon left behind: its data folder, the session `night`, and where it was suspended."""

    def __init__(self, house: House) -> None:
        self.house = house
        daemon = house.daemon("estate").start()
        self.data = daemon.data
        quick = {"continuation.min_gap_ms": 0}
        self.sid = daemon.scripted(house.script([FILLER]), name="night", goal="100/100", set=quick)
        daemon.until(self.sid, "degeneration.detected")
        self.since = int(daemon.call("suspend", self.sid, reason="honest")["seq"])
        daemon.scripted(house.script(["ok"], "other.jsonl"), name="other", goal="x")
        assert daemon.terminate() == 0

    def copy(self, name: str) -> Path:
        """A folder to tamper with."""
        return Path(
            shutil.copytree(self.data, self.house.folder / name, ignore=shutil.ignore_patterns("*.sock"))
        )


@pytest.fixture(scope="module")
def estate() -> Iterator[Estate]:
    """One finished run for all tests."""
    house = House()
    try:
        yield Estate(house)
    finally:
        house.close()


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


def test_a_finished_run_is_proven_from_its_files_alone_and_they_stay_as_they_were(estate: Estate) -> None:
    before = digests(estate.data)
    said = run("verify", "--data", str(estate.data), "-o", "json", "--socket", "/nowhere")
    assert (said.code, said.err, said.json["ok"], said.json["findings"]) == (0, "", True, [])
    assert said.json["checked"]["sessions"] == 2
    assert said.json["head"] == said.json["checked"]["events"]
    assert digests(estate.data) == before


@pytest.mark.parametrize("ref", ["night", "the sid"])
def test_a_suspension_is_proven_without_a_daemon(estate: Estate, ref: str) -> None:
    whom = estate.sid if ref == "the sid" else ref
    said = run(
        "verify", whom, "--suspended-since", str(estate.since), "--data", str(estate.data), "-o", "json"
    )
    assert (said.code, said.json["proof"]["turns_after"]) == (0, 0)
    said = run("verify", whom, "--suspended-since", str(estate.since - 1), "--data", str(estate.data))
    assert said.code == 1
    assert "no UserSuspend stood" in said.out
    said = run("verify", whom, "--suspended-since", "100000", "--data", str(estate.data), "-o", "json")
    assert (said.code, said.json["ok"], said.json["proof"]["checked_through"]) == (
        1,
        False,
        said.json["head"],
    )
    assert "seq 100000 is not in the log" in said.json["findings"][0]["what"]


def test_folders_without_a_journal_and_unknown_sessions_are_named(estate: Estate, tmp_path: Path) -> None:
    said = run("verify", "--data", str(tmp_path))
    assert (said.code, "no journal at" in said.err) == (3, True)
    said = run("verify", "nobody", "--data", str(estate.data))
    assert (said.code, "no session 'nobody'" in said.err) == (3, True)
    (tmp_path / "journal.sqlite").write_text("this is no journal, however long it may be")
    said = run("verify", "--data", str(tmp_path))
    assert (said.code != 0, "not a database" in said.err) == (True, True)


def test_a_running_daemons_folder_can_be_read_as_well(estate: Estate) -> None:
    daemon = Daemon(estate.copy("running")).start()
    try:
        said = run("verify", "--data", str(daemon.data), "-o", "json")
        assert (said.code, said.json["ok"]) == (0, True)
    finally:
        daemon.close()


def sql(*statements: str) -> Callable[[sqlite3.Connection], None]:
    def work(journal: sqlite3.Connection) -> None:
        for (trigger,) in journal.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            journal.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            assert journal.execute(statement).rowcount != 0, statement

    return work


HONEST = "kind = 'gate.changed' AND instr(body, 'honest')"
LAST_TURN = "(SELECT max(seq) FROM journal WHERE kind = 'turn.started')"
TAMPERED: dict[str, tuple[Callable[[sqlite3.Connection], None], str]] = {
    "a body": (
        sql(f"UPDATE journal SET body = CAST(replace(body, 'honest', 'forged') AS BLOB) WHERE {HONEST}"), "chain",
    ),
    "a moment": (sql("UPDATE journal SET at_ms = at_ms + 1 WHERE seq = 5"), "chain"),
    "who did it": (sql(f"UPDATE journal SET principal = 'uid:4242' WHERE {HONEST}"), "chain"),
    "a row dropped": (sql(f"DELETE FROM journal WHERE {HONEST}"), "I8"),
    "a row dropped, numbers closed up": (
        sql(
            "DELETE FROM journal WHERE seq = 7",
            "UPDATE journal SET seq = seq + 100000 WHERE seq > 7",
            "UPDATE journal SET seq = seq - 100001 WHERE seq > 100000",
        ), "chain",
    ),
    "two rows in another order": (
        sql(
            "UPDATE journal SET seq = 100000 WHERE seq = 5",
            "UPDATE journal SET seq = 5 WHERE seq = 6",
            "UPDATE journal SET seq = 6 WHERE seq = 100000",
        ), "chain",
    ),
    "the end of a session cut off": (
        sql(f"DELETE FROM journal WHERE seq >= (SELECT seq FROM journal WHERE {HONEST})"), "I9",
    ),
    "a session's projection": (sql("UPDATE session SET turns = turns + 1 WHERE name = 'night'"), "I9"),
    "a session's state": (sql("UPDATE session SET state = (SELECT state FROM session WHERE name = 'other')"), "I9"),
    "a hold made to go": (sql("DELETE FROM hold WHERE kind = 'UserSuspend'"), "I9"),
    "a turn made to go": (sql("DELETE FROM turn WHERE n = 1"), "I9"),
    "a session made to go": (sql("PRAGMA foreign_keys = OFF", "DELETE FROM session WHERE name = 'other'"), "I9"),
    "a blob's content": (sql("UPDATE blob SET codec = 'raw', data = CAST('forged' AS BLOB), len = 6 WHERE id = 1"), "blob"),
    "a blob dropped": (sql("PRAGMA foreign_keys = OFF", "DELETE FROM blob"), "blob"),
    "a freeze out of nothing": (
        sql("UPDATE meta SET frozen = '{\"k\":\"daemon.frozen\",\"by\":\"x\",\"reason\":\"\"}'"), "I9",
    ),
}  # fmt: skip


def tamper(folder: Path, work: Callable[[sqlite3.Connection], None]) -> None:
    with contextlib.closing(sqlite3.connect(folder / "journal.sqlite", isolation_level=None)) as journal:
        work(journal)


def checks(said: Said) -> set[str]:
    return {finding["check"] for finding in said.json["findings"]}


@pytest.mark.parametrize("what", TAMPERED)
def test_tampering_is_found_without_a_daemon(estate: Estate, what: str) -> None:
    work, check = TAMPERED[what]
    folder = estate.copy(f"t{list(TAMPERED).index(what)}")
    tamper(folder, work)
    said = run("verify", "--data", str(folder), "-o", "json")
    assert (said.code, said.json["ok"]) == (1, False)
    assert check in checks(said), said.json["findings"]


def test_a_daemon_on_a_forged_row_only_reads(estate: Estate) -> None:
    folder = estate.copy("boot")
    tamper(folder, TAMPERED["a body"][0])
    daemon = Daemon(folder).start()
    try:
        status = daemon.call("daemon.status")
        assert (status["ready"], "corrupt" in status["reasons"]) == (False, True)
        assert daemon.refusal("daemon.freeze").code == "corrupt"
        assert daemon.ctl("verify", code=1)["ok"] is False
    finally:
        daemon.close()


def test_a_missing_end_is_found_with_the_head_of_an_earlier_proof(estate: Estate) -> None:
    before = run("verify", "--data", str(estate.data), "-o", "json").json
    anchor = f"{before['head']}:{before['head_hash']}"
    assert run("verify", "--data", str(estate.data), "--anchor", anchor).code == 0
    folder = estate.copy("end")
    tamper(folder, sql("DELETE FROM journal WHERE seq = (SELECT max(seq) FROM journal)"))
    found = run("verify", "--data", str(folder), "-o", "json")
    assert (found.code, checks(found)) == (1, {"anchor"}), "the daemon anchors its head when it stops"
    tamper(folder, sql("DELETE FROM anchor"))
    assert run("verify", "--data", str(folder)).code == 0, (
        "without anchors the chain cannot know; the pages say so"
    )
    said = run("verify", "--data", str(folder), "--anchor", anchor, "-o", "json")
    assert (said.code, said.json["ok"], checks(said)) == (1, False, {"anchor"})
    said = run(
        "verify", "--data", str(estate.data), "--anchor", f"{before['head'] - 1}:{before['head_hash']}"
    )
    assert said.code == 1
    assert run("verify", "--data", str(estate.data), "--anchor", "12").code == 2
    assert run("verify", "--anchor", anchor).code == 2


def test_the_program_on_the_journals_page_verifies_a_real_journal_and_sees_a_forged_one(
    estate: Estate,
) -> None:
    page = (TOP / "docs/reference/journal-format.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    def outcome(folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )

    good = outcome(estate.data)
    assert (good.returncode, good.stdout.startswith("head ")) == (0, True), good.stderr
    folder = estate.copy("page")
    tamper(folder, TAMPERED["a body"][0])
    assert "does not verify" in outcome(folder).stderr


def test_a_lifted_suspension_does_not_read_like_one_that_stands(estate: Estate) -> None:
    daemon = Daemon(estate.copy("lifted")).start()
    try:
        words = ("verify", "night", "--suspended-since", str(estate.since))
        assert f"suspended since seq {estate.since}: no turn has started" in daemon.loopctl(*words).stdout
        daemon.call("unsuspend", estate.sid)
        said = daemon.loopctl(*words)
        assert said.returncode == 0
        assert "NOT SUSPENDED ANY MORE: lifted at seq " in said.stdout
    finally:
        daemon.close()
