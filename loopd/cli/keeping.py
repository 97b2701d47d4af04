"""Verbs about the age and the size of the journal: retention and db."""

from __future__ import annotations

import os
import time

from loopd.cli.bar import size
from loopd.cli.console import plural, safe
from loopd.cli.instants import now_ms, span, stamp
from loopd.cli.selection import change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run

POLL_S = 0.2
COPY_S = 86_400.0
"""A copy takes as long as its disk; nobody should have to guess a time for it."""


def status(run: Run) -> None:
    """What is kept for how long, what is being deleted, what is gone."""
    answer = run.link.ask({"t": "retention.status"})
    console = run.console
    if console.format != "table":
        console.json(answer)
        return
    working, last, oldest = answer.get("working"), answer.get("last"), answer.get("oldest")
    console.pairs(
        [
            ("content", _days(answer["content_days"])),
            ("metadata", _days(answer["metadata_days"])),
            ("content is gone", f"through event {answer['content_seq']}" if answer["content_seq"] else ""),
            ("oldest event", f"{oldest['seq']} of {stamp(oldest['at_ms'])}" if oldest else ""),
            ("now", _working(working, running=bool(answer.get("running")))),
            ("last run", _last(last) if last else ""),
        ]
    )
    if answer["holds"]:
        console.line()
        console.table(
            ("LEGAL HOLD", "SINCE", "BY", "REASON"),
            [
                (safe(h["name"]), stamp(h["since_ms"]), safe(h["by"]), safe(h["reason"]))
                for h in answer["holds"]
            ],
            flex=3,
        )
    if answer["segments"]:
        console.line()
        console.table(
            ("MONTH", "EVENTS", "STATE"),
            [
                (
                    s["month"],
                    f"{s['last'] - s['first'] + 1:,}",
                    _month(s),
                )
                for s in answer["segments"]
            ],
            flex=2,
        )


def _days(days: int) -> str:
    return f"{days} days" if days else "for ever"


def _working(working: dict[str, Any] | None, *, running: bool) -> str:
    if working is None:
        return "looking for what is due" if running else "idle"
    where = f", at {working['next']} of {working['last']}" if working.get("last") else ""
    return f"deleting {working['what']}{where}: {working['count']:,} so far, {size(working['bytes'])}"


def _last(last: dict[str, Any]) -> str:
    months = f", {len(last['months'])} months" if last["months"] else ""
    return (
        f"{stamp(last['at_ms'])}: content of {last['content']:,} events, {last['blobs']:,} blobs{months},"
        f" {size(last['bytes'])} in {span(last['took_ms'])}"
    )


def _month(segment: dict[str, Any]) -> str:
    if segment.get("deleted_ms") is not None:
        return f"deleted {stamp(segment['deleted_ms'])}"
    kept = segment.get("kept_for") or []
    if kept:
        whose = ", ".join(f"{safe(k['sid'])} ({safe(k['why'])})" for k in kept)
        return f"kept for {whose}"
    return "sealed"


def run_now(run: Run) -> None:
    """Deletes what is due now, or says what it would delete."""
    args, console = run.args, run.console
    if args.dry_run:
        answer = run.link.ask({"t": "retention.run", "dry_run": True})
        if console.format != "table":
            console.json(answer)
            return
        content, months = answer["content"], answer["months"]
        console.line(
            f"content of {content['events']:,} events ({size(content['bytes'])}) through event"
            f" {content['through']} is older than the policy {safe(content['policy'])!r} allows"
            if content["events"]
            else "no content is due"
        )
        for month in months:
            console.line(
                f"month {month['month']}, events {month['first']} to {month['last']}: {_would(month)}"
            )
        return
    before = run.link.ask({"t": "retention.status"}).get("last")
    answer = run.link.change({"t": "retention.run"})
    if args.wait:
        while (answer := run.link.ask({"t": "retention.status"}))["running"] or answer.get("last") == before:
            time.sleep(POLL_S)
    if console.format != "table":
        console.json(answer)
    elif args.wait:
        console.line(_last(answer["last"]))
    else:
        console.line("deleting what is due in the background; `loopctl retention status` shows how far it is")


def _would(month: dict[str, Any]) -> str:
    kept = month["kept_for"]
    return _month({"kept_for": kept}) if kept else "would be deleted"


def hold(run: Run) -> int:
    """Nothing of a session is deleted until it is released."""
    words = "nothing of it is deleted until `loopctl retention release`"
    return _hold(run, "retention.hold", "put under legal hold", words)


def release(run: Run) -> int:
    """Ends a legal hold."""
    return _hold(run, "retention.release", "released", "retention goes by age again")


def _hold(run: Run, command: str, done: str, words: str) -> int:
    answer, code = change(run, {"t": command, "reason": run.args.reason or ""}, done)
    if answer is not None:
        run.console.line(f"{safe(answer['name'])}: {words}")
    return code


def db_status(run: Run) -> None:
    """Sizes of the database."""
    answer = run.link.ask({"t": "db.status"})
    console = run.console
    if console.format != "table":
        console.json(answer)
        return
    free = answer["free_pages"] * answer["page_bytes"]
    oldest = answer.get("oldest_ms")
    console.pairs(
        [
            ("database", size(answer["pages"] * answer["page_bytes"])),
            (
                "free in it",
                f"{size(free)}{'' if answer['shrinks'] else ', used again; the file never shrinks'}",
            ),
            ("write-ahead log", size(answer.get("wal_bytes", 0))),
            ("schema", str(answer["schema"])),
            ("events", f"{answer['oldest_seq']} to {answer['head']}" if answer["oldest_seq"] else "none"),
            ("oldest", f"{stamp(oldest)} ({span(now_ms() - oldest)} ago)" if oldest else ""),
            ("sessions", f"{answer['sessions']:,}"),
            ("idempotency keys", f"{answer['keys']:,}"),
        ]
    )


def snapshot(run: Run) -> None:
    """A checked copy of one moment of the journal."""
    args, console = run.args, run.console
    run.link.timeout_s = max(run.link.timeout_s, COPY_S)
    command = {"t": "db.snapshot", "path": os.path.abspath(args.file), "verify": args.verify}
    answer = run.link.change(command)
    if console.format != "table":
        console.json(answer)
        return
    checked = answer.get("verified")
    console.line(
        f"{safe(answer['path'])}: {size(answer['bytes'])}, everything through event {answer['head']}"
    )
    console.pairs(
        [
            ("sha256", answer["sha256"]),
            ("head hash", answer.get("head_hash") or ""),
            (
                "verified",
                ", ".join(plural(checked[things], things) for things in ("events", "sessions", "blobs"))
                if checked
                else "its pages and the end of its chain",
            ),
        ]
    )
