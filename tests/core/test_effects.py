"""The ledger of effects: what was begun and how it ended, also when nobody was there to see."""

from __future__ import annotations

import pytest

from loopd.core import effects
from loopd.core.inputs import (
    EffectEnded,
    EffectIntended,
    EffectResolved,
    EndRequested,
    InterruptRequested,
    Recovered,
)
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from tests.core.world import World


def began(world: World, call: str = "c1", *, repeatable: bool = False) -> str:
    """Begin a tool in the running turn; returns the effect's id."""
    turn = world.session.turn
    assert turn is not None
    given = EffectIntended(
        n=turn.n, call=call, tool="shell", args_sha256="0" * 64, tool_class="exec", repeatable=repeatable
    )
    (intent,) = world.apply(given).events
    assert isinstance(intent, ev.EffectIntent)
    return intent.id


def ended(world: World, call: str = "c1", outcome: str = "ok", n: int = 1) -> tuple[ev.Event, ...]:
    return world.apply(EffectEnded(n=n, call=call, outcome=outcome)).events


def running() -> World:
    world = World()
    world.send()
    return world


def outcomes(world: World) -> list[tuple[str, str]]:
    return [(e.id, e.outcome) for e in world.of(ev.EffectOutcome)]


def test_an_effect_that_ended_is_known() -> None:
    world = running()
    effect = began(world)
    assert [e.id for e in world.session.effects] == [effect]
    ended(world)
    assert world.session.effects == ()
    assert not ended(world), "it ended once"


def test_what_a_dead_daemon_was_doing_is_uncertain_and_what_may_be_repeated_is_not() -> None:
    world = running()
    sure, unsure, again = began(world, "a"), began(world, "b"), began(world, "c", repeatable=True)
    ended(world, "a")
    world.crash()
    done = world.apply(Recovered(boot=2))
    assert outcomes(world) == [(sure, "ok"), (unsure, "uncertain"), (again, "interrupted")]
    kinds = [event.kind for event in done.events]
    assert kinds.index("effect.outcome") < kinds.index("turn.interrupted"), "its outcome is part of the turn"
    assert [(e.id, e.uncertain) for e in world.session.effects] == [(unsure, True)]
    assert not world.apply(Recovered(boot=3)).events, "said once"


def test_a_tool_that_an_interruption_cut_is_accounted_for_behind_its_turn() -> None:
    world = running()
    effect = began(world)
    world.apply(InterruptRequested(by="uid:1"))
    assert world.session.turn is None
    ended(world, outcome="cancelled")
    assert outcomes(world) == [(effect, "cancelled")]
    assert world.session.effects == ()


def test_an_effect_that_was_cut_and_never_accounted_for_is_uncertain_after_a_crash() -> None:
    world = running()
    effect = began(world)
    world.apply(InterruptRequested(by="uid:1"))
    world.crash()
    world.apply(Recovered(boot=2))
    assert outcomes(world) == [(effect, "uncertain")]
    assert world.session.crash_boots == (), "no turn ran: this is no crash of the session"


def test_a_person_settles_an_uncertain_effect_once_and_the_model_is_told() -> None:
    world = running()
    effect = began(world)
    world.crash()
    world.apply(Recovered(boot=2))
    given = EffectResolved(by="uid:1", id=effect, outcome="happened", note="the mail is in the outbox")
    world.apply(given)
    assert outcomes(world) == [(effect, "uncertain"), (effect, "happened")]
    (note,) = [e for e in world.of(ev.EnvelopeAccepted) if e.source == "system"]
    assert note.text.startswith("The shell call of turn 1")
    assert note.text.endswith("did happen. the mail is in the outbox")
    with pytest.raises(Refused, match="not_found"):
        world.apply(given)


def test_a_running_effect_is_not_settled_by_hand() -> None:
    world = running()
    effect = began(world)
    with pytest.raises(Refused, match="conflict"):
        world.apply(EffectResolved(by="uid:1", id=effect, outcome="happened"))


def test_uncertain_effects_are_bounded_by_refusing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "UNCERTAIN_MAX", 2)
    world = running()
    began(world, "a")
    began(world, "b")
    world.crash()
    world.apply(Recovered(boot=2, crash_loop_boots=0))
    world.send()
    with pytest.raises(Refused, match="2 effects"):
        began(world, "c")
    began(world, "d", repeatable=True)


def test_an_effect_can_be_settled_after_the_session_ended() -> None:
    world = running()
    effect = began(world)
    world.crash()
    world.apply(Recovered(boot=2))
    world.apply(EndRequested(by="uid:1"))
    world.apply(EffectResolved(by="uid:1", id=effect, outcome="not_happened"))
    assert outcomes(world)[-1] == (effect, "not_happened")
    assert not world.session.inbox
