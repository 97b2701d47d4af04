"""Verbs that explain and hand on what happened: fork, diff, anchors."""

from __future__ import annotations

from loopd.cli.console import safe
from loopd.cli.exits import FAILED, OK, Failure
from loopd.cli.instants import stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.console import Console
    from loopd.cli.run import Run

LONG_S = 3_600.0
"""How long an answer may take that goes through all of a log, unless `--timeout` says otherwise."""

SAME_SHOWN = 2


def turn_of(text: str) -> tuple[str, int | None]:
    """`SID` or `SID@N`."""
    sid, at, number = text.partition("@")
    if not at:
        return sid, None
    if not (number.isascii() and number.isdigit()) or not sid:
        raise Failure("usage", f"{text!r} names no turn; expected SID@N")
    return sid, int(number)


def patient(run: Run) -> None:
    """Wait long for an answer, unless told otherwise."""
    if run.args.timeout is None:
        run.link.timeout_s = max(run.link.timeout_s, LONG_S)


# -- fork -------------------------------------------------------------------------------------


def fork(run: Run) -> None:
    """Starts a live session from the end of a turn of another one."""
    args, console = run.args, run.console
    sid, n = turn_of(args.turn)
    command: dict[str, Any] = {"t": "session.fork", "sid": sid, "suspended": not args.open}
    if n is not None:
        command["n"] = n
    for name in ("name", "goal", "workspace"):
        if getattr(args, name) is not None:
            command[name] = getattr(args, name)
    if args.workspace is not None:
        import os

        command["workspace"] = os.path.abspath(args.workspace)
    if args.label:
        command["labels"] = dict(args.label)
    if args.set:
        command["set"] = dict(args.set)
    patient(run)
    answer = run.link.change(command)
    if console.format != "table":
        console.json(answer)
        return
    parent = answer["parent"]
    state = (
        "its gate is open" if args.open else f"suspended: `loopctl unsuspend {answer['name']}` lets it go on"
    )
    console.line(
        f"{safe(answer['name'])} knows what {safe(parent['name'])} knew after turn {parent['n']}; {state}"
    )
    if answer.get("workspace"):
        console.line(f"workspace {safe(answer['workspace'])}: {safe(answer['note'])}")


# -- diff -------------------------------------------------------------------------------------


def diff(run: Run) -> int:
    """What the model saw in one turn and not in another; exit code 1 when they differ."""
    args, console = run.args, run.console
    sid, n = turn_of(args.a)
    other_sid, other_n = turn_of(args.b if "@" in args.b or not args.b.isdigit() else f"{sid}@{args.b}")
    if n is None or other_n is None:
        raise Failure("usage", "expected two turns, for example `loopctl diff mapper@3 mapper@7`")
    answer = run.link.ask(
        {
            "t": "turn.diff",
            "sid": sid,
            "n": n,
            "step": args.step,
            "other_sid": other_sid,
            "other_n": other_n,
            "other_step": args.other_step,
        }
    )
    if console.format != "table":
        console.json(answer)
        return OK if answer["same"] else FAILED
    a, b = answer["a"], answer["b"]
    console.line(console.styled(f"--- {safe(args.a)}  {a['count']} messages", "bold"))
    console.line(console.styled(f"+++ {safe(args.b)}  {b['count']} messages", "bold"))
    for op in answer["ops"]:
        _operation(console, op)
    for name, side in ((args.a, a), (args.b, b)):
        if side["missing"]:
            gone = f"{len(side['missing'])} messages of {safe(name)} are not stored any more"
            console.line(console.styled(gone, "yellow"))
    if answer["same"]:
        console.line("the model saw the same")
    return OK if answer["same"] else FAILED


def _operation(console: Console, op: dict[str, Any]) -> None:
    match op["op"]:
        case "same":
            first, last = op["a"]
            count = last - first + 1
            console.line(console.styled(f"  {count} message{'s' if count > 1 else ''} the same", "dim"))
        case "removed":
            _message(console, "-", op["message"], "red")
        case "added":
            _message(console, "+", op["message"], "green")
        case _:
            _changed(console, op["before"], op["after"])


def _head(message: dict[str, Any]) -> str:
    source = message.get("source")
    role = str(message.get("role", ""))
    return f"[{role}{f', {source}' if source and source != role else ''}]"


def _lines(message: dict[str, Any]) -> list[str]:
    lines = safe(str(message.get("text") or ""), lines=True).split("\n")
    lines += [
        f"→ {safe(str(call.get('name')))}({safe(_compact(call.get('args')))})"
        for call in message.get("calls") or ()
    ]
    return [line for line in lines if line] or [""]


def _message(console: Console, mark: str, message: dict[str, Any], style: str) -> None:
    for line in (_head(message), *_lines(message)):
        console.line(console.styled(f"{mark} {line}", style))


def _changed(console: Console, before: dict[str, Any], after: dict[str, Any]) -> None:
    from difflib import unified_diff

    console.line(f"~ {_head(after)}")
    for line in list(unified_diff(_lines(before), _lines(after), lineterm="", n=SAME_SHOWN))[2:]:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.line(console.styled(line, style))


# -- anchors ----------------------------------------------------------------------------------


def anchors(run: Run) -> None:
    """Signed heads of the log."""
    found, keys = _anchors(run)
    if run.console.format != "table":
        run.console.json({"anchors": found, "keys": keys})
        return
    if not found:
        run.console.line(
            "no anchors yet: one is made every 1,000 events, and once a minute while there are new ones"
        )
        return
    rows = [[str(a["seq"]), stamp(a["at_ms"]), a["key"], a["h"]] for a in found[-run.args.limit :]]
    run.console.table(("SEQ", "WHEN", "KEY", "HASH"), rows, flex=3)
    for key in keys:
        run.console.line(f"public key {safe(key['key'])}: {safe(key['public'])}")


def export_anchors(run: Run) -> None:
    """All anchors as JSON lines, to be kept where the daemon cannot reach them."""
    import json
    import sys

    found, _ = _anchors(run)
    lines = "".join(json.dumps(anchor, separators=(",", ":")) + "\n" for anchor in found)
    if run.args.file is None or run.args.file == "-":
        sys.stdout.write(lines)
        return
    try:
        with open(run.args.file, "a" if run.args.append else "w", encoding="utf-8") as out:
            out.write(lines)
    except OSError as error:
        raise Failure("invalid", f"cannot write {run.args.file!r}: {error.strerror}") from None
    run.console.line(f"{len(found)} anchors, the last one at seq {found[-1]['seq'] if found else 0}")


def _anchors(run: Run) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    after = run.args.after or 0
    while True:
        answer = run.link.ask({"t": "anchor.list", "after": after, "limit": 1_000})
        found += answer["anchors"]
        if len(answer["anchors"]) < 1_000:
            return found, answer["keys"]
        after = found[-1]["seq"]


def _compact(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
