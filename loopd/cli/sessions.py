"""Verbs about one session, or about all that a label selects."""

from __future__ import annotations

import sys

from loopd.cli import arguments as arg
from loopd.cli.console import safe
from loopd.cli.exits import Failure
from loopd.cli.instants import now_ms, span, until
from loopd.cli.selection import called, change, checked
from loopd.cli.standing import HOLDS_HEADER, holds_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run

STDIN_MAX_CHARS = 1_000_000
COMING = {
    "turn_end": "when the turn ends",
    "approval": "denied, if nobody answers",
    "continuation": "a continuation",
    "hold_ends": "a hold ends",
    "cron": "a cron job",
    "wake": "a wake-up",
}
"""What happens next, as `why` says it."""
GOAL_DONE = {
    "goal.set": "given the goal",
    "goal.pause": "paused",
    "goal.resume": "resumed",
    "goal.infeasible": "declared infeasible",
    "goal.complete": "declared complete",
    "goal.clear": "rid of the goal",
}
"""What was done to each of many sessions."""


def hold_of(text: str) -> str:
    """A kind of hold that stands behind the sessions."""
    from argparse import ArgumentTypeError

    try:
        return arg.hold(text)
    except ArgumentTypeError as error:
        raise Failure("usage", str(error)) from None


def text_or_stdin(text: str) -> str:
    """The text itself, or standard input for `-`."""
    if text != "-":
        return text
    read = sys.stdin.read(STDIN_MAX_CHARS + 1)
    if len(read) > STDIN_MAX_CHARS:
        raise Failure("invalid", f"standard input has over {STDIN_MAX_CHARS} characters")
    if not read.strip():
        raise Failure("invalid", "standard input is empty; expected a text")
    return read


# -- one or many ------------------------------------------------------------------------------


def suspend(run: Run) -> int:
    """Closes the gate; the answer's `seq` is the proof."""
    args = run.args
    command: dict[str, Any] = {"t": "suspend", "mode": args.mode}
    if args.reason:
        command["reason"] = args.reason
    if args.until is not None:
        command["until_ms"] = args.until
    if args.quarantine:
        command["quarantine"] = True
    answer, code = change(run, command, "suspended")
    if answer is None:
        return code
    now, turn = now_ms(), answer.get("turn")
    when = f" until {until(args.until, now)}" if args.until is not None else " until unsuspended"
    run.console.line(f"suspended {safe(answer['sid'])}{when}; proof: seq {answer['seq']}")
    if turn:
        wills = {
            "finish": "it finishes, then nothing starts",
            "interrupt": "it is cut off now",
            "kill": "it is killed now",
        }
        will = wills.get(turn.get("will", ""), safe(str(turn.get("will"))))
        run.console.line(f"turn {turn['n']} is {safe(str(turn.get('state', 'running')))}: {will}")
    else:
        run.console.line("no turn was running")
    run.console.line(
        f"check it later: loopctl verify {safe(answer['sid'])} --suspended-since {answer['seq']}"
    )
    return code


def unsuspend(run: Run) -> int:
    """Removes `UserSuspend` and nothing else."""
    command: dict[str, Any] = {"t": "unsuspend"}
    if run.args.reason:
        command["reason"] = run.args.reason
    return _lifted(run, command, "unsuspended")


def gate_open(run: Run) -> int:
    """Removes holds that an operator may remove by hand."""
    command: dict[str, Any] = {"t": "gate.open"}
    if run.args.kind:
        command["kind"] = run.args.kind
    if run.args.reason:
        command["reason"] = run.args.reason
    return _lifted(run, command, "opened")


def _lifted(run: Run, command: dict[str, Any], done: str) -> int:
    answer, code = change(run, command, done)
    if answer is None:
        return code
    console = run.console
    removed = answer.get("removed") or []
    console.line(
        f"{safe(answer['sid'])}: removed {safe(', '.join(map(str, removed)))}"
        if removed
        else f"{safe(answer['sid'])}: nothing to remove"
    )
    if answer.get("holds"):
        console.line("the gate stays closed:")
        console.table(HOLDS_HEADER, holds_table(answer["holds"], now_ms()), flex=3)
    else:
        console.line("the gate is open")
    return code


def interrupt(run: Run) -> int:
    """Cuts the running turn; says when the session resumes."""
    args = run.args
    command: dict[str, Any] = {"t": "interrupt"}
    if args.for_ms is not None:
        command["for_ms"] = args.for_ms
    if args.suspend:
        command["suspend"] = True
    if args.reason:
        command["reason"] = args.reason
    answer, code = change(run, command, "interrupted")
    if answer is None:
        return code
    turn = answer.get("turn")
    number = turn.get("n") if isinstance(turn, dict) else turn
    what = f"turn {number} is cut off" if number else "no turn was running"
    resumes = answer.get("resumes_ms")
    run.console.line(
        f"{what}; nothing automatic starts "
        + (f"until {until(resumes, now_ms())}" if resumes is not None else "until it is unsuspended")
    )
    return code


def end(run: Run) -> int:
    """Ends sessions for good."""
    command: dict[str, Any] = {"t": "session.end"}
    if run.args.reason:
        command["reason"] = run.args.reason
    answer, code = change(run, command, "ended")
    if answer is None:
        return code
    run.console.line(f"ended {safe(str(answer.get('sid', run.args.sid[0])))}")
    return code


def send(run: Run) -> int:
    """Sends a message; succeeds once it is durable, held or not."""
    command: dict[str, Any] = {"t": "send", "text": text_or_stdin(run.args.text)}
    if run.args.dedupe:
        command["dedupe"] = run.args.dedupe
    answer, code = change(run, command, "written to")
    if answer is None:
        return code
    held = f"; held by {', '.join(answer.get('by') or ['the gate'])}" if answer.get("held") else ""
    run.console.line(safe(f"accepted as {answer['id']} (seq {answer['seq']}){held}"))
    if held:
        run.console.line(f"why, and until when: loopctl why {safe(run.args.sid[0])}")
    return code


def gate_extend(run: Run) -> int:
    """Moves the deadline of one hold later."""
    args, kind = run.args, run.args.kind
    one = len(args.sid) == 1 and not args.label
    if kind is None and args.sid and not one:
        kind = hold_of(args.sid.pop())
    checked(run)
    if kind is None and not one:
        raise Failure("usage", "which hold? expected --kind KIND, for many sessions")
    if kind is None:
        gate = run.link.ask({"t": "gate.get", "sid": args.sid[0]})
        kinds = [hold["kind"] for hold in gate.get("holds") or []]
        if len(kinds) != 1:
            stands = ", ".join(kinds) or "none"
            raise Failure(
                "usage",
                f"which hold? {args.sid[0]} has {stands}; expected KIND",
                hint="loopctl gate get SID",
            )
        kind = kinds[0]
    command = {"t": "gate.extend", "kind": kind, "until_ms": args.until}
    answer, code = change(run, command, "extended")
    if answer is not None:
        run.console.line(f"{safe(args.sid[0])}: {kind} until {until(args.until, now_ms())}")
    return code


def goal_set(run: Run) -> int:
    """Sets or replaces the goal."""
    return _goal_changed(run, {"t": "goal.set", "text": text_or_stdin(run.args.text)})


def goal_change(run: Run) -> int:
    """Changes the goal's status: the verb names the command."""
    command: dict[str, Any] = {"t": run.verb.replace(" ", ".")}
    if getattr(run.args, "reason", ""):
        command["reason"] = run.args.reason
    return _goal_changed(run, command)


def _goal_changed(run: Run, command: dict[str, Any]) -> int:
    answer, code = change(run, command, GOAL_DONE[command["t"]])
    if answer is not None:
        goal = answer.get("goal")
        run.console.line(safe(f"goal {goal['status']}: {goal.get('text', '')}" if goal else "no goal"))
    return code


# -- one session ------------------------------------------------------------------------------


HOUSE_ENDS = {
    "freeze": "; `loopctl unfreeze` ends it",
    "maintenance": "; the disk is full: make room, it goes on by itself",
}


def why(run: Run) -> None:
    """Why a session does not run, who said so, what waits, and when it ends."""
    answer = run.link.ask({"t": "why", "sid": run.args.sid})
    console = run.console
    if console.format != "table":
        console.json(answer)
        return
    now, holds = now_ms(), answer.get("holds") or []
    style = "yellow" if answer["gate"] == "closed" else "green"
    console.line(f"{safe(called(answer))}: gate {console.styled(answer['gate'], style)}")
    if holds:
        console.table(HOLDS_HEADER, holds_table(holds, now), flex=3)
        for line in answers(answer):
            console.line(line)
    if answer.get("house"):
        lifted = HOUSE_ENDS.get(answer["house"], "")
        console.line(f"the whole daemon admits nothing: {safe(answer['house'])}{lifted}")
    goal, turn = answer.get("goal") or {}, answer.get("turn")
    coming = answer.get("next") or {}
    at, what = coming.get("at_ms"), COMING.get(coming.get("what", ""), coming.get("what", ""))
    console.pairs(
        [
            ("goal", f"{goal['status']}: {goal.get('text', '')}" if goal else "none"),
            ("turn", f"{turn['n']} runs, {turn.get('trigger', '')}" if turn else ""),
            ("near", ", ".join(answer.get("near") or {})),
            (
                "next",
                f"{what} {until(at, now) if at is not None else ''}" if coming else "",
            ),
        ]
    )
    held_back = answer.get("held_back") or []
    if held_back:
        console.line(f"held back: {len(held_back)}")
        console.table(
            ("ENVELOPE", "SOURCE", "WAITING", "JOB", "COUNT", "HELD BY"),
            [
                [
                    str(item["id"]),
                    str(item.get("source", "")),
                    span(max(0, now - item.get("at_ms", now))),
                    str(item.get("job") or ""),
                    str(item.get("count", 1)),
                    ", ".join(item.get("by") or []),
                ]
                for item in held_back
            ],
            flex=5,
        )


def answers(answer: dict[str, Any]) -> list[str]:
    """What a person can do about holds that `gate open` does not remove."""
    name, found = safe(called(answer)), []
    for hold in answer.get("holds") or []:
        if hold["kind"] == "AwaitingApproval":
            found.append(f"answer it: loopctl approve {name} | loopctl deny {name} --reason TEXT")
        elif hold["kind"] == "UserSuspend":
            found.append(f"lift it: loopctl unsuspend {name}")
        elif hold["kind"] == "Budget":
            found.append(
                f"what is left: loopctl budget {name}; raise it: loopctl budget set {name} KIND=AMOUNT/WINDOW"
            )
    return found


def gate_get(run: Run) -> None:
    """The gate with its holds."""
    answer = run.link.ask({"t": "gate.get", "sid": run.args.sid})
    if run.console.format != "table":
        run.console.json(answer)
        return
    holds = answer.get("holds") or []
    run.console.line(f"gate {'closed' if holds else 'open'}")
    if holds:
        run.console.table(HOLDS_HEADER, holds_table(holds, now_ms()), flex=3)
