"""What a session does when a limit of the stop rules is reached, and the phases it refuses. Pure.

soft ─▶ a note to the agent        ceiling with progress ─▶ extended, three times, then parked
hard ─▶ `terminate`: the turn stops at this step, and the session ends with it (`loopd.core.ending`)
"""

from __future__ import annotations

from typing import Protocol

from loopd.core import rules
from loopd.core.conversation import AgentReply
from loopd.core.rules.findings import EXITS, loop_identity
from loopd.core.settings import Settings, config_revision
from loopd.core.state import Session
from loopd.core.stops import phases
from loopd.core.stops.counting import Reached, edge_count, reached
from loopd.core.stops.limits import limits_of
from loopd_protocol import events as ev
from loopd_protocol.events import Event
from loopd_protocol.holds import AnyHold, AwaitingApproval
from loopd_protocol.sources import Source, Trigger

MORE_STEPS = "more_steps"
"""What a parked session asks for."""


class Decides(Protocol):
    """The part of `loopd.core.decision.Decision` that is needed here."""

    session: Session
    now: int
    settings: Settings

    def emit(self, event: Event) -> rules.Verdicts:
        """Add an event and follow it."""

    def close(self, hold: AnyHold, *, cause: str) -> None:
        """Set a hold."""

    def accept(self, source: Source, text: str, *, by: str) -> str:
        """Make an envelope durable."""

    def mark_held(self) -> None:
        """Say of each waiting envelope that something keeps it, if something does."""


def act_on(decision: Decides) -> None:
    """Act on the limits that the step just recorded has reached; of soft ones only without a hard one."""
    if not decision.settings.stop.enabled:
        return
    limits = limits_of(decision.settings.stop)
    found = reached(decision.session.stops, limits)
    hard = [limit for limit in found if limit.level == "hard"]
    for limit in hard or found:
        if limit.level == "hard":
            _tell(decision, limit, "terminate")
        elif limit.rule != "max_steps":
            _tell(decision, limit, "nudge")
            note = f"{limit.said[:1].upper()}{limit.said[1:]}. {limit.advice} {EXITS}"
            decision.accept(Source.SYSTEM, " ".join(note.split()), by=f"rule:{limit.rule}")
        elif decision.session.stops.lane.extensions < limits.max_extensions and limits.extension_steps:
            _tell(decision, limit, "warn")
        else:
            _tell(decision, limit, "close")
            decision.close(
                AwaitingApproval(
                    by=f"rule:{limit.rule}",
                    reason=f"{limit.said}; may it go on?",
                    until_ms=decision.now + limits.park_s * 1_000,
                    request=MORE_STEPS,
                ),
                cause="approval",
            )
            decision.mark_held()


def _tell(decision: Decides, limit: Reached, verdict: str) -> None:
    decision.emit(
        ev.DegenerationDetected(
            rule=limit.rule,
            verdict=verdict,
            level=limit.level,
            score=limit.score,
            threshold=limit.threshold,
            unit=limit.unit,
            window=limit.score,
            evidence=(limit.said, *limit.evidence)[:8],
            loop_id=loop_identity(limit.rule, limit.loop or (limit.rule,)),
            config_revision=config_revision(decision.settings),
            tokens_since_onset=decision.session.spent.barren,
        )
    )


def clamp(decision: Decides, proposed: str) -> AgentReply | None:
    """Refuse a phase by which an edge would reach its limit; None when it may be taken.

    It is refused once: an agent that insists takes the edge, and the run ends with that step.
    """
    session, turn = decision.session, decision.session.turn
    settings = decision.settings.stop
    if not settings.enabled or turn is None or turn.trigger is Trigger.CRON:
        return None
    limits, lane = limits_of(settings), session.stops.main
    name = phases.edge_of(lane.edges, lane.phase, proposed)
    if not name or not limits.edge_loop:
        return None
    edge = lane.edges.get(name, phases.Edge())
    count = edge_count(edge, limits)
    if count + 1 < limits.edge_loop or edge.clamped:
        return None
    decision.emit(
        ev.PhaseClamped(
            phase=lane.phase,
            proposed=proposed,
            edge=name,
            count=count,
            limit=limits.edge_loop,
            lifetime=edge.lifetime,
        )
    )
    text = (
        f"Refused: {name} was taken {count} times without progress ({edge.lifetime} times in this run); "
        f"once more ends the run, the limit is {limits.edge_loop}. You are still in {lane.phase}. {EXITS}"
    )
    return AgentReply(ok=False, text=text)
