"""One readable line for each event. Texts of agents pass through `safe`."""

from __future__ import annotations

from loopd.cli import event_words
from loopd.cli.console import safe
from loopd.cli.instants import span, stamp, until
from loopd.cli.standing import hold_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loopd.cli.console import Console

    Body = dict[str, Any]

TEXT_CHARS = 400
STYLES = {
    "degeneration": "red",
    "detector": "red",
    "command": "red",
    "gate": "yellow",
    "turn": "green",
    "goal": "magenta",
    "envelope": "cyan",
    "cron": "blue",
    "daemon": "magenta",
    "approval": "yellow",
    "budget": "yellow",
    "session": "bold",
}


def flat(event: dict[str, Any]) -> dict[str, Any]:
    """An event with its body twice: as `b`, and its fields beside `seq`, `ss`, `sid`, `ts`, `k`."""
    body = event.get("b") or {}
    outer = {name: event.get(name) for name in ("seq", "ss", "sid", "ts", "k")}
    turn = event.get("turn")
    if turn is None:
        turn = body.get("n") if str(event.get("k", "")).startswith("turn.") else None
    return {**body, **outer, "turn": turn, "b": body}


def line(event: dict[str, Any], console: Console, names: dict[str, str]) -> str:
    """One line: local time, seq, session, kind, what happened. `names` maps ids to names."""
    kind, body = str(event["k"]), event.get("b") or {}
    sid = event.get("sid") or "-"
    if kind == "session.created":
        names[sid] = str(body.get("name") or sid)
    words = WORDS.get(kind, unknown)(body)
    return (
        f"{console.styled(stamp(event['ts']), 'dim')}  {event['seq']:>6}  {safe(names.get(sid, sid))}  "
        f"{console.styled(safe(kind), STYLES.get(kind.partition('.')[0], ''))}  {safe(words)}"
    ).rstrip()


def _quote(text: Any) -> str:
    words = " ".join(str(text or "").split())
    return f"“{words[:TEXT_CHARS]}{'…' if len(words) > TEXT_CHARS else ''}”" if words else ""


def unknown(body: Body) -> str:
    """The words for a kind that has none: its body as JSON."""
    import json

    return json.dumps({name: value for name, value in body.items() if name not in {"k", "given"}})[
        :TEXT_CHARS
    ]


def _created(body: Body) -> str:
    driver = body.get("driver") or {}
    return f"{body.get('name')} with driver {driver.get('kind')}, preset {body.get('preset')}"


def _ended(body: Body) -> str:
    rule = f" by rule {body['rule']}" if body.get("rule") else ""
    return f"{body.get('status')}: {body.get('stop_reason')}{rule} {body.get('explanation') or ''}"


def _resumed(body: Body) -> str:
    return f"run {body.get('run')} by {body.get('by')} {body.get('reason') or ''}"


def _issue(body: Body) -> str:
    return f"{body.get('id')} {body.get('status')}: {body.get('rule') or body.get('stop_reason')} {body.get('loop') or ''}"


def _clamped(body: Body) -> str:
    return f"{body.get('proposed')} refused: {body.get('edge')} {body.get('count')} of {body.get('limit')}"


def _accepted(body: Body) -> str:
    job = f" from {body['job']}" if body.get("job") else ""
    return f"{body.get('source')}{job} {body.get('id')} {_quote(body.get('text'))}"


def _held(body: Body) -> str:
    return f"{body.get('id')} waits for {', '.join(body.get('by') or [])}"


def _coalesced(body: Body) -> str:
    return (
        f"{body.get('id')} into {body.get('into')}, which stands for {body.get('count')} of {body.get('job')}"
    )


def _dropped(body: Body) -> str:
    return f"{body.get('id')}: {body.get('reason')}"


def _gate(body: Body) -> str:
    parts = [f"{body.get('gate')} by {body.get('cause')}"]
    added = body.get("added")
    if added:
        since = added.get("since_ms") or 0
        end = added.get("until_ms")
        lasts = (
            "until lifted"
            if end is None
            else f"until {until(end, since)}"
            if since
            else f"until {stamp(end)}"
        )
        parts.append(f"+ {hold_words(added)}, {lasts}")
    if body.get("removed"):
        parts.append(f"- {', '.join(body['removed'])}")
    if body.get("late_ms"):
        parts.append(f"{span(body['late_ms'])} late")
    return "  ".join(parts)


def _detected(body: Body) -> str:
    evidence = "; ".join(map(str, (body.get("evidence") or ())[:2]))
    return (
        f"{body.get('rule')} → {body.get('verdict')}: {body.get('score')} of {body.get('threshold')} "
        f"{body.get('unit', 'turns')}. {evidence}"
    )


def _near(body: Body) -> str:
    return (
        f"{body.get('rule')} is near: {body.get('score')} of {body.get('soft')} {body.get('unit', 'steps')}"
    )


def _failed(body: Body) -> str:
    return f"{body.get('rule')} was skipped: {body.get('cause')} {body.get('error') or ''}"


def _started(body: Body) -> str:
    passing = ", passing a hold" if body.get("passing") else ""
    ids = f" with {', '.join(body['envelopes'])}" if body.get("envelopes") else ""
    return f"{body.get('n')} by {body.get('trigger')}{ids}{passing}"


def _step(body: Body) -> str:
    calls = " ".join(_call(call) for call in body.get("calls") or ())
    usage = body.get("usage") or {}
    tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    spent = f" ({tokens} tokens)" if tokens else ""
    return f"{body.get('n')}.{body.get('step')} {_quote(body.get('text'))} {calls}{spent}"


def _call(call: Body) -> str:
    mark = {True: "✓", False: "✗"}.get(call.get("ok"), "?")  # type: ignore[arg-type]
    return f"{call.get('name')} {mark}"


def _completed(body: Body) -> str:
    error = f": {body['error']}" if body.get("error") else ""
    ms = body.get("duration_ms", 0)
    took = f"{ms}ms" if ms < 1_000 else span(ms)
    return f"{body.get('n')} {body.get('outcome')} in {took}{error}"


def _interrupted(body: Body) -> str:
    return f"{body.get('n')} by {body.get('cause')} {_quote(body.get('partial'))}"


def _retrying(body: Body) -> str:
    return f"{body.get('cause')}, attempt {body.get('attempt')}, again in {span(body.get('delay_ms', 0))}"


def _goal(body: Body) -> str:
    return f"{body.get('status')} by {body.get('origin')} {_quote(body.get('text'))} {body.get('note') or ''}"


def _cron(body: Body) -> str:
    return f"{body.get('job')} {body.get('change')} {body.get('expr') or ''} {body.get('tz', '')}"


def _occurrence(body: Body) -> str:
    hand = ", by hand" if body.get("manual") else ""
    late = f", {span(body['late_ms'])} late" if body.get("late_ms") else ""
    due = stamp(body["due_ms"]) if body.get("due_ms") else "?"
    return f"{body.get('job')} {body.get('result')}, due {due}{late}{hand}"


def _daemon(body: Body) -> str:
    by = f" by {body['by']}" if body.get("by") else ""
    what = body.get("reason") or body.get("version") or ""
    return f"{what}{by}"


def _denied(body: Body) -> str:
    return f"{body.get('principal')} asked for {body.get('cmd')}: {body.get('code')}"


def _approval(body: Body) -> str:
    return f"{body.get('id')} {body.get('tool')}: {body.get('excerpt') or ''} ({body.get('rule')}), denied at {stamp(body['until_ms'])}"


def _answered(body: Body) -> str:
    lasting = " for the session" if body.get("scope") == "session" else ""
    return f"{body.get('id')} {body.get('answer')}{lasting} by {body.get('by')} {body.get('reason') or ''}"


def _lapsed(body: Body) -> str:
    return f"{body.get('id')} denied: {'nobody answered' if body.get('cause') == 'deadline' else 'its turn was cut off'}"


def _intent(body: Body) -> str:
    args = body.get("args")
    command = args.get("command") if isinstance(args, dict) else None
    return f"{body.get('tool')} {_quote(command if command is not None else args or '')} {body.get('id')}"


def _outcome(body: Body) -> str:
    by = f" by {body['by']}" if body.get("by") else ""
    return f"{body.get('id')} {body.get('outcome')}{by} {body.get('note') or ''}"


def _refused(body: Body) -> str:
    return f"{body.get('tool')}: {body.get('excerpt') or ''} by rule {body.get('rule')} {body.get('reason') or ''}"


def _limit(body: Body) -> str:
    from loopd.cli.amounts import shown, window

    of = f" of {body['label']}" if body.get("label") else ""
    what = str(body.get("what"))
    limit = "no limit" if body.get("limit") is None else shown(what, body["limit"])
    return f"{what}{of}: {limit} {window(body.get('per_ms'))} by {body.get('by')}"


def _spent(body: Body) -> str:
    return f"{body.get('which')}: {body.get('percent')} % ({body.get('used')} of {body.get('limit')})"


def _exhausted(body: Body) -> str:
    end = f"until {stamp(body['until_ms'])}" if body.get("until_ms") else "for good"
    return f"{body.get('which')}: {body.get('used')} of {body.get('limit')}, {end}"


def _unpriced(body: Body) -> str:
    return f"no price is known for {body.get('model')}"


def _configured(body: Body) -> str:
    policy = " and the policy" if body.get("policy") is not None else ""
    return f"{', '.join(body.get('changed') or []) or 'nothing'}{policy} by {body.get('by')}, {body.get('effective', 'now')}"


WORDS: dict[str, Callable[[Body], str]] = {
    "session.created": _created,
    "session.ended": _ended,
    "session.resumed": _resumed,
    "issue.written": _issue,
    "phase.clamped": _clamped,
    "envelope.accepted": _accepted,
    "envelope.held": _held,
    "envelope.coalesced": _coalesced,
    "envelope.dropped": _dropped,
    "gate.changed": _gate,
    "degeneration.detected": _detected,
    "detector.near": _near,
    "detector.failed": _failed,
    "turn.started": _started,
    "turn.step": _step,
    "turn.completed": _completed,
    "turn.interrupted": _interrupted,
    "provider.retrying": _retrying,
    "goal.changed": _goal,
    "cron.changed": _cron,
    "cron.occurrence": _occurrence,
    "approval.requested": _approval,
    "approval.answered": _answered,
    "approval.expired": _lapsed,
    "effect.intent": _intent,
    "effect.outcome": _outcome,
    "effect.denied": _refused,
    "budget.set": _limit,
    "budget.spent": _spent,
    "budget.exhausted": _exhausted,
    "budget.unpriced": _unpriced,
    "config.changed": _configured,
    "daemon.started": _daemon,
    "daemon.stopped": _daemon,
    "daemon.frozen": _daemon,
    "daemon.unfrozen": _daemon,
    "command.denied": _denied,
    **event_words.WORDS,
}
"""Kind → words. A kind that is not here, also one of a newer daemon, is shown as JSON."""
