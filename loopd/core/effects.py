"""The ledger of tool effects: what was begun, how it ended, what nobody knows. Pure.

    intent ──ok | error | cancelled──▶ known
       └─ the daemon died ─┬─ repeatable ──▶ interrupted: may simply be done again
                           └─ else ────────▶ uncertain ──effect.resolve──▶ happened | not_happened

Whether a tool ran twice can only be promised for what is not run again: loopd itself never repeats a
call. What it does not know it says, to the model (in place of the result) and to the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from loopd.core.inputs import EffectEnded, EffectIntended, EffectResolved
from loopd.core.state import OpenEffect, Session
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source

if TYPE_CHECKING:
    from loopd.core.decision import Decision

UNCERTAIN_MAX = 256
"""Effects of one session that wait to be settled; no further tool runs until some are."""

RESOLUTIONS = ("happened", "not_happened")


# -- decide ----------------------------------------------------------------------------------------


def intend(decision: Decision, given: EffectIntended) -> None:
    """Write down that a tool is about to run.

    Raises:
        Refused: `conflict` when too many effects of the session are uncertain.
    """
    session = decision.session
    assert session.turn is not None
    uncertain = sum(1 for effect in session.effects if effect.uncertain)
    if uncertain >= UNCERTAIN_MAX and not given.repeatable:
        raise Refused(
            "conflict",
            f"{uncertain} effects of session {session.name!r} are uncertain; settle some first "
            "(`loopctl effect list`, `loopctl effect resolve`)",
        )
    # with the step: small model servers name the calls of every step alike
    effect = f"{session.num}.{session.turn.n}.{session.turn.steps + 1}.{given.call}"[:128]
    decision.emit(
        ev.EffectIntent(
            id=effect,
            n=given.n,
            call=given.call,
            tool=given.tool,
            args_sha256=given.args_sha256,
            tool_class=given.tool_class,
            args=given.args,
            args_blob=given.args_blob,
            repeatable=given.repeatable,
        )
    )


def end(decision: Decision, given: EffectEnded) -> None:
    """Write down how a tool ended; also behind the end of its turn, as when an interruption ended both."""
    known = next(
        (
            effect
            for effect in reversed(decision.session.effects)
            if effect.n == given.n and effect.call == given.call and not effect.uncertain
        ),
        None,
    )
    if known is not None:
        decision.emit(ev.EffectOutcome(id=known.id, outcome=given.outcome))


def lost(decision: Decision) -> None:
    """The daemon died: of everything that was begun, say what is known now."""
    for effect in decision.session.effects:
        if not effect.uncertain:
            outcome = "interrupted" if effect.repeatable else "uncertain"
            decision.emit(ev.EffectOutcome(id=effect.id, outcome=outcome, by="daemon"))


def resolve(decision: Decision, given: EffectResolved) -> None:
    """A person found out what became of an uncertain effect; the model is told with its next turn.

    Raises:
        Refused: `not_found`, or `conflict` when the effect is still running.
    """
    session = decision.session
    known = next((effect for effect in session.effects if effect.id == given.id), None)
    if known is None:
        raise Refused(
            "not_found",
            f"no uncertain effect {given.id!r} in session {session.name!r}; `loopctl effect list` shows them",
            path="$.id",
        )
    if not known.uncertain:
        raise Refused("conflict", f"effect {given.id!r} is running in turn {known.n}; it is not uncertain")
    decision.emit(ev.EffectOutcome(id=known.id, outcome=given.outcome, by=given.by, note=given.note))
    if session.status == "live":
        did = "did happen" if given.outcome == "happened" else "did not happen"
        said = f"The {known.tool} call of turn {known.n} whose outcome was unknown {did}."
        decision.accept(Source.SYSTEM, f"{said} {given.note}".rstrip(), by=given.by)


# -- follow ----------------------------------------------------------------------------------------


def intended(session: Session, event: ev.EffectIntent) -> Session:
    """The session behind an intent."""
    begun = OpenEffect(id=event.id, n=event.n, call=event.call, tool=event.tool, repeatable=event.repeatable)
    return replace(session, effects=(*session.effects, begun))


def turned_out(session: Session, event: ev.EffectOutcome) -> Session:
    """The session behind an outcome."""
    if event.outcome == "uncertain":
        effects = tuple(
            replace(effect, uncertain=True) if effect.id == event.id else effect for effect in session.effects
        )
    else:
        effects = tuple(effect for effect in session.effects if effect.id != event.id)
    return replace(session, effects=effects)
