"""What crashes left behind: what starts found, and effects that nobody is sure of."""

from __future__ import annotations

from loopd.cli.console import Cell, safe
from loopd.cli.instants import now_ms, span, stamp, until
from loopd.cli.standing import names_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from loopd.cli.run import Run

OUTCOME_STYLES = {"uncertain": "yellow", "error": "red", "cancelled": "yellow", "interrupted": "yellow"}


def recover(run: Run) -> None:
    """What the last starts found and did."""
    answer = run.link.ask({"t": "recovery.get", "limit": run.args.limit})
    if run.console.format == "json":
        run.console.json(answer)
        return
    if run.console.format == "ndjson":
        for boot in answer["boots"]:
            run.console.json(boot)
        return
    if not answer["boots"]:
        run.console.line("no start was recorded yet")
    for place, boot in enumerate(answer["boots"]):
        if place:
            run.console.line()
        _boot(run, boot)


def _boot(run: Run, boot: dict[str, Any]) -> None:
    sids = [
        *boot.get("interrupted", {}),
        *boot.get("uncertain", {}).values(),
        *boot.get("calls", {}),
        *boot.get("crash_loops", ()),
        *boot.get("refused", {}),
        *boot.get("postponed", {}),
    ]
    names = names_of(run, *dict.fromkeys(sids)) if sids else {}
    ended = "after a clean stop" if boot.get("clean") else "after a crash"
    if boot["boot"] == 1:
        ended = "the first of this journal"
    down = f", down for {span(boot['down_ms'])}" if boot.get("down_ms") else ""
    run.console.line(f"boot {boot['boot']} at {stamp(boot['at_ms'])}, {ended}{down}")
    pairs = [
        ("sessions", f"{boot.get('sessions', 0)} live, {boot.get('ended', 0)} ended"),
        ("ready after", span(boot.get("took_ms", 0))),
        ("interrupted turns", str(boot.get("interrupted_count", 0))),
        ("uncertain effects", str(boot.get("uncertain_count", 0))),
    ]
    if boot.get("calls_count"):
        pairs.append(("model calls cut", f"{boot['calls_count']}, what they cost is not known"))
    if boot.get("repeatable_count"):
        pairs.append(("cut, repeatable", str(boot["repeatable_count"])))
    if boot.get("overdue"):
        pairs.append(
            ("overdue deadlines", f"{boot['overdue']}, spread over {span(boot.get('spread_ms', 0))}")
        )
    if boot.get("crash_loops"):
        pairs.append(("crash loops", str(len(boot["crash_loops"]))))
    if boot.get("leftovers"):
        pairs.append(("processes ended", str(boot["leftovers"])))
    if boot.get("boots_recent", 1) > 1:
        pairs.append(("starts in 15 min", str(boot["boots_recent"])))
    wait = boot.get("scheduled_wait_until_ms")
    if wait:
        pairs.append(
            ("cron waits", until(wait, now_ms()) if wait > now_ms() else f"waited until {stamp(wait)}")
        )
    run.console.pairs(pairs)
    for line in _named(boot, names):
        run.console.line(safe(f"  {line}"))


def _named(boot: dict[str, Any], names: dict[str, str]) -> Iterator[str]:
    """Whom each number is about, and what to do about it."""

    def name(sid: str) -> str:
        return names.get(sid, sid)

    interrupted, uncertain = boot.get("interrupted", {}), boot.get("uncertain", {})
    for sid, n in interrupted.items():
        yield f"interrupted: turn {n} of {name(sid)}"
    yield from _rest(boot.get("interrupted_count", 0) - len(interrupted))
    for effect, sid in uncertain.items():
        yield f"uncertain: {effect} of {name(sid)} (loopctl effect list)"
    yield from _rest(boot.get("uncertain_count", 0) - len(uncertain))
    for sid, count in boot.get("calls", {}).items():
        yield f"model calls cut: {count} of {name(sid)}, made at least in part"
    for sid in boot.get("crash_loops", ()):
        yield f"held, the daemon keeps dying in it: {name(sid)} (loopctl why {name(sid)})"
    for sid, why in boot.get("postponed", {}).items():
        yield f"not taken over at once, tried again each second: {name(sid)}: {why} (loopctl why {name(sid)})"
    for sid, why in boot.get("refused", {}).items():
        yield f"left alone: {name(sid)}: {why} (loopctl verify {name(sid)})"


def _rest(count: int) -> Iterator[str]:
    if count > 0:
        yield f"… and {count} more"


def effects(run: Run) -> None:
    """Tools that were begun and how they ended."""
    command: dict[str, Any] = {"t": "effect.list", "state": run.args.state, "limit": run.args.limit}
    if run.args.sid is not None:
        command["sid"] = run.args.sid
    answer = run.link.ask(command)
    if run.console.format == "json":
        run.console.json(answer)
        return
    if run.console.format == "ndjson":
        for effect in answer["effects"]:
            run.console.json(effect)
        return
    if not answer["effects"]:
        run.console.line(
            {"uncertain": "no effect is uncertain", "open": "no tool runs"}.get(run.args.state, "no effects")
        )
        return
    names = names_of(run, *dict.fromkeys(effect["sid"] for effect in answer["effects"]))
    run.console.table(
        ("SESSION", "ID", "TOOL", "TURN", "BEGAN", "OUTCOME", "NOTE"),
        [
            [
                names.get(effect["sid"], str(effect["sid"])),
                Cell(effect["id"], "bold"),
                str(effect["tool"]),
                str(effect["n"]),
                stamp(effect["at_ms"]) if effect.get("at_ms") else "-",
                Cell(effect["outcome"] or "running", OUTCOME_STYLES.get(effect["outcome"], "")),
                str(effect.get("note") or ""),
            ]
            for effect in answer["effects"]
        ],
        flex=6,
        optional=(6,),
    )


def resolve(run: Run) -> None:
    """Settles an uncertain effect."""
    args = run.args
    answer = run.link.change(
        {"t": "effect.resolve", "sid": args.sid, "id": args.id, "outcome": args.outcome, "note": args.note}
    )
    if run.console.format != "table":
        run.console.json(answer)
        return
    left = len(answer.get("uncertain") or ())
    word = {"happened": "it happened", "not_happened": "it did not happen"}[args.outcome]
    run.console.line(safe(f"settled {args.id}: {word}; {left} of this session still uncertain"))
