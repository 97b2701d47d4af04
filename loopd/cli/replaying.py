"""`loopctl replay`: a recorded session is decided once more, and the first difference is explained."""

from __future__ import annotations

from loopd.cli.console import safe
from loopd.cli.exits import FAILED, OK, Failure
from loopd.cli.forensics import patient
from loopd.cli.instants import stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run

INPUTS = {
    "AgentAsked": "something the agent asked of loopd",
    "ContextShrunk": "a compaction of the context",
    "CronChangeRequested": "a change of a cron job",
    "CronPutRequested": "a cron job that was put",
    "CutRequested": "a turn that was cut off",
    "DropRequested": "a message that was dropped",
    "EffectEnded": "the end of a tool call",
    "EffectIntended": "a tool call that was about to begin",
    "EffectResolved": "an uncertain effect that was settled",
    "EndRequested": "the request to end the session",
    "EnvelopeArrived": "a message that arrived",
    "GateExtendRequested": "a hold that was extended",
    "GateOpenRequested": "the request to open the gate",
    "GoalChangeRequested": "a change of the goal",
    "HoldReleased": "a hold that went",
    "HoldRequested": "a hold that was asked for",
    "InterruptRequested": "an interruption",
    "ModelReported": "what the model proxy saw of a call",
    "Reconsidered": "a look whether a turn may begin now",
    "Recovered": "a start of the daemon",
    "Remembered": "what a driver remembered",
    "ResumeRequested": "the request to resume the session",
    "RetryReported": "a model call that was tried again",
    "SessionCreated": "the creation of the session",
    "StepReported": "a step of the model and its tools",
    "StreamJudged": "text that was judged while it came",
    "SuspendRequested": "a suspension",
    "Ticked": "the clock",
    "TurnEnded": "the end of a turn",
    "UnsuspendRequested": "the end of a suspension",
}
"""Input → words; one that is not here is shown by its name."""


def replay(run: Run) -> int:
    """Decides a recorded session again; exit code 1 at the first difference."""
    args, console = run.args, run.console
    overrides = dict(args.set)
    if args.sid.endswith(".zip"):
        outcome = _of_archive(args.sid, overrides)
    else:
        patient(run)
        outcome = run.link.ask({"t": "replay", "sid": args.sid, "set": overrides})
    good = outcome["status"] != "different"
    if console.format != "table":
        console.json(outcome)
        return OK if good else FAILED
    counted = f"{outcome['events']:,} events, {outcome['decisions']:,} decisions, {outcome['verdicts']:,} findings of rules"
    if outcome["status"] == "same":
        words = f"the same, byte for byte: {counted}"
        console.line(console.styled(words, "green"))
    elif outcome["status"] == "ended":
        console.line(console.styled(f"the same as far as the record goes: {counted}", "yellow"))
        console.line(f"it ends behind seq {outcome['last_seq']}: {safe(outcome['why'])}")
    else:
        _difference(run, outcome, counted)
    return OK if good else FAILED


def _difference(run: Run, outcome: dict[str, Any], counted: str) -> None:
    console, difference = run.console, outcome["difference"]
    where = f"seq {difference['seq']} (event {difference['ss']} of the session, {stamp(difference['at_ms'])})"
    console.line(console.styled(f"DIFFERENT at {where}", "red"))
    console.line(safe(difference["what"]))
    given = str(difference.get("given") or "")
    recorded, replayed = difference.get("recorded"), difference.get("replayed")
    whole = not (recorded and replayed == recorded)  # else only what differs of it is known
    console.pairs(
        [
            ("led to it", f"{INPUTS[given]} ({given})" if given in INPUTS else given),
            ("rule", str(difference.get("rule") or "")),
            ("recorded", _told(difference, "recorded") if whole else str(recorded)),
            ("replayed", _told(difference, "replayed") if whole else str(replayed)),
        ]
    )
    if not whole:
        for field in difference.get("fields") or ():
            console.line(f"  {safe(field['path'])}")
            for mark, side, style in (("-", "recorded", "red"), ("+", "replayed", "green")):
                console.line(f"    {console.styled(f'{mark} {safe(_compact(field.get(side)))}', style)}")
    for line in reasons(outcome, overridden=bool(run.args.set), whose=run.args.sid):
        console.line(safe(line))
    console.line(f"up to there the same: {counted}")


def _told(difference: dict[str, Any], side: str) -> str:
    """An event of one side in the words of `tail`, or that there is none."""
    kind = difference.get(side)
    if not kind:
        return "nothing"
    from loopd.cli.lines import WORDS

    body = {
        field["path"]: field[side] for field in difference.get("fields") or () if field.get(side) is not None
    }
    words = WORDS.get(kind)
    try:
        return f"{kind}  {words(body)}" if words is not None and body else str(kind)
    except (KeyError, TypeError, AttributeError, ValueError):  # cut, or of a newer daemon
        return str(kind)


def reasons(outcome: dict[str, Any], *, overridden: bool, whose: str) -> list[str]:
    """What a difference means, and what to ask next."""
    difference = outcome["difference"]
    changed = {field["path"] for field in difference.get("fields") or ()}
    if overridden:
        return ["This is the first decision that the settings of --set would have made otherwise."]
    then, now = outcome.get("recorded_by") or {}, outcome.get("replayed_by") or {}
    same_code = (
        bool(then)
        and then.get("derivation") == now.get("derivation")
        and then.get("version") == now.get("version")
    )
    by = (
        f"written by loopd {then.get('version')} (derivation {then.get('derivation')}), "
        f"replayed by {now.get('version')} (derivation {now.get('derivation')})"
        if then
        else "who wrote it is not in the record"
    )
    check = f"`loopctl verify {whose}` tells whether the record was changed"
    if changed == {"config_revision"} and difference.get("recorded") == difference.get("replayed"):
        return [
            f"The decision is the same; only the revision of the rules and their settings has another name ({by}).",
            f"An update of the rules does that, and so does an edit of the record: {check}.",
        ]
    if same_code:
        return [
            f"The same code decided then and now ({by}), and decides by nothing but the record.",
            f"So this event, or one before it, is not what it was; {check}, and names the event.",
        ]
    return [
        f"This version may decide otherwise than the one that wrote it ({by}), or this event or one before it was changed.",
        f"{check}; if it was not, the difference is what the update changed.",
    ]


def _of_archive(path: str, overrides: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    import msgspec

    from loopd.core.replay import Replay, Row
    from loopd.store.archive import Archive
    from loopd.store.export import BOOTS
    from loopd.store.past import by_whom
    from loopd_protocol.errors import Refused

    if not Path(path).is_file():
        raise Failure("not_found", f"no file {path!r}; expected what `loopctl export` wrote")
    try:
        with Archive(Path(path)) as archive:
            work: dict[int, Replay] = {}
            boots: dict[int, int] = {}
            for row in archive.rows():
                if row.sid is None:
                    continue
                if row.sid not in work and work:
                    raise Failure(
                        "usage", f"{path!r} holds several sessions; export one, or import it and name one"
                    )
                one = work.setdefault(row.sid, Replay(overrides))
                one.feed((Row(row.seq, row.ss, row.at_ms, row.kind, row.whole),))
                boots[row.seq] = row.boot
            if not work:
                raise Failure("not_found", f"{path!r} holds no session")
            outcome: dict[str, Any] = msgspec.to_builtins(next(iter(work.values())).finish())
            known = {boot["n"]: (boot["version"], boot["derivation"]) for boot in archive.values(BOOTS)}
    except Refused as refused:
        raise Failure(refused.code, refused.message) from None
    if outcome.get("difference"):
        outcome |= by_whom(known.get(boots.get(outcome["difference"]["seq"], 0)))
    return outcome


def _compact(value: Any) -> str:
    import json

    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)
