"""`loopctl digest`: what happened since you left, what needs you first, in one screen."""

from __future__ import annotations

from loopd.cli.console import Cell, plural, safe
from loopd.cli.instants import now_ms, span, stamp
from loopd.cli.standing import all_sessions, because, ends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from loopd.cli.run import Run

PAGE = 1_000
KINDS = (
    "session.*",
    "degeneration.*",
    "gate.changed",
    "turn.completed",
    "turn.interrupted",
    "turn.step",
    "goal.changed",
    "cron.occurrence",
    "approval.*",
    "budget.*",
    "effect.*",
    "command.denied",
    "daemon.*",
)
HARMLESS_CRONS = frozenset({"fired", "due", "held"})
ROWS_MAX = 15


def digest(run: Run) -> None:
    """What happened since a moment."""
    since = run.args.since
    sessions = all_sessions(run)
    counted = summary(_events_since(run, since), sessions, since)
    if run.console.format != "table":
        run.console.json(counted)
        return
    _show(run, counted)


def _events_since(run: Run, since: int) -> Iterator[dict[str, Any]]:
    """Events of `KINDS`, newest first, up to the moment; says on a terminal how far it got."""
    before: int | None = None
    read = 0
    while True:
        command = {"t": "history.page", "limit": PAGE, "kinds": KINDS}
        page = run.link.ask(command if before is None else {**command, "before": before})
        for event in reversed(page["events"]):
            if event["ts"] < since:
                return
            yield event
        if not page["events"] or not page.get("more"):
            return
        read += len(page["events"])
        before = page["events"][0]["seq"]
        if run.console.err.isatty():
            run.console.err.write(f"\r{read} events read, back to {stamp(page['events'][0]['ts'])} \x1b[K")
            run.console.err.write("\r\x1b[K" if page["events"][0]["ts"] < since else "")


def summary(events: Iterator[dict[str, Any]], sessions: list[dict[str, Any]], since: int) -> dict[str, Any]:
    """The digest of events (newest first) and of how all sessions stand now."""
    names = {one["sid"]: str(one.get("name") or one["sid"]) for one in sessions}
    work: dict[str, dict[str, int]] = {}
    caught: dict[tuple[str, str, str], int] = {}
    crons: dict[tuple[str, str, str], int] = {}
    denied: dict[tuple[str, str, str], int] = {}
    ended, boots = [], []
    for event in events:
        kind, body, sid = event["k"], event.get("b") or {}, str(event.get("sid") or "")
        done = work.setdefault(sid, {"turns": 0, "interrupted": 0, "tokens": 0}) if sid else {}
        match kind:
            case "turn.step":
                usage = body.get("usage") or {}
                done["tokens"] += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
            case "turn.completed":
                done["turns"] += 1
            case "turn.interrupted":
                done["interrupted"] += 1
            case "degeneration.detected" if not body.get("shadow"):
                key = (sid, str(body.get("rule")), str(body.get("verdict")))
                caught[key] = caught.get(key, 0) + 1
            case "session.ended":
                ended.append(
                    {
                        "sid": sid,
                        "at_ms": event["ts"],
                        **_picked(body, "status", "stop_reason", "explanation"),
                    }
                )
            case "cron.occurrence" if body.get("result") not in HARMLESS_CRONS:
                place = (sid, str(body.get("job")), str(body.get("result")))
                crons[place] = crons.get(place, 0) + 1
            case "command.denied":
                who = (str(body.get("principal")), str(body.get("cmd")), str(body.get("code")))
                denied[who] = denied.get(who, 0) + 1
            case "daemon.started":
                boots.append({"at_ms": event["ts"], "recovered": body.get("recovered", 0)})
            case _:
                pass
    return {
        "since_ms": since,
        "turns": sum(one["turns"] for one in work.values()),
        "interrupted": sum(one["interrupted"] for one in work.values()),
        "tokens": sum(one["tokens"] for one in work.values()),
        "worked": [
            {"sid": sid, "name": names.get(sid, sid), **one}
            for sid, one in sorted(work.items(), key=lambda item: -item[1]["tokens"])
            if one["turns"] or one["interrupted"]
        ],
        "needs_you": [one for one in sessions if needs_you(one)],
        "ended": [{"name": names.get(one["sid"], one["sid"]), **one} for one in ended],
        "caught": [
            {"sid": sid, "name": names.get(sid, sid), "rule": rule, "verdict": verdict, "times": times}
            for (sid, rule, verdict), times in sorted(caught.items(), key=lambda item: -item[1])
        ],
        "crons": [
            {"sid": sid, "name": names.get(sid, sid), "job": job, "result": result, "times": times}
            for (sid, job, result), times in sorted(crons.items())
        ],
        "denied": [
            {"principal": who, "cmd": command, "code": code, "times": times}
            for (who, command, code), times in sorted(denied.items())
        ],
        "boots": boots,
    }


def needs_you(session: dict[str, Any]) -> bool:
    """Whether only a person can get it going again, or should look at it."""
    if session.get("status", "live") != "live":
        return False
    kinds = {hold["kind"] for hold in session.get("holds") or ()}
    goal = (session.get("goal") or {}).get("status")
    return bool(kinds & {"Degeneration", "AwaitingApproval", "CrashLoop", "Budget"}) or goal in {
        "infeasible",
        "blocked",
    }


def _picked(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: body.get(name, "") for name in names}


def _show(run: Run, counted: dict[str, Any]) -> None:
    console, now = run.console, now_ms()
    ago = span(max(0, now - counted["since_ms"]))
    cut = f", {counted['interrupted']} interrupted" if counted["interrupted"] else ""
    console.line(
        console.styled(
            f"since {stamp(counted['since_ms'])} ({ago}): {plural(len(counted['worked']), 'sessions')} took "
            f"{plural(counted['turns'], 'turns')}{cut}, {counted['tokens']:,} tokens",
            "bold",
        )
    )
    for boot in counted["boots"]:
        console.line(f"the daemon started {stamp(boot['at_ms'])}, {boot['recovered']} turns recovered")
    _section(
        run,
        "needs you",
        ("SESSION", "WHY", "UNTIL"),
        [[Cell(one["name"], "bold"), because(one, now), ends(one, now)] for one in counted["needs_you"]],
        flex=1,
    )
    _section(
        run,
        "ended",
        ("SESSION", "STATE", "WHY", "WHEN"),
        [
            [
                one["name"],
                one["status"],
                f"{one['stop_reason']} {one['explanation']}".strip(),
                stamp(one["at_ms"]),
            ]
            for one in counted["ended"]
        ],
        flex=2,
    )
    _section(
        run,
        "caught",
        ("SESSION", "RULE", "VERDICT", "TIMES"),
        [[one["name"], one["rule"], one["verdict"], str(one["times"])] for one in counted["caught"]],
    )
    _section(
        run,
        "worked",
        ("SESSION", "TURNS", "TOKENS"),
        [[one["name"], str(one["turns"]), str(one["tokens"])] for one in counted["worked"]],
    )
    _section(
        run,
        "cron moments that did not fire",
        ("SESSION", "JOB", "RESULT", "TIMES"),
        [[one["name"], one["job"], one["result"], str(one["times"])] for one in counted["crons"]],
    )
    _section(
        run,
        "refused commands",
        ("WHO", "COMMAND", "CODE", "TIMES"),
        [[one["principal"], one["cmd"], one["code"], str(one["times"])] for one in counted["denied"]],
    )
    if not counted["needs_you"]:
        console.line(console.styled("nothing needs you", "green"))


def _section(
    run: Run,
    title: str,
    header: tuple[str, ...],
    rows: Sequence[Sequence[str | Cell]],
    *,
    flex: int = -1,
) -> None:
    if not rows:
        return
    run.console.line()
    run.console.line(run.console.styled(title, "magenta"))
    run.console.table(header, rows[:ROWS_MAX], flex=flex)
    if len(rows) > ROWS_MAX:
        run.console.line(safe(f"… and {len(rows) - ROWS_MAX} more; `-o json` has all"))
