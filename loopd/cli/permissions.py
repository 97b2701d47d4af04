"""Rules about tool calls on the command line, and the verbs `approvals`, `approve`, `deny`."""

from __future__ import annotations

import argparse

from loopd.cli import arguments as arg
from loopd.cli.console import Cell, safe
from loopd.cli.exits import OK, Failure
from loopd.cli.instants import now_ms, span, until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loopd.cli.run import Run

CONDITIONS = {"class": "tool_class", "tool": "tool", "command": "command", "path": "path"}


# -- arguments ----------------------------------------------------------------------------------


def rule(effect: str) -> Callable[[str], dict[str, Any]]:
    """A parser of `class:exec`, `command:git push *`, or several joined by commas: `class:edit,path:src/**`."""

    def parsed(text: str) -> dict[str, Any]:
        found: dict[str, Any] = {"effect": effect}
        if text == "all":
            return found
        for part in _parts(text):
            name, colon, pattern = part.partition(":")
            if name not in CONDITIONS or not colon or not pattern:
                raise argparse.ArgumentTypeError(
                    f"{part!r} is no condition; expected all, or class:, tool:, command: or path: with a pattern"
                )
            found[CONDITIONS[name]] = pattern
        return found

    return parsed


def _parts(text: str) -> list[str]:
    """Cut at commas that begin another condition; others belong to a pattern."""
    parts: list[str] = []
    for piece in text.split(","):
        if parts and piece.partition(":")[0].strip() not in CONDITIONS:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece.strip())
    return parts


def policy_arguments(parser: argparse.ArgumentParser) -> None:
    """`--allow`, `--ask`, `--deny`: their order on the command line is the order of the rules."""
    group = parser.add_argument_group("what the agent may do (the first rule that fits decides)")
    for effect, meaning in (
        ("allow", "let such tool calls run"),
        ("ask", "let a person decide about such tool calls"),
        ("deny", "refuse such tool calls"),
    ):
        group.add_argument(
            f"--{effect}",
            dest="policy",
            type=rule(effect),
            action="append",
            metavar="RULE",
            help=f"{meaning}: class:C, tool:GLOB, command:GLOB, path:GLOB, joined by commas, or all",
        )


def listed(parser: argparse.ArgumentParser) -> None:
    """`loopctl approvals`."""
    arg.sid(parser, "?", "only those of this session")


def answered(parser: argparse.ArgumentParser) -> None:
    """`loopctl approve` and `loopctl deny`."""
    parser.add_argument("id", metavar="ID", help="id of the approval, or of a session with only one")
    parser.add_argument(
        "--scope",
        choices=("once", "session"),
        default="once",
        help="answer the same call of the same tool like this for as long as the session exists (default: once)",
    )
    arg.reason(parser)


# -- verbs --------------------------------------------------------------------------------------


def approvals(run: Run) -> int:
    """What waits for a person's answer, the most urgent first."""
    found = _open(run, run.args.sid)
    if run.console.format == "ndjson":
        for each in found:
            run.console.json(each)
    elif run.console.format == "json":
        run.console.json({"approvals": found})
    elif not found:
        run.console.line("nothing waits for an answer")
    else:
        now = now_ms()
        run.console.table(
            ("ID", "SESSION", "TOOL", "WHAT", "WAITING", "DENIED AT", "RULE"),
            [
                [
                    Cell(each["id"], "bold"),
                    str(each.get("name") or each["sid"]),
                    str(each["tool"]),
                    str(each.get("excerpt") or ""),
                    span(max(0, now - each["asked_ms"])),
                    until(each["until_ms"], now),
                    str(each.get("rule") or ""),
                ]
                for each in found
            ],
            flex=3,
            optional=(6, 4),
        )
        run.console.line("answer with `loopctl approve ID` or `loopctl deny ID --reason TEXT`")
    return OK


def answer(run: Run) -> int:
    """Answers one question: the verb says how."""
    args = run.args
    chosen = _chosen(run, args.id)
    command = {
        "t": "approval.answer",
        "sid": chosen["sid"],
        "id": chosen["id"],
        "answer": "allow" if run.verb == "approve" else "deny",
        "scope": args.scope,
    }
    if args.reason:
        command["reason"] = args.reason
    told = run.link.change(command)
    if run.console.format != "table":
        run.console.json(told)
        return OK
    done = "approved" if run.verb == "approve" else "denied"
    lasting = " for the whole session" if args.scope == "session" else ""
    what = f"{chosen.get('tool', '')} {chosen.get('excerpt', '')}".strip()
    run.console.line(safe(f"{done}{lasting}: {chosen['id']} {what} ({chosen.get('name') or chosen['sid']})"))
    return OK


def _open(run: Run, sid: str | None) -> list[dict[str, Any]]:
    command: dict[str, Any] = {"t": "approval.list"}
    if sid is not None:
        command["sid"] = sid
    return list(run.link.ask(command)["approvals"])


def _chosen(run: Run, ref: str) -> dict[str, Any]:
    """The open question that is meant; one that is closed is left to the daemon to say so."""
    try:
        found = _open(run, None)
    except Failure as failure:
        if failure.code != "forbidden" or not ref.startswith("apr_"):
            raise
        found = []  # who may answer need not be allowed to read
    exact = [each for each in found if each["id"] == ref]
    if exact:
        return exact[0]
    if ref.startswith("apr_"):
        session = _session_of(run, ref)
        if session is not None:
            return {"id": ref, "sid": session}
        raise Failure("not_found", f"no approval {ref!r} waits", hint="loopctl approvals")
    of = [each for each in found if ref in {each["sid"], each.get("name")}]
    if len(of) == 1:
        return of[0]
    if not of:
        raise Failure("not_found", f"nothing of {ref!r} waits for an answer", hint="loopctl approvals")
    ids = ", ".join(each["id"] for each in of)
    raise Failure("usage", f"{ref} has {len(of)} open questions: {ids}; expected one of them")


def _session_of(run: Run, approval: str) -> str | None:
    """The session whose number an id carries: `apr_<number>_…`."""
    from loopd.cli.standing import all_sessions

    number = approval.split("_")[1] if approval.count("_") == 2 else ""
    if not number.isdigit():
        return None
    stem = f"ses_{int(number):x}"
    return next(
        (s["sid"] for s in all_sessions(run) if s["sid"].startswith(stem) and len(s["sid"]) == len(stem) + 8),
        None,
    )
