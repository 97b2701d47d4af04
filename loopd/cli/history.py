"""Verbs about what happened: tail, show, wait, verify."""

from __future__ import annotations

from loopd.cli.console import safe
from loopd.cli.exits import Failure
from loopd.cli.instants import span
from loopd.cli.lines import flat
from loopd.cli.standing import names_of
from loopd.cli.watching import NO_END, readable, show_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loopd.cli.run import Run

# -- tail -------------------------------------------------------------------------------------


def tail(run: Run) -> None:
    """The last events of a session or of all, then more with `-f`."""
    args, console = run.args, run.console
    if args.follow and console.format == "json":
        raise Failure("usage", NO_END)
    command: dict[str, Any] = {"t": "history.page", "limit": min(args.limit, 1_000)}
    if args.sid is not None:
        command["sid"] = args.sid
    if args.kind:
        command["kinds"] = args.kind
    answer = run.link.ask(command)
    events = [flat(event) for event in answer["events"]]
    while answer.get("more") and answer["events"] and len(events) < command["limit"]:
        # Large events end a page early: the rest comes in pages of its own.
        left = command["limit"] - len(events)
        answer = run.link.ask({**command, "limit": left, "before": events[0]["seq"]})
        events = [flat(event) for event in answer["events"]] + events
    if console.format == "json":
        console.json({"events": events, "more": answer.get("more", False)})
        return
    names = names_of(run, *([args.sid] if args.sid is not None else []))
    for event in events:
        show_event(run, event, names)
    if not args.follow:
        return
    console.flush()
    sids = [args.sid] if args.sid is not None else []
    last = events[-1]["seq"] if events else 0
    frames = run.link.stream(after=last, sids=sids, kinds=args.kind)
    for event in readable(frames, console):
        show_event(run, event, names)
        console.flush()


# -- show -------------------------------------------------------------------------------------


def show(run: Run) -> None:
    """One turn: what began it, its steps, how it ended; with `--prompt` what the model saw."""
    args, console = run.args, run.console
    if args.at is not None:
        _show_at(run)
        return
    sid, _, number = args.turn.partition("@")
    command: dict[str, Any] = {"t": "turn.get", "sid": sid}
    if number:
        if not (number.isascii() and number.isdigit()):
            raise Failure("usage", f"{args.turn!r} names no turn; expected SID or SID@N")
        command["n"] = int(number)
    if args.prompt:
        command.update(prompt=True, step=args.step)
    if args.calls:
        command.update(calls=True)
    answer = run.link.ask(command)
    if console.format != "table":
        console.json(answer)
        return
    if args.calls:
        from loopd.cli.model_calls import show_calls

        show_calls(run, answer.get("calls") or [])
        return
    if args.prompt and answer.get("prompt") is not None:
        _show_prompt(run, answer["prompt"])
        return
    console.line(
        safe(
            f"turn {answer.get('n')} of {sid}, begun by {answer.get('trigger')}: {answer.get('outcome') or 'running'}"
        )
    )
    for envelope in answer.get("envelopes") or []:
        if isinstance(envelope, dict):
            console.line(f"  {safe(str(envelope.get('source')))}: {safe(str(envelope.get('text')))}")
        else:
            console.line(f"  {safe(str(envelope))}")
    for place, step in enumerate(answer.get("steps") or [], 1):
        body = step.get("b") or step
        cost = _cost(body.get("usage"))
        console.line(f"step {body.get('step', place)}{cost}: {safe(str(body.get('text') or ''))}")
        for call in body.get("calls") or []:
            console.line(f"  {_call(call)}")
    if answer.get("error"):
        console.line(f"error: {safe(str(answer['error']))}")
    if answer.get("manifest"):
        console.line("what the model saw: add --prompt")


def _show_at(run: Run) -> None:
    """The session as it was at a sequence number or a moment."""
    args, console = run.args, run.console
    if "@" in args.turn or args.prompt:
        raise Failure("usage", "--at shows a session, not a turn; expected SID without @N and no --prompt")
    command: dict[str, Any] = {"t": "session.get", "sid": args.turn}
    if args.at.isascii() and args.at.isdigit():
        command["at"] = int(args.at)
    else:
        from loopd.cli.instants import now_ms, past_ms

        try:
            command["at_ms"] = past_ms(args.at, now_ms())
        except ValueError as error:
            raise Failure("usage", f"--at: {error}") from None
    session = run.link.ask(command)
    if console.format != "table":
        console.json(session)
        return
    from loopd.cli.instants import stamp
    from loopd.cli.standing import because, ends, state

    at = session["at"]
    console.line(
        f"{safe(session['name'])} at {stamp(at['at_ms'])}, after seq {at['seq']} (its event {at['ss']})"
    )
    goal = session.get("goal") or {}
    turn = session.get("turn")
    tokens = session.get("tokens") or {}
    console.pairs(
        [
            ("state", state(session).text),
            ("why", because(session, at["at_ms"])),
            ("until", ends(session, at["at_ms"])),
            ("goal", f"{goal.get('status')}: {goal.get('text')}" if goal else ""),
            ("turn", f"{turn['n']}, begun by {turn['trigger']}" if turn else ""),
            ("turns, steps", f"{session['turns']}, {session['steps']}"),
            ("inbox", str(session["inbox"])),
            ("tokens", f"{tokens.get('input', 0):,} in, {tokens.get('output', 0):,} out"),
            ("repeat, barren", f"{session['repeat_streak']}, {session['barren_streak']}"),
        ]
    )


def _cost(usage: dict[str, Any] | None) -> str:
    if not usage:
        return ""
    words = f"{usage.get('input_tokens', 0):,} tokens in, {usage.get('output_tokens', 0):,} out"
    return f" ({words}{'' if usage.get('measured', True) else ', estimated'})"


def _call(call: dict[str, Any]) -> str:
    import json

    ok = {True: "ok", False: "failed"}.get(call.get("ok"), "unknown")  # type: ignore[arg-type]
    return safe(f"{call.get('name')}({json.dumps(call.get('args'))}) → {ok}: {call.get('result') or ''}")


def _show_prompt(run: Run, prompt: Any) -> None:
    """Messages for people; anything else as it is, made harmless."""
    console = run.console
    whole = prompt if isinstance(prompt, dict) else {}
    if isinstance(prompt, dict) and isinstance(prompt.get("messages"), list):
        prompt = prompt["messages"]
    if isinstance(prompt, list):
        for message in prompt:
            content = message.get("content", message.get("text")) if isinstance(message, dict) else message
            role = str(message.get("role", "")) if isinstance(message, dict) else ""
            source = str(message.get("source", "")) if isinstance(message, dict) else ""
            if source and source not in _PLAIN.get(role, ()):
                role += f", {source}"
            console.line(console.styled(f"[{safe(role)}]", "bold"))
            calls = message.get("calls") or () if isinstance(message, dict) else ()
            if content or not calls:
                console.line(safe(content if isinstance(content, str) else _json(content), lines=True))
            for called in calls:
                console.line(safe(f"→ {called.get('name')}({_compact(called.get('args'))})"))
        _show_record(run, whole)
        return
    console.line(safe(prompt if isinstance(prompt, str) else _json(prompt), lines=True))


_PLAIN = {"system": ("session",), "assistant": ("model",), "tool": ("tool",)}


def _show_record(run: Run, prompt: dict[str, Any]) -> None:
    """Whether this is what was sent: parts that are gone, and the request's digest beside the recorded one."""
    console = run.console
    missing = prompt.get("missing") or []
    if missing:
        console.line(console.styled(f"{len(missing)} messages are missing: {safe(_compact(missing))}", "red"))
    for row in prompt.get("frames") or ():
        arrow = {"sent": "→", "received": "←"}.get(row.get("way"), "!")
        console.line(safe(f"{arrow} {row.get('frame')}"))
    recorded, found = prompt.get("recorded_sha256"), prompt.get("request_sha256")
    if recorded and recorded == found:
        console.line(console.styled(f"request sha256 {safe(recorded)}, as recorded when it was sent", "dim"))
    elif recorded:
        words = f"request sha256 {found or 'unknown'}; when it was sent it was {recorded}"
        console.line(console.styled(safe(words), "red"))


def _json(value: Any) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=False)


# -- wait -------------------------------------------------------------------------------------


def reached(state: str) -> Callable[[dict[str, Any]], bool]:
    """A test for a session as `session.get` shows it.

    `idle`: no turn runs and none is due. `open`, `closed`: the gate. `ended`. `turn>N`: a turn
    with a number above N has begun.
    """
    if state == "idle":
        return _is_idle
    if state in {"open", "closed"}:
        return lambda session: session.get("gate") == state
    if state == "ended":
        return lambda session: session.get("status", "live") != "live"
    word, _, number = state.partition(">")
    if word.strip() == "turn" and number.strip().isascii() and number.strip().isdigit():
        wanted = int(number)
        return lambda session: max(session.get("turns", 0), (session.get("turn") or {}).get("n", 0)) > wanted
    raise Failure("usage", f"--until {state!r}; expected idle, open, closed, ended or 'turn>N'")


def _is_idle(session: dict[str, Any]) -> bool:
    if session.get("turn"):
        return False
    if session.get("gate") == "closed" or session.get("status", "live") != "live":
        return True
    return not session.get("inbox") and (session.get("goal") or {}).get("status") != "active"


def wait(run: Run) -> None:
    """Returns when a session is in a state; looks again after each of its events."""
    args = run.args
    done = reached(args.until)
    # Listening before looking: whatever happens in between comes as an event.
    frames = run.link.stream(sids=[args.sid], timeout_s=_seconds(args.timeout))
    session, reached_it = _look(run, args.sid, done)
    try:
        while not reached_it:
            if next(frames).get("t") in {"ev", "gap"}:
                # By id from here on: a session that ends loses its name.
                session, reached_it = _look(run, session["sid"], done)
    except Failure as failure:
        if failure.code == "timeout" and args.timeout is not None:
            words = f"{args.sid} is not {args.until} after {span(args.timeout)}"
            raise Failure("timeout", words) from None
        raise
    if run.console.format == "table":
        run.console.line(f"{safe(session.get('name') or session['sid'])} is {safe(args.until)}")
    else:
        run.console.json(session)


def _look(run: Run, ref: str, done: Callable[[dict[str, Any]], bool]) -> tuple[dict[str, Any], bool]:
    session = run.link.ask({"t": "session.get", "sid": ref})
    if done(session):
        return session, True
    if session.get("status", "live") != "live":
        raise Failure(
            "session_terminal",
            f"{session['sid']} ended as {session['status']}; it will never be {run.args.until}",
        )
    return session, False


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000


def _compact(value: Any) -> str:
    import json

    return json.dumps(value)
