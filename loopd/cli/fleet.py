"""Verbs about the daemon and all its sessions."""

from __future__ import annotations

import time

from loopd.cli.console import Cell, safe
from loopd.cli.exits import Failure
from loopd.cli.instants import now_ms, span
from loopd.cli.standing import all_sessions, because, ends, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run

GONE_POLL_S = 0.05


def status(run: Run) -> None:
    """How the daemon is."""
    answer = run.link.ask({"t": "daemon.status"})
    console = run.console
    if console.format != "table":
        console.json(answer)
        return
    sessions, holds = answer.get("sessions", {}), answer.get("holds", {})
    marks = [word for word in ("frozen", "draining") if answer.get(word)]
    reasons = [word for word in answer.get("reasons") or () if word not in marks]
    if not answer.get("ready", True) and (reasons or not marks):
        marks.append(f"not ready: {', '.join(map(safe, reasons))}" if reasons else "not ready")
    head = f"loopd {answer.get('version', '?')}  pid {answer.get('pid', '?')}  up {span(answer.get('uptime_ms', 0))}"
    mood = console.styled(", ".join(marks), "magenta") if marks else console.styled("ready", "green")
    console.line(f"{safe(head)}  {mood}")
    console.pairs(
        [
            (
                "sessions",
                ", ".join(
                    f"{sessions.get(word, 0)} {word}" for word in ("live", "running", "closed", "ended")
                ),
            ),
            ("holds", ", ".join(f"{kind} {number}" for kind, number in holds.items() if number)),
            ("log", f"{answer.get('log', '?')} at {answer.get('head', '?')}"),
            ("boot", str(answer.get("boot") or "")),
            ("data", str(answer.get("data") or "")),
            ("socket", str(answer.get("socket") or run.link.path)),
            ("http", str(answer.get("http") or "")),
            ("isolation", _isolation(answer)),
        ]
    )


def _isolation(answer: dict[str, Any]) -> str:
    """What keeps agents in, in words; empty for a daemon that does not say."""
    if answer.get("isolation") == "user":
        return (
            f"user: agents and their tools run as {answer.get('agents_user')!r}; same machine, same network"
        )
    if answer.get("isolation") != "none":
        return str(answer.get("isolation") or "")
    door = "refused at this socket" if answer.get("agents_refused") else "NOT told apart at this socket"
    return f"none: shell tools have all rights of the daemon's user; agents are {door}"


def ps(run: Run) -> None:
    """All sessions: why each is as it is, and until when."""
    args, console = run.args, run.console
    selector: dict[str, Any] = {"labels": dict(args.label)} if args.label else {}
    if args.ended:
        selector["ended"] = True
    sessions = all_sessions(run, sort=args.sort, selector=selector)
    if args.quiet and console.format == "table":
        for session in sessions:
            console.line(safe(session.get("name") or session["sid"]))
    elif console.format == "json":
        console.json({"sessions": sessions})
    elif console.format == "ndjson":
        for session in sessions:
            console.json(session)
    elif not sessions:
        console.line("no sessions; `loopctl new --help` shows how to make one")
    else:
        now = now_ms()
        console.table(
            (
                "SESSION",
                "STATE",
                "WHY",
                "UNTIL",
                "GOAL",
                "TURNS",
                "INBOX",
                "REPEAT",
                "BARREN",
                "PROGRESS",
                "COST",
            ),
            [_row(session, now) for session in sessions],
            flex=2,
            optional=(10, 9, 5, 8, 7, 4, 6),
        )


def _row(session: dict[str, Any], now: int) -> list[str | Cell]:
    goal = session.get("goal") or {}
    progress = session.get("progress_ms")
    return [
        Cell(session.get("name") or session["sid"], "bold"),
        state(session),
        because(session, now),
        ends(session, now),
        str(goal.get("status", "-")),
        str(session.get("turns", 0)),
        str(session.get("inbox", 0)),
        _streak(session.get("repeat_streak", 0), 3),
        _streak(session.get("barren_streak", 0), 10),
        f"{span(max(0, now - progress))} ago" if progress else "-",
        _cost(session),
    ]


def _cost(session: dict[str, Any]) -> Cell:
    """What it has cost; `?` when some of it has no known price."""
    micro, unpriced = session.get("cost_micro"), session.get("unpriced")
    known = "-" if not micro else f"{micro / 1_000_000:.2f}"
    return Cell(f"{known if micro else ''}?" if unpriced else known, "yellow" if unpriced else "")


def _streak(value: int, notable: int) -> Cell:
    return Cell(str(value), "red" if value >= notable else "")


def freeze(run: Run) -> None:
    """No session admits work until `unfreeze`."""
    answer = run.link.change(
        {"t": "daemon.freeze", "reason": run.args.reason, "interrupt": run.args.interrupt}
    )
    _told(run, answer, "frozen: no session admits work until `loopctl unfreeze`")


def unfreeze(run: Run) -> None:
    """Ends a freeze."""
    _told(run, run.link.change({"t": "daemon.unfreeze"}), "not frozen: sessions run as their own gates say")


def drain(run: Run) -> None:
    """Lets turns finish, then stops the daemon."""
    command: dict[str, Any] = {"t": "daemon.drain"}
    if run.args.budget is not None:
        command["budget_ms"] = run.args.budget
    answer = run.link.change(command)
    _stopping(run, answer, "draining: turns finish, nothing new starts, then the daemon stops")


def stop(run: Run) -> None:
    """Stops the daemon at once and in order."""
    _stopping(run, run.link.change({"t": "daemon.stop"}), "stopping: running turns are interrupted")


def _told(run: Run, answer: dict[str, Any], words: str) -> None:
    if run.console.format == "table":
        run.console.line(words)
    else:
        run.console.json(answer)


def _stopping(run: Run, answer: dict[str, Any], words: str) -> None:
    _told(run, answer, words)
    run.console.flush()
    if not run.args.wait:
        return
    run.link.close()
    while _answers(run.link.path):
        time.sleep(GONE_POLL_S)
    if run.console.format == "table":
        run.console.line("gone")


def _answers(path: str) -> bool:
    import socket

    where: str | tuple[str | None, int] = path
    if "://" in path:
        from urllib.parse import urlsplit

        parts = urlsplit(path)
        where = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    family = socket.AF_UNIX if where == path else socket.AF_INET6 if ":" in str(where[0]) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(where)
        except TimeoutError:
            raise Failure("timeout", f"{path} accepts no connection for 5 s; the daemon may hang") from None
        except OSError:
            return False
    return True
