"""Verbs about how a run went, and about going on with it."""

from __future__ import annotations

from loopd.cli import arguments as arg
from loopd.cli.console import safe
from loopd.cli.exits import OK
from loopd.cli.selection import change

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from loopd.cli.run import Run


def report_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl report`."""
    arg.sid(parser)
    parser.add_argument(
        "--format", choices=("md", "json"), default="md", help="Markdown, or JSON (default: md; -o json too)"
    )


def resume_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl resume`."""
    arg.selection(parser, ended=True)
    arg.reason(parser)


def report(run: Run) -> int:
    """How the run went: status, reason, counters, timeline; for a live session as it stands."""
    as_json = run.args.format == "json" or run.console.format != "table"
    form = "json" if as_json else "md"
    answer = run.link.ask({"t": "report", "sid": run.args.sid, "format": form})
    if as_json:
        run.console.json(answer["report"])
    else:
        run.console.line(safe(str(answer.get("text", "")).rstrip("\n"), lines=True))
    return OK


def resume(run: Run) -> int:
    """Goes on with an ended session as a new run, or grants more steps."""
    command: dict[str, Any] = {"t": "session.resume"}
    if run.args.reason:
        command["reason"] = run.args.reason
    answer, code = change(run, command, "resumed")
    if answer is None:
        return code
    holds = ", ".join(hold["kind"] for hold in answer.get("holds") or [])
    gate = f"its gate is closed by {holds}" if holds else "its gate is open"
    run.console.line(f"{safe(run.args.sid[0])} goes on as run {answer.get('run')}; {gate}")
    return code
