"""The how-to pages show what is printed today: each `console` block is typed into a daemon with a history."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from loopd.testing.replies import Call, ask, say
from tests.cli.conftest import run
from tests.e2e.harness import FILLER, Daemon, House, endpoint

TOP = Path(__file__).resolve().parents[2]
HOWTO = TOP / "docs" / "howto"
PAGES = (
    "after-a-crash",
    "suspend",
    "prove-what-happened",
    "show-what-the-model-saw",
    "export-for-an-auditor",
    "back-up",
    "keep-the-journal-small",
    "inspect",
)
"""In the order in which they are read: what one page does, the next may show."""

CUT = "…"
AT_ONCE = {"continuation.min_gap_ms": 0}


class Typed(NamedTuple):
    """One command of a page, and what the page says that it prints."""

    command: str
    shown: list[str]


def typed(page: str) -> list[Typed]:
    text = (HOWTO / f"{page}.md").read_text(encoding="utf-8")
    found: list[Typed] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Typed(line[2:].partition("  #")[0], []))
            else:
                found[-1].shown.append(line)
    return found


def masked(line: str) -> str:
    """Without what differs from run to run: identities, hashes, moments, numbers, and spaces that follow."""
    line = re.sub(r"\b(ses|imp|lg|boot)_\w+", r"\1_#", line)
    line = re.sub(r"\b[0-9a-f]{16,64}\b|\b[0-9a-f]{4,64}…", "#", line)
    line = re.sub(r"\d[\d,.:-]*\d|\d", "#", line)
    line = re.sub(r"# ?(ms|s|m|h|d|B|KB|MB|GB)\b", "#", line)
    return re.sub(r"\s+", " ", re.sub(r"#( #)+", "#", line)).strip()


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether lines are those of the page; `…` stands for any number of lines, or for the rest of one."""
    if not shown:
        return not printed
    if shown[0] == CUT:
        return any(matches(shown[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
    if not printed:
        return False
    pattern = ".*".join(re.escape(part) for part in shown[0].split(CUT))
    return re.fullmatch(pattern, printed[0]) is not None and matches(shown[1:], printed[1:])


class Reader:
    """Somebody who types what the pages say."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon, self.folder = daemon, folder
        self.proof = 0

    def types(self, command: str) -> list[str]:
        command = command.replace("/backup/", f"{self.folder}/").replace(" tests/", f" {TOP}/tests/")
        command = re.sub(r"(--suspended-since) \d+", rf"\1 {self.proof}", command)
        program, *words = shlex.split(command)
        assert program == "loopctl", command
        with contextlib.chdir(self.folder):
            said = run(*words, "--socket", self.daemon.socket)
        if found := re.search(r"proof: seq (\d+)", said.out):
            self.proof = int(found[1])
        return (said.out + said.err).replace(f"{self.folder}/", "/backup/").splitlines()


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """A mailer whose daemon died while a tool ran, and a mapper that went in circles and was talked to."""
    house = House()
    work = house.folder / "work"
    work.mkdir()
    sending = [ask(Call("shell", {"command": "echo sent >> mails"})), say("What was that?")]
    mapping = [say(FILLER)] * 5 + [say("core has 48 modules."), say("engine has 39.")]
    try:
        with endpoint(sending) as (mails, _), endpoint(mapping) as (maps, _):
            dying = {"LOOPD_TESTING_ENABLED": "true", "LOOPD_TESTING_FAILPOINTS": "tool.after/shell:kill"}
            daemon = house.daemon(env=dying).start()
            sid = daemon.chat(mails.base_url, workspace=str(work), name="mailer")
            daemon.call("send", sid, text="send the mail")
            assert daemon.wait() == -signal.SIGKILL
            daemon.env.pop("LOOPD_TESTING_FAILPOINTS")
            daemon.start()
            sid = daemon.chat(maps.base_url, name="mapper", goal="map every module", set=AT_ONCE)
            daemon.until(sid, "gate.changed")
            daemon.call("goal.pause", sid)
            for turn, text in ((6, "How many modules has core?"), (7, "And engine?")):
                daemon.call("send", sid, text=text)
                daemon.until(sid, "turn.completed", count=turn)
            yield Reader(daemon, work)
    finally:
        house.close()


@pytest.mark.process
@pytest.mark.timeout(90)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_is_printed(reader: Reader, page: str) -> None:
    commands = typed(page)
    assert commands
    for command, shown in commands:
        printed = [masked(line) for line in reader.types(command)]
        assert matches([masked(line) for line in shown], printed), f"$ {command}\n" + "\n".join(printed)


def test_a_page_that_shows_something_else_would_be_seen() -> None:
    assert matches(["a", CUT, "c…"], ["a", "b", "b", "cd"])
    assert not matches(["a", "c"], ["a", "b", "c"])
    assert not matches(["a"], ["a", "b"])
    assert masked("seq 12 (4f0c…) at 2026-11-22 02:46:21, 945 MB") == masked(
        "seq 9 (#) at 2027-01-02 1:2, 1 KB"
    )
