"""`loopctl top` as a person at a terminal has it: tmux types and reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import BIN, FILLER, WAIT_S, Daemon, House, working

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux (Debian: apt-get install tmux)"),
]
SIZES = [(80, 24), (200, 50)]


class Terminal:
    """A terminal of its own with one program in it."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        self._base = ["tmux", "-S", str(folder / "tmux.sock"), "-f", os.devnull]
        self._size = ["-x", str(width), "-y", str(height)]
        self.width = width

    def run(self, *words: str, env: dict[str, str]) -> None:
        given = [part for name, value in env.items() for part in ("-e", f"{name}={value}")]
        subprocess.run(
            [*self._base, "new-session", "-d", *self._size, *given, *words], check=True, timeout=WAIT_S
        )

    def type(self, *keys: str) -> None:
        subprocess.run([*self._base, "send-keys", *keys], check=True, timeout=WAIT_S)

    def text(self, *, escapes: bool = False) -> str:
        more = ["-e"] if escapes else []
        done = subprocess.run(
            [*self._base, "capture-pane", "-p", *more],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        return done.stdout

    def until(self, test: Callable[[str], bool], within_s: float = WAIT_S) -> str:
        """The screen, once it passes a test."""
        end = time.monotonic() + within_s
        while True:
            shown = self.text()
            if test(shown):
                return shown
            assert time.monotonic() < end, f"the screen never came to this; it shows:\n{shown}"
            time.sleep(0.05)  # a terminal has no way to tell that it changed

    def over(self) -> bool:
        done = subprocess.run([*self._base, "has-session"], capture_output=True, timeout=WAIT_S, check=False)
        return done.returncode != 0

    def close(self) -> None:
        subprocess.run([*self._base, "kill-server"], capture_output=True, timeout=WAIT_S, check=False)


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def terminal(request: pytest.FixtureRequest, house: House) -> Iterator[Terminal]:
    terminal = Terminal(house.folder, *request.param)
    yield terminal
    terminal.close()


def top(terminal: Terminal, daemon: Daemon, *words: str, **env: str) -> None:
    env = {"LOOPD_SOCKET": daemon.socket, "TERM": "xterm-256color", "LANG": "C.UTF-8", **env}
    terminal.run(str(BIN / "loopctl"), "top", *words, env=env)


def line_with(shown: str, word: str) -> str:
    return next((line for line in shown.splitlines() if word in line), "")


def test_the_operators_day(house: House, daemon: Daemon, terminal: Terminal) -> None:
    fast = {"continuation.min_gap_ms": 30}
    top(terminal, daemon)
    terminal.until(lambda shown: "0 live" in shown)
    # It degenerates while it is watched: the gate closes in front of our eyes.
    stuck = daemon.scripted(house.script([FILLER]), name="stuck", goal="score 100", set=fast)
    daemon.scripted(
        house.script(working(), "ok.jsonl"),
        name="patient",
        goal="write",
        set={"continuation.min_gap_ms": 500},
    )
    shown = terminal.until(lambda shown: "Degeneration" in line_with(shown, " stuck "))
    lines = [line for line in shown.splitlines() if " stuck " in line or " patient " in line]
    assert "stuck" in lines[0], "the sick one stands first"
    assert "(in " in lines[0], "and says until when"
    # Open it, read the evidence, suspend it with a reason, read the proof.
    terminal.until(lambda shown: "degeneration.detected" in shown or "gate.changed" in shown)
    terminal.type("Enter")
    terminal.until(lambda shown: "score 100" in shown and "streaks" in shown)
    terminal.type("s")
    terminal.until(lambda shown: "suspend stuck?" in shown)
    terminal.type("cost review", "Enter")
    terminal.until(lambda shown: "suspended, proof from seq" in shown and "⏸ UserSuspend" in shown)
    held = daemon.call("session.get", stuck)
    assert [hold["reason"] for hold in held["holds"] if hold["kind"] == "UserSuspend"] == ["cost review"]
    # A message, a typed command, a refusal; then lift it and see it go on.
    terminal.type("/", "goal infeasible no access", "Enter")
    terminal.until(lambda shown: "goal.infeasible stuck? no access" in shown)
    terminal.type("y")
    terminal.until(lambda shown: "infeasible: score 100" in shown)
    terminal.type("/", "suspnd", "Enter")
    terminal.until(lambda shown: "did you mean /suspend?" in shown)
    terminal.type("u")
    terminal.until(lambda shown: "unsuspended" in shown and "⏸" not in shown)
    terminal.type("m", "look at the log", "Enter")
    terminal.until(lambda shown: "durable as env_" in shown)
    daemon.until(stuck, "envelope.accepted", lambda body: body.get("text") == "look at the log")
    # Back in the fleet.
    terminal.type("Escape")
    shown = terminal.until(lambda shown: "infeasible" in line_with(shown, " stuck "))
    assert all(len(line) <= terminal.width for line in shown.splitlines())
    terminal.type("q")
    end = time.monotonic() + WAIT_S
    while not terminal.over():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_screen_lives_through_a_restart_of_the_daemon(house: House, daemon: Daemon) -> None:
    terminal = Terminal(house.folder, 80, 24)
    try:
        daemon.scripted(house.script(working()), name="patient")
        top(terminal, daemon)
        terminal.until(lambda shown: " patient " in shown)
        daemon.kill()
        terminal.until(lambda shown: "trying again" in shown or "unavailable" in shown)
        daemon.start()
        daemon.scripted(house.script(working()), name="newcomer")
        shown = terminal.until(lambda shown: " newcomer " in shown and "trying again" not in shown)
        assert " patient " in shown
    finally:
        terminal.close()


def test_without_colour_nothing_is_coloured_and_all_is_said(house: House, daemon: Daemon) -> None:
    terminal = Terminal(house.folder, 80, 24)
    try:
        held = daemon.scripted(house.script(working()), name="held")
        daemon.call("suspend", held, reason="review")
        top(terminal, daemon, NO_COLOR="1")
        shown = terminal.until(lambda shown: "⏸" in shown)
        assert "suspended" in line_with(shown, " held ")

        shades = set(re.findall(r"[34]8;(?:5;\d+|2;\d+;\d+;\d+)", terminal.text(escapes=True)))
        assert all(_is_grey(shade) for shade in shades), shades
    finally:
        terminal.close()


def _is_grey(shade: str) -> bool:
    numbers = [int(part) for part in shade.split(";")[2:]]
    return (
        len(set(numbers)) == 1
        if len(numbers) == 3
        else numbers[0] >= 232 or numbers[0] in {0, 7, 8, 15, 16, 231}
    )


def test_agents_cannot_draw_on_the_operators_terminal(house: House, daemon: Daemon) -> None:
    terminal = Terminal(house.folder, 80, 24)
    try:
        evil = "\x1b[2J\x1b]0;owned\x07[red]markup[/red] \u202eback"
        sid = daemon.scripted(
            house.script([evil], "evil.jsonl"), name="evil", goal="x \x1b[31m [bold]y[/bold]"
        )
        daemon.until(sid, "turn.completed")
        top(terminal, daemon, "evil")
        shown = terminal.until(lambda shown: "[red]markup" in shown and "\\x1b" in shown)
        assert "[bold]y" in shown
    finally:
        terminal.close()


def test_without_a_terminal_it_says_what_to_use_instead(daemon: Daemon) -> None:
    done = daemon.loopctl("top")
    assert done.returncode == 2
    assert "a screen needs a terminal" in done.stderr
