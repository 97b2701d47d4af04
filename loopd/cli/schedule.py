"""Verbs about cron jobs and waiting envelopes."""

from __future__ import annotations

from loopd.cli import selection
from loopd.cli.console import Cell, safe
from loopd.cli.exits import Failure
from loopd.cli.instants import now_ms, span, stamp, until
from loopd.cli.sessions import text_or_stdin
from loopd.cli.standing import names_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run

RESULT_STYLES = {"missed": "red", "skipped": "yellow", "held": "yellow", "late": "yellow", "fired": "green"}


def put(run: Run) -> int:
    """Creates or replaces a job."""
    args = run.args
    command = {
        "t": "cron.put",
        "job": args.job,
        "expr": args.expr,
        "text": text_or_stdin(args.text),
        "tz": args.tz,
        "missed": args.missed,
        "catchup_ms": args.catchup,
    }
    return _job_changed(run, command, "put", "given the job")


def change(run: Run) -> int:
    """Pauses, resumes or removes a job: the verb names the command."""
    done = {"cron pause": "paused", "cron resume": "resumed", "cron remove": "removed"}[run.verb]
    many = "rid of the job" if done == "removed" else done
    return _job_changed(run, {"t": run.verb.replace(" ", "."), "job": run.args.job}, done, many)


def _job_changed(run: Run, command: dict[str, Any], done: str, many: str) -> int:
    answer, code = selection.change(run, command, many)
    if answer is None:
        return code
    job = answer.get("job") if isinstance(answer.get("job"), dict) else answer
    moment = job.get("next_ms") if job and run.verb in {"cron put", "cron resume"} else None
    then = f"; next {until(moment, now_ms())}" if moment is not None else ""
    run.console.line(f"{safe(run.args.job)} {done}{then}")
    return code


def run_now(run: Run) -> int:
    """Fires a job now, through the gate."""
    answer, code = selection.change(run, {"t": "cron.run", "job": run.args.job}, "fired")
    if answer is None:
        return code
    held = f"; held by {', '.join(answer.get('by') or ['the gate'])}" if answer.get("held") else ""
    run.console.line(safe(f"fired {run.args.job} as {answer.get('envelope')}{held}"))
    return code


def next_moments(run: Run) -> None:
    """The next due moments of a job, or of an expression that is tried out."""
    args = run.args
    command: dict[str, Any] = {"t": "cron.next", "count": args.limit}
    if args.expr is not None:
        if args.job is not None:
            raise Failure("usage", "--expr is tried out by itself; expected SID JOB or --expr EXPR")
        command.update(expr=args.expr, tz=args.tz)
    elif args.sid is None or args.job is None:
        raise Failure("usage", "which job? expected SID JOB or --expr EXPR")
    else:
        command.update(sid=args.sid, job=args.job)
    answer = run.link.ask(command)
    if run.console.format == "json":
        run.console.json(answer)
        return
    now = now_ms()
    for moment in answer["next"]:
        if run.console.format == "ndjson":
            run.console.json(moment)
        else:
            run.console.line(f"{stamp(moment)}  (in {span(max(0, moment - now))})")


def jobs(run: Run) -> None:
    """Jobs of one session or of all."""
    command: dict[str, Any] = {"t": "cron.list"}
    if run.args.sid is not None:
        command["sid"] = run.args.sid
    answer = run.link.ask(command)
    if not _as_records(run, answer, "jobs"):
        return
    now = now_ms()
    names = names_of(run, *([run.args.sid] if run.args.sid is not None else []))
    run.console.table(
        ("SESSION", "JOB", "WHEN", "ZONE", "NEXT", "MISSED", "TEXT"),
        [
            [
                names.get(job.get("sid", ""), str(job.get("sid", ""))),
                Cell(job["job"], "bold"),
                job["expr"],
                job.get("tz", "UTC"),
                Cell("paused", "yellow")
                if job.get("paused")
                else until(job["next_ms"], now)
                if job.get("next_ms")
                else "-",
                str(job.get("missed", "")),
                str(job.get("text", "")),
            ]
            for job in answer["jobs"]
        ],
        flex=6,
        optional=(5,),
    )


def history(run: Run) -> None:
    """What became of each due moment."""
    command: dict[str, Any] = {"t": "cron.history", "sid": run.args.sid, "limit": run.args.limit}
    if run.args.job is not None:
        command["job"] = run.args.job
    answer = run.link.ask(command)
    if not _as_records(run, answer, "occurrences"):
        return
    run.console.table(
        ("DUE", "JOB", "RESULT", "LATE", "BY HAND", "ENVELOPE"),
        [
            [
                stamp(item["due_ms"]),
                str(item["job"]),
                Cell(item["result"], RESULT_STYLES.get(item["result"], "")),
                span(item["late_ms"]) if item.get("late_ms") else "",
                "yes" if item.get("manual") else "",
                str(item.get("envelope") or ""),
            ]
            for item in answer["occurrences"]
        ],
    )


def inbox(run: Run) -> None:
    """Envelopes that wait, in order of delivery."""
    answer = run.link.ask({"t": "inbox.list", "sid": run.args.sid})
    if not _as_records(run, answer, "envelopes"):
        return
    now = now_ms()
    run.console.table(
        ("ENVELOPE", "SOURCE", "WAITING", "JOB", "COUNT", "TEXT"),
        [
            [
                str(item["id"]),
                str(item.get("source", "")),
                span(max(0, now - item.get("at_ms", now))),
                str(item.get("job") or ""),
                str(item.get("count", 1)),
                str(item.get("text") or ""),
            ]
            for item in answer["envelopes"]
        ],
        flex=5,
    )


def drop(run: Run) -> None:
    """Drops one waiting envelope."""
    answer = run.link.change({"t": "inbox.drop", "sid": run.args.sid, "id": run.args.id})
    if run.console.format == "table":
        run.console.line(f"dropped {safe(run.args.id)}")
    else:
        run.console.json(answer)


def _as_records(run: Run, answer: dict[str, Any], name: str) -> bool:
    """Print records for programs; whether a table is still to be printed."""
    if run.console.format == "json":
        run.console.json(answer)
    elif run.console.format == "ndjson":
        for record in answer[name]:
            run.console.json(record)
    elif not answer[name]:
        run.console.line(f"no {name}")
    else:
        return True
    return False
