"""Appends for the journal's benches: sessions with a real rule state, steps of a given size."""

from __future__ import annotations

from msgspec.structs import replace

from loopd.core.evolution import evolve
from loopd.core.state import Session
from loopd.core.writes import Append, Fact
from loopd_protocol import events as ev
from loopd_protocol.sources import Trigger

AT_MS = 1_760_000_000_000
SEASONING_STEPS = 40
"""Steps that fill the windows of the rules, so that the state has its usual size."""


def seasoned(num: int = 1) -> Session:
    """A session in the middle of a long turn."""
    facts: list[ev.Event] = [
        ev.SessionCreated(
            sid=f"ses_{num}",
            num=num,
            name=f"s{num}",
            driver={"kind": "scripted", "script": "steps.jsonl"},
            preset="published",
            labels={"team": "night"},
        ),
        ev.GoalChanged(
            status="active", origin="user", text="Migrate the billing tables and keep the tests green."
        ),
        ev.TurnStarted(n=1, trigger=Trigger.CONTINUATION, prompt="Continue."),
    ]
    facts += [
        ev.TurnStep(
            n=1,
            step=n,
            total=n,
            text=f"I look at file {n}.",
            calls=(
                ev.ToolCall(
                    id=f"c{n}", name="bash", args={"command": f"sed -n {n}p f"}, ok=True, result=f"line {n}"
                ),
            ),
            usage=ev.Usage(input_tokens=900, output_tokens=80),
        )
        for n in range(1, SEASONING_STEPS + 1)
    ]
    session: Session | None = None
    for ss, event in enumerate(facts, 1):
        session = evolve(session, event, ss=ss, at_ms=AT_MS)
    assert session is not None
    return session


def appends(producer: int, count: int, body_bytes: int) -> list[Append]:
    """`count` appends of one session, each with one step whose body has about `body_bytes`."""
    num = producer + 1
    state = replace(seasoned(), num=num, sid=f"ses_{num}", name=f"s{num}", ss=0)
    batches = []
    for index in range(count):
        ss = index + 1
        text = (f"{producer} {index} " + "The journal keeps what the model said. " * 200)[: body_bytes - 120]
        event = ev.TurnStep(
            n=1, step=ss, total=ss, text=text, usage=ev.Usage(input_tokens=900, output_tokens=80)
        )
        after = replace(state, ss=ss, steps=ss)
        batches.append(
            Append(
                sid=state.sid,
                at_ms=AT_MS + index,
                facts=(Fact(event=event, ss=ss, turn=1),),
                before=state if index else None,
                after=after,
                principal="driver",
            )
        )
        state = after
    return batches
