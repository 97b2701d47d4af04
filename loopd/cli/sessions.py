"""Verbs about one session, or about all that a label selects."""

from __future__ import annotations

import sys

from loopd.cli.console import safe
from loopd.cli.exits import OK, Failure, exit_of
from loopd.cli.instants import now_ms, span, until
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
EACH = "each"
"""Stands where a batch puts the session's own id."""


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


def _carry_out(run: Run, command: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """One direct command, or a batch. Returns the answer and whether it is that of one session."""
    args = run.args
    if not (args.sid or args.label or args.all):
        raise Failure("usage", "which session? expected SID, -l KEY=VALUE or --all")
    if args.all and (args.sid or args.label):
        raise Failure("usage", "--all selects every live session; it goes without SID and -l")
    if len(args.sid) == 1 and not args.label and not args.dry_run:
        return run.link.change({**command, "sid": args.sid[0]}), True
    selector: dict[str, Any] = {}
    if args.sid:
        selector["sids"] = args.sid
    if args.label:
        selector["labels"] = dict(args.label)
    batch = {"t": "batch", "selector": selector, "cmd": {**command, "sid": EACH}}
    if args.dry_run:
        return run.link.ask({**batch, "dry_run": True}), False
    return run.link.change(batch), False


def _batch_told(run: Run, answer: dict[str, Any], done: str) -> int:
    console = run.console
    results = answer.get("results", [])
    failed = [result for result in results if not result.get("ok")]
    if console.format == "json":
        console.json(answer)
    elif console.format == "ndjson":
        for record in answer.get("would", results):
            console.json(record)
    elif "would" in answer:
        would = answer["would"]
        console.line(f"would be {done}: {len(would)}")
        for session in would:
            console.line(f"  {safe(_called(session))}")
    else:
        for result in results:
            error = result.get("error") or {}
            words = done if result.get("ok") else f"{error.get('code')}: {error.get('message')}"
            style = "" if result.get("ok") else "red"
            console.line(f"{safe(_called(result))}  {console.styled(safe(words), style)}")
        console.line(f"{len(results) - len(failed)} of {len(results)} {done}")
    return exit_of(str((failed[0].get("error") or {}).get("code", "conflict"))) if failed else OK


def _called(session: dict[str, Any] | str) -> str:
    """The name of a session in an answer, or its id."""
    return session if isinstance(session, str) else str(session.get("name") or session["sid"])


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
    answer, single = _carry_out(run, command)
    if not single:
        return _batch_told(run, answer, "suspended")
    if run.console.format != "table":
        run.console.json(answer)
        return OK
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
    return OK


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
    answer, single = _carry_out(run, command)
    if not single:
        return _batch_told(run, answer, done)
    console = run.console
    if console.format != "table":
        console.json(answer)
        return OK
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
    return OK


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
    answer, single = _carry_out(run, command)
    if not single:
        return _batch_told(run, answer, "interrupted")
    if run.console.format != "table":
        run.console.json(answer)
        return OK
    turn = answer.get("turn")
    number = turn.get("n") if isinstance(turn, dict) else turn
    what = f"turn {number} is cut off" if number else "no turn was running"
    resumes = answer.get("resumes_ms")
    run.console.line(
        f"{what}; nothing automatic starts "
        + (f"until {until(resumes, now_ms())}" if resumes is not None else "until it is unsuspended")
    )
    return OK


def end(run: Run) -> int:
    """Ends sessions for good."""
    command: dict[str, Any] = {"t": "session.end"}
    if run.args.reason:
        command["reason"] = run.args.reason
    answer, single = _carry_out(run, command)
    if not single:
        return _batch_told(run, answer, "ended")
    if run.console.format == "table":
        run.console.line(f"ended {safe(str(answer.get('sid', run.args.sid[0])))}")
    else:
        run.console.json(answer)
    return OK


# -- one session ------------------------------------------------------------------------------


def send(run: Run) -> None:
    """Sends a message; succeeds once it is durable, held or not."""
    command: dict[str, Any] = {"t": "send", "sid": run.args.sid, "text": text_or_stdin(run.args.text)}
    if run.args.dedupe:
        command["dedupe"] = run.args.dedupe
    answer = run.link.change(command)
    if run.console.format != "table":
        run.console.json(answer)
        return
    held = f"; held by {', '.join(answer.get('by') or ['the gate'])}" if answer.get("held") else ""
    run.console.line(safe(f"accepted as {answer['id']} (seq {answer['seq']}){held}"))
    if held:
        run.console.line(f"why, and until when: loopctl why {safe(run.args.sid)}")


def why(run: Run) -> None:
    """Why a session does not run, who said so, what waits, and when it ends."""
    answer = run.link.ask({"t": "why", "sid": run.args.sid})
    console = run.console
    if console.format != "table":
        console.json(answer)
        return
    now, holds = now_ms(), answer.get("holds") or []
    style = "yellow" if answer["gate"] == "closed" else "green"
    console.line(f"{safe(_called(answer))}: gate {console.styled(answer['gate'], style)}")
    if holds:
        console.table(HOLDS_HEADER, holds_table(holds, now), flex=3)
        for line in answers(answer):
            console.line(line)
    if answer.get("house"):
        lifted = {"freeze": "; `loopctl unfreeze` ends it"}.get(answer["house"], "")
        console.line(f"the whole daemon admits nothing: {safe(answer['house'])}{lifted}")
    goal, turn = answer.get("goal") or {}, answer.get("turn")
    coming = answer.get("next") or {}
    at, what = coming.get("at_ms"), COMING.get(coming.get("what", ""), coming.get("what", ""))
    console.pairs(
        [
            ("goal", f"{goal['status']}: {goal.get('text', '')}" if goal else "none"),
            ("turn", f"{turn['n']} runs, {turn.get('trigger', '')}" if turn else ""),
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
    name, found = safe(_called(answer)), []
    for hold in answer.get("holds") or []:
        if hold["kind"] == "AwaitingApproval":
            found.append(f"answer it: loopctl approve {name} | loopctl deny {name} --reason TEXT")
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


def gate_extend(run: Run) -> None:
    """Moves the deadline of one hold later."""
    args, kind = run.args, run.args.kind
    if kind is None:
        answer = run.link.ask({"t": "gate.get", "sid": args.sid})
        kinds = [hold["kind"] for hold in answer.get("holds") or []]
        if len(kinds) != 1:
            stands = ", ".join(kinds) or "none"
            raise Failure(
                "usage", f"which hold? {args.sid} has {stands}; expected KIND", hint="loopctl gate get SID"
            )
        kind = kinds[0]
    answer = run.link.change({"t": "gate.extend", "sid": args.sid, "kind": kind, "until_ms": args.until})
    if run.console.format == "table":
        run.console.line(f"{safe(args.sid)}: {kind} until {until(args.until, now_ms())}")
    else:
        run.console.json(answer)


def goal_set(run: Run) -> None:
    """Sets or replaces the goal."""
    text = text_or_stdin(run.args.text)
    _goal_told(run, run.link.change({"t": "goal.set", "sid": run.args.sid, "text": text}))


def goal_change(run: Run) -> None:
    """Changes the goal's status: the verb names the command."""
    command: dict[str, Any] = {"t": run.verb.replace(" ", "."), "sid": run.args.sid}
    if getattr(run.args, "reason", ""):
        command["reason"] = run.args.reason
    _goal_told(run, run.link.change(command))


def goal_switch(run: Run) -> int:
    """Pauses or resumes goals: the verb names the command."""
    command = {"t": run.verb.replace(" ", ".")}
    answer, single = _carry_out(run, command)
    if not single:
        return _batch_told(run, answer, f"{run.verb.partition(' ')[2].removesuffix('e')}ed")
    _goal_told(run, answer)
    return OK


def _goal_told(run: Run, answer: dict[str, Any]) -> None:
    if run.console.format != "table":
        run.console.json(answer)
        return
    goal = answer.get("goal")
    run.console.line(safe(f"goal {goal['status']}: {goal.get('text', '')}" if goal else "no goal"))
