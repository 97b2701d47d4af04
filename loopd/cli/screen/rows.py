"""What stands on the screen, as plain text with a style word for each piece. No terminal in here.

Every colour stands beside a word or a mark that says the same, so the screen reads without colour.
"""

from __future__ import annotations

from loopd.cli.console import Cell, columns, cut, safe
from loopd.cli.instants import span
from loopd.cli.standing import because, ends, hold_words, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Session = dict[str, Any]

REPEAT_NOTABLE, BARREN_NOTABLE = 3, 10
"""Streaks from which a session counts as sick, as in `loopctl ps`."""

SORTS = ("sick", "name", "progress", "tokens")

HEADER = ("", "SESSION", "STATE", "WHY", "UNTIL", "GOAL", "TURNS", "REPEAT", "BARREN", "TOKENS", "PROGRESS")
WHY, SESSION = 3, 1
OPTIONAL = (9, 10, 6, 5, 8, 7)
"""Columns that a narrow terminal does without, first to go first."""

WHY_MIN, SESSION_MAX, GAP = 24, 20, 2


def mark(session: Session) -> Cell:
    """One sign that says how it is: ⏸ suspended, ✗ ended badly, ! sick, ▶ running, ◦ waiting."""
    kinds = [hold["kind"] for hold in session.get("holds") or ()]
    status = str(session.get("status", "live"))
    goal = (session.get("goal") or {}).get("status")
    if status != "live":
        return Cell("✗", "red") if status.startswith("aborted") else Cell("✓", "dim")
    if "UserSuspend" in kinds:
        return Cell("⏸", "magenta")
    if goal == "infeasible" or "Degeneration" in kinds or "CrashLoop" in kinds:
        return Cell("!", "red")
    if session.get("turn"):
        return Cell("▶", "green")
    if sick(session):
        return Cell("!", "yellow")
    return Cell("·", "yellow") if kinds else Cell("◦", "dim")


def sick(session: Session) -> bool:
    """Whether it goes in circles by its own counters, held for it or not."""
    return (
        int(session.get("repeat_streak", 0)) >= REPEAT_NOTABLE
        or int(session.get("barren_streak", 0)) >= BARREN_NOTABLE
    )


def standing(session: Session) -> Cell:
    """The state in a word; `suspended` and `infeasible` go before the gate's own words."""
    kinds = [hold["kind"] for hold in session.get("holds") or ()]
    if session.get("status", "live") != "live":
        return state(session)
    if "UserSuspend" in kinds:
        return Cell("suspended", "magenta")
    if (session.get("goal") or {}).get("status") == "infeasible":
        return Cell("infeasible", "red")
    return state(session)


def order(sessions: Sequence[Session], by: str) -> list[Session]:
    """Sessions as one of `SORTS` wants them; `sick` puts what needs a person first."""
    keys = {
        "sick": lambda one: (_rank(one), -int(one.get("repeat_streak", 0)), one.get("progress_ms") or 0),
        "name": lambda one: one.get("name") or one["sid"],
        "progress": lambda one: one.get("progress_ms") or 0,
        "tokens": lambda one: -tokens(one),
    }
    return sorted(sessions, key=keys[by])


def _rank(session: Session) -> int:
    sign = mark(session).text
    if session.get("status", "live") != "live":
        return 5
    return {"!": 0, "⏸": 2, "▶": 1, "·": 3}.get(sign, 4)


def tokens(session: Session) -> int:
    """Tokens so far."""
    spent = session.get("tokens") or {}
    return int(spent.get("total", spent.get("input", 0) + spent.get("output", 0)))


def short(number: int) -> str:
    """A count in four characters or so: `812`, `1.4k`, `38k`, `2.1M`."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            shown = f"{number / size:.1f}" if number < 10 * size else str(number // size)
            return f"{shown.removesuffix('.0')}{unit}"
    return str(number)


def row(session: Session, now: int) -> list[Cell]:
    """One session under `HEADER`."""
    goal = str((session.get("goal") or {}).get("status") or "-")
    progress = session.get("progress_ms")
    return [
        mark(session),
        Cell(safe(str(session.get("name") or session["sid"])), "bold"),
        standing(session),
        Cell(safe(because(session, now))),
        Cell(ends(session, now)),
        Cell(goal, "red" if goal == "infeasible" else ""),
        Cell(str(session.get("turns", 0))),
        _streak(session.get("repeat_streak", 0), REPEAT_NOTABLE),
        _streak(session.get("barren_streak", 0), BARREN_NOTABLE),
        Cell(short(tokens(session))),
        Cell(f"{span(max(0, now - progress))} ago" if progress else "-"),
    ]


def _streak(value: int, notable: int) -> Cell:
    return Cell(f"{value}{'!' if value >= notable else ''}", "red" if value >= notable else "")


def layout(rows: Sequence[Sequence[Cell]], width: int) -> tuple[list[int], list[int]]:
    """Which columns a terminal of `width` columns shows, and how wide each of them is.

    The reason takes what is left; `OPTIONAL` columns go until it has a third of the width.
    """
    widths = [
        max([columns(name), *(columns(one[place].text) for one in rows)]) for place, name in enumerate(HEADER)
    ]
    widths[0] = 1
    widths[SESSION] = min(widths[SESSION], SESSION_MAX)
    kept = list(range(len(HEADER)))

    least = max(WHY_MIN, width // 3)

    def taken() -> int:
        return sum(min(widths[p], least) if p == WHY else widths[p] for p in kept) + GAP * (len(kept) - 1)

    for place in OPTIONAL:
        if taken() <= width:
            break
        kept.remove(place)
    others = sum(widths[place] for place in kept if place != WHY) + GAP * (len(kept) - 1)
    widths[WHY] = max(8, width - others)
    return kept, [widths[place] for place in kept]


def fitted(cells: Sequence[Cell], kept: Sequence[int], widths: Sequence[int]) -> list[Cell]:
    """The cells that are shown, cut to their columns."""
    return [
        Cell(cut(cells[place].text, width), cells[place].style)
        for place, width in zip(kept, widths, strict=True)
    ]


def headline(status: Session, shown: int, *, sort: str, wanted: str) -> list[Cell]:
    """The first line of the fleet: is the daemon well, how many sessions are how."""
    sessions = status.get("sessions") or {}
    marks = [word for word in ("frozen", "draining") if status.get(word)]
    reasons = [word for word in status.get("reasons") or () if word not in marks]
    if not status.get("ready", True):
        marks.append(f"not ready: {', '.join(map(str, reasons))}" if reasons else "not ready")
    counts = ", ".join(f"{sessions.get(word, 0)} {word}" for word in ("live", "running", "closed", "ended"))
    cells = [
        Cell(f"loopd {status.get('version', '')}", "bold"),
        Cell(safe(", ".join(marks)) or "ready", "magenta" if marks else "green"),
        Cell(counts),
        Cell(f"by {sort}" + (f", {shown} with {wanted!r}" if wanted else ""), "dim"),
    ]
    return [cell for cell in cells if cell.text]


def facts(session: Session, why: Session, now: int) -> list[tuple[str, Cell]]:
    """The head of a session: a name and a value for each line, the most pressing first."""
    found: list[tuple[str, Cell]] = [("state", Cell(f"{standing(session).text}", standing(session).style))]
    if session.get("status", "live") != "live":
        found.append(("ended", Cell(safe(str(session.get("stop_reason") or "")))))
    for hold in session.get("holds") or ():
        sign = "⏸ " if hold["kind"] == "UserSuspend" else ""
        style = "red" if hold["kind"] in {"Degeneration", "CrashLoop"} else "yellow"
        found.append(
            ("hold", Cell(f"{sign}{safe(hold_words(hold))} — until {ends({'holds': [hold]}, now)}", style))
        )
    if why.get("house"):
        found.append(("house", Cell(f"{why['house']}: no session admits work", "magenta")))
    goal = session.get("goal") or {}
    if goal:
        word = str(goal.get("status"))
        style = {"infeasible": "red", "active": "green"}.get(word, "")
        found.append(("goal", Cell(f"{word}: {safe(str(goal.get('text') or ''))}", style)))
    turn = session.get("turn")
    if turn:
        running = f"{turn['n']}, {turn['trigger']}, {turn.get('steps', 0)} steps, {span(max(0, now - turn['started_ms']))}"
        found.append(("turn", Cell(running, "green")))
    upcoming = why.get("next") or {}
    if upcoming.get("at_ms"):
        found.append(("next", Cell(f"{upcoming['what']} in {span(max(0, upcoming['at_ms'] - now))}")))
    spent = session.get("tokens") or {}
    progress = session.get("progress_ms")
    found.append(
        (
            "so far",
            Cell(
                f"{session.get('turns', 0)} turns, {session.get('steps', 0)} steps, {short(tokens(session))} tokens "
                f"({short(int(spent.get('barren', 0)))} barren), progress "
                + (f"{span(max(0, now - progress))} ago" if progress else "never")
            ),
        )
    )
    rung = str(session.get("rung") or "none")
    found.append(
        (
            "streaks",
            Cell(
                f"repeat {session.get('repeat_streak', 0)}, barren {session.get('barren_streak', 0)}, rung {rung}",
                "red" if sick(session) else "",
            ),
        )
    )
    jobs = [
        f"{job['job']}{' (paused)' if job.get('paused') else _in(job.get('next_ms'), now)}"
        for job in session.get("crons") or ()
    ]
    if jobs:
        found.append(("crons", Cell(safe(", ".join(jobs)))))
    if session.get("inbox"):
        found.append(("inbox", Cell(f"{session['inbox']} waiting", "cyan")))
    return found


def _in(moment: int | None, now: int) -> str:
    return "" if moment is None else f" in {span(max(0, moment - now))}"
