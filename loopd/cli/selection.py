"""One change of one session, or of all that are named or selected by label."""

from __future__ import annotations

from loopd.cli.console import safe
from loopd.cli.exits import OK, Failure, exit_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run

EACH = "each"
"""Stands where a batch puts the session's own id."""


def change(run: Run, command: dict[str, Any], done: str) -> tuple[dict[str, Any] | None, int]:
    """Carry out a command without `sid`, for one session directly, for many as a batch.

    Args:
        run: its arguments are those of `arguments.selection`.
        command: what is to be done to each.
        done: a participle for people: `suspended`.

    Returns:
        The answer of one session, to be told as a table by the verb itself, and `OK`; or None when
        everything is told already, and the exit code.

    Raises:
        Failure: no session is selected, or two ways of selecting contradict.
    """
    return changes(run, [command], done)


def changes(run: Run, commands: list[dict[str, Any]], done: str) -> tuple[dict[str, Any] | None, int]:
    """As `change`, for several changes one after another; of one session the last answer counts."""
    checked(run)
    try:
        return _carried_out(run, commands, done)
    except Failure as failure:
        # No such session, or a word that cannot be the name of one.
        if failure.code == "not_found" or ".sids[" in (failure.path or ""):
            failure.hint = failure.hint or _meant(run)
        raise


def _carried_out(run: Run, commands: list[dict[str, Any]], done: str) -> tuple[dict[str, Any] | None, int]:
    args = run.args
    answer: dict[str, Any] = {}
    if len(args.sid) == 1 and not args.label and not args.all and not args.dry_run:
        for command in commands:
            answer = run.link.change({**command, "sid": args.sid[0]})
        if run.console.format == "table":
            return answer, OK
        run.console.json(answer)
        return None, OK
    selector: dict[str, Any] = {}
    if args.sid:
        selector["sids"] = args.sid
    if args.label:
        selector["labels"] = dict(args.label)
    if args.ended:
        selector["ended"] = True
    batches = [{"t": "batch", "selector": selector, "cmd": {**command, "sid": EACH}} for command in commands]
    if args.dry_run:
        answer = run.link.ask({**batches[0], "dry_run": True})
    else:
        for batch in batches:
            told = run.link.change(batch)
            answer = {**told, "results": [*answer.get("results", []), *told["results"]]}
    return None, _told(run, answer, done)


def checked(run: Run) -> None:
    """Refuse a command line that selects no session, or in two ways."""
    args = run.args
    if not (args.sid or args.label or args.all):
        alone = getattr(args, "text", None)
        taken = "" if alone is None else f"; {safe(alone)!r} is taken as the text"
        raise Failure("usage", f"which session? expected SID, -l KEY=VALUE or --all{taken}")
    if args.all and (args.sid or args.label):
        raise Failure("usage", f"--all selects {_all(run)}; it goes without SID and -l")


def _meant(run: Run) -> str:
    """How to write what was probably meant by words that were taken as sessions, or nothing."""
    args = run.args
    first, *words = args.sid or [""]
    if not words:
        return ""
    import shlex

    if hasattr(args, "expr"):
        form = f"loopctl {run.verb} {first} JOB '0 3 * * *' 'TEXT'"
        return f"the five fields need quotes, and so does the text: {form}"
    if hasattr(args, "text"):
        text = shlex.quote(" ".join([*words, args.text]))
        return f"a text of several words needs quotes: loopctl {run.verb} {first} {text}"
    if getattr(args, "reason", None) == "":
        return f"a reason is an option: loopctl {run.verb} {first} --reason {shlex.quote(' '.join(words))}"
    return ""


def called(session: dict[str, Any] | str) -> str:
    """The name of a session in an answer, or its id."""
    return session if isinstance(session, str) else str(session.get("name") or session["sid"])


def _all(run: Run) -> str:
    return "every session" if run.args.ended else "every live session"


def _told(run: Run, answer: dict[str, Any], done: str) -> int:
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
            console.line(f"  {safe(called(session))}")
    else:
        for result in results:
            error = result.get("error") or {}
            words = done if result.get("ok") else f"{error.get('code')}: {error.get('message')}"
            style = "" if result.get("ok") else "red"
            console.line(f"{safe(called(result))}  {console.styled(safe(words), style)}")
        console.line(
            f"{len(results) - len(failed)} of {len(results)} {done}"
            if results
            else f"no session is selected, nothing is {done}"
        )
    return exit_of(str((failed[0].get("error") or {}).get("code", "conflict"))) if failed else OK
