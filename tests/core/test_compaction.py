"""Making a conversation smaller: what may go, what never goes, and that it can be done again."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.compaction import (
    MARK,
    Plan,
    applied,
    cut_point,
    digest,
    plan_of,
    shortened,
    shortening,
    size_bytes,
)
from loopd.core.conversation import Message
from loopd_protocol.events import ContextCompacted, ToolCall

SYSTEM = Message(ss=0, role="system", source="session", text="be good")


def step(ss: int, text: str, *results: str, args: str = "x") -> list[Message]:
    """A step with a call for each result."""
    calls = tuple(ToolCall(id=f"{ss}.{n}", name="shell", args={"command": args}) for n in range(len(results)))
    said = Message(ss=ss, role="assistant", source="model", text=text, calls=calls)
    return [
        said,
        *(
            Message(ss=ss, role="tool", source="tool", text=result, call_id=f"{ss}.{n}")
            for n, result in enumerate(results)
        ),
    ]


def human(ss: int, text: str) -> Message:
    return Message(ss=ss, role="user", source="human", text=text)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Steps in order of their numbers; what was sent may be numbered before the step it stands behind."""
    messages = [SYSTEM]
    ss = 1
    for _ in range(draw(st.integers(0, 8))):
        early = draw(st.integers(1, max(1, ss)))
        messages.append(human(early, draw(st.text(max_size=30))))
        for _ in range(draw(st.integers(0, 4))):
            ss += draw(st.integers(1, 3))
            sizes = draw(st.lists(st.integers(0, 400), max_size=3))
            long_args = "a" * draw(st.integers(0, 300))
            messages += step(ss, draw(st.text(max_size=30)), *("r" * size for size in sizes), args=long_args)
        ss += 1
    return tuple(messages)


@given(conversations(), st.integers(1, 3_000))
def test_a_cut_never_parts_a_call_from_its_result_and_keeps_the_last_step(
    messages: tuple[Message, ...], keep: int
) -> None:
    upto = cut_point(messages, keep)
    after = applied(messages, Plan(reason="window", upto_ss=upto, summary="s"), 99_999)
    asked = {call.id for m in after for call in m.calls}
    answered = {m.call_id for m in after if m.role == "tool"}
    assert asked == answered
    steps = [m for m in messages if m.role == "assistant"]
    assert not steps or steps[-1] in after
    assert after[0] == SYSTEM
    if not upto:
        assert after == messages


@given(conversations(), st.integers(1, 3_000))
def test_what_came_behind_the_cut_stays_word_for_word(messages: tuple[Message, ...], keep: int) -> None:
    upto = cut_point(messages, keep)
    after = applied(messages, Plan(reason="window", upto_ss=upto, summary="s"), 99_999)
    if upto:
        assert [m.source for m in after[1:2]] == ["summary"]
        rest = after[2:]
        assert rest == messages[len(messages) - len(rest) :]
        gone = messages[1 : len(messages) - len(rest)]
        assert gone, "a cut takes something away"
        assert gone[-1].ss == upto


@given(conversations(), st.integers(2, 120), st.integers(200, 5_000), st.integers(2, 120))
def test_shortening_is_stable_whatever_comes_later(
    messages: tuple[Message, ...], chars: int, limit: int, later: int
) -> None:
    plan = shortening(messages, limit_bytes=limit, chars=chars, reason="window")
    once = applied(messages, plan, 9)
    assert applied(once, plan, 9) == once
    assert size_bytes(once) <= size_bytes(messages) + 200 * len(messages)
    again = applied(once, msgspec.structs.replace(plan, result_chars=later), 9)
    for before, after in zip(messages, again, strict=True):
        assert after in (before, shortened(before, chars), shortened(before, later)), (
            "the original and one number are enough to find it"
        )


def test_texts_of_the_model_and_of_people_are_never_shortened() -> None:
    messages = [SYSTEM, human(1, "h" * 5_000), *step(2, "m" * 5_000, "r" * 5_000, args="a" * 5_000)]
    after = applied(messages, Plan(reason="window", results_before_ss=3, result_chars=100), 9)
    assert after[:2] == tuple(messages[:2])
    assert after[2].text == "m" * 5_000
    assert MARK in after[2].calls[0].args["command"]
    assert len(after[3].text) < 200


def test_an_envelope_that_arrived_early_but_was_shown_late_is_not_cut_with_its_number() -> None:
    """It was accepted (ss 3) while the first turn ran, and is the input of the second."""
    messages = [human(1, "first"), *step(5, "a"), human(3, "second, do not lose me"), *step(8, "b")]
    upto = cut_point(messages, 1)
    assert upto == 5
    after = applied(messages, Plan(reason="window", upto_ss=upto, summary="s"), 99)
    assert [m.text for m in after[1:]] == ["second, do not lose me", "b"]


@given(conversations(), st.integers(1, 2_000), st.text(max_size=20))
def test_the_event_is_enough_to_do_it_again(messages: tuple[Message, ...], keep: int, summary: str) -> None:
    plan = Plan(
        reason="overflow",
        results_before_ss=cut_point(messages, keep) + 1,
        result_chars=50,
        upto_ss=cut_point(messages, keep),
        summary=summary,
    )
    after = applied(messages, plan, 77)
    event = ContextCompacted(
        n=1,
        reason=plan.reason,
        before_sha256=digest(messages),
        after_sha256=digest(after),
        results_before_ss=plan.results_before_ss,
        result_chars=plan.result_chars,
        upto_ss=plan.upto_ss,
        summary=summary,
    )
    stored = msgspec.json.decode(msgspec.json.encode(event), type=ContextCompacted)
    assert digest(applied(messages, plan_of(stored, stored.summary), 77)) == stored.after_sha256
