"""Sessions as the JSON objects that commands answer with."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.core import approvals, continuation, reconfigure
from loopd.core.inputs import House
from loopd.core.rules import rungs
from loopd.core.session import next_deadline
from loopd.core.settings import config_revision, settings_for
from loopd.core.state import CronJob, Session, Waiting
from loopd.core.writes import PassiveRow, StoredEvent
from loopd_protocol.holds import AnyHold
from loopd_protocol.sources import SOURCE_POLICIES


def hold_view(hold: AnyHold) -> dict[str, Any]:
    """A hold with its kind; `until_ms` is always there, null for indefinite."""
    view: dict[str, Any] = {"kind": hold.kind, "until_ms": hold.until_ms}
    view.update(msgspec.to_builtins(hold))
    return view


def gate_view(session: Session) -> dict[str, Any]:
    """`gate`, `holds` and the gate's generation."""
    return {
        "gate": "open" if session.gate.is_open else "closed",
        "holds": [hold_view(hold) for hold in session.gate.holds],
        "gen": session.gate.gen,
    }


def goal_view(session: Session) -> dict[str, Any] | None:
    """The goal, or None."""
    goal = session.goal
    if goal is None:
        return None
    return {
        "text": goal.text,
        "status": goal.status,
        "origin": goal.origin,
        "note": goal.note,
        "set_ms": goal.set_ms,
    }


def turn_view(session: Session, will: str | None = None) -> dict[str, Any] | None:
    """The running turn, or None; `will` says what becomes of it."""
    turn = session.turn
    if turn is None:
        return None
    view: dict[str, Any] = {
        "n": turn.n,
        "state": "running",
        "trigger": turn.trigger.value,
        "started_ms": turn.started_ms,
        "steps": turn.steps,
    }
    if will is not None:
        view["will"] = will
    return view


def session_view(session: Session) -> dict[str, Any]:
    """One session, whole, without content of messages."""
    return {
        "sid": session.sid,
        "name": session.name,
        "status": session.status,
        "stop_reason": session.stop_reason,
        **gate_view(session),
        "goal": goal_view(session),
        "turn": turn_view(session),
        "turns": session.turns,
        "steps": session.steps,
        "inbox": len(session.inbox),
        "progress_ms": session.progress_ms,
        "repeat_streak": session.repeat_streak,
        "barren_streak": session.barren_streak,
        "tokens": {
            "input": session.spent.input,
            "output": session.spent.output,
            "barren": session.spent.barren,
        },
        "labels": session.labels,
        "preset": session.preset,
        "settings": session.overrides,
        "next_settings": session.next_overrides,
        "policy": [msgspec.to_builtins(rule) for rule in session.permits.rules],
        "grants": [msgspec.to_builtins(rule) for rule in session.permits.grants],
        "parent": session.account.parent,
        "cost_micro": session.account.cost,
        "wall_ms": session.account.wall,
        "unpriced": session.account.unpriced,
        "driver": session.driver,
        "workspace": session.workspace,
        "phase": session.phase,
        "rung": rungs.NAMES[session.rules.rungs.highest],
        "progress_step": session.rules.progress.last,
        "run": session.run,
        "crons": [cron_view(session.sid, job) for job in session.crons],
        "wakes": [msgspec.to_builtins(wake) for wake in session.wakes],
        "created_ms": session.created_ms,
        "last_turn_ms": session.last_turn_ms,
        "rev": session.ss,
    }


def settings_view(session: Session) -> dict[str, Any]:
    """Overrides that hold, those that hold from the next turn on, and what they come to."""
    coming = reconfigure.overrides_of(session)
    return {
        "settings": coming,
        "revision": config_revision(settings_for(session.preset, coming)),
        "effective": "now" if session.next_overrides is None else "next_turn",
        "policy": [msgspec.to_builtins(rule) for rule in session.permits.rules],
    }


def row_view(row: PassiveRow) -> dict[str, Any]:
    """One session from its passive row: what lists show without loading it."""
    kinds = row.holds.split(",") if row.holds else []
    return {
        "sid": row.sid,
        "name": row.name,
        "status": row.status,
        "gate": "closed" if kinds else "open",
        "kinds": kinds,
        "until_ms": row.until_ms,
        "goal": {"status": row.goal} if row.goal else None,
        "running": bool(row.running),
        "trigger": row.trigger or None,
        "turns": row.turns,
        "steps": row.steps,
        "inbox": row.inbox,
        "progress_ms": row.progress_ms,
        "repeat_streak": row.repeat_streak,
        "barren_streak": row.barren_streak,
        "tokens": {"total": row.tokens, "barren": row.tokens_barren},
        "labels": msgspec.json.decode(row.labels) if row.labels else {},
        "preset": row.preset,
        "created_ms": row.created_ms,
        "last_turn_ms": row.last_turn_ms,
        "deadline_ms": row.deadline_ms,
    }


def cron_view(sid: str, job: CronJob) -> dict[str, Any]:
    """A cron job."""
    return {
        "sid": sid,
        "job": job.job,
        "expr": job.expr,
        "tz": job.tz,
        "text": job.text,
        "missed": job.missed,
        "catchup_ms": job.catchup_ms,
        "paused": job.paused,
        "next_ms": job.next_ms,
    }


def waiting_view(waiting: Waiting, by: tuple[str, ...]) -> dict[str, Any]:
    """An envelope that waits, and for what."""
    return {
        "id": waiting.id,
        "source": waiting.source.value,
        "at_ms": waiting.at_ms,
        "job": waiting.job,
        "count": waiting.count,
        "held": waiting.held,
        "by": list(by),
    }


def why_view(session: Session, closed_by: str | None) -> dict[str, Any]:
    """Why is this session not running, until when, and what will happen next?"""
    house = House(settings=settings_for(session.preset, session.overrides), closed_by=closed_by)
    kinds = tuple(hold.kind for hold in session.gate.holds)
    by = (*kinds, closed_by) if closed_by else kinds
    held = [w for w in session.inbox if SOURCE_POLICIES[w.source].starts_turn]
    deadline = next_deadline(session, house)
    resumes = continuation.due(session, house)
    asked = approvals.next_due(session)
    if asked is not None:
        upcoming: dict[str, Any] | None = {"what": "approval", "at_ms": asked}
    elif session.turn is not None:
        upcoming = {"what": "turn_end", "at_ms": None}
    elif deadline is None:
        upcoming = None
    elif resumes is not None and resumes == deadline:
        upcoming = {"what": "continuation", "at_ms": deadline}
    elif any(h.until_ms == deadline for h in session.gate.holds):
        upcoming = {"what": "hold_ends", "at_ms": deadline}
    elif any(job.next_ms == deadline for job in session.crons):
        upcoming = {"what": "cron", "at_ms": deadline}
    else:
        upcoming = {"what": "wake", "at_ms": deadline}
    return {
        "sid": session.sid,
        "name": session.name,
        "status": session.status,
        "stop_reason": session.stop_reason,
        **gate_view(session),
        "house": closed_by,
        "held_back": [waiting_view(w, by) for w in held],
        "goal": goal_view(session),
        "turn": turn_view(session),
        "next": upcoming,
        "uncertain": [effect.id for effect in session.effects if effect.uncertain],
        "near": {} if session.turn is None else session.turn.near,
    }


def event_view(stored: StoredEvent) -> dict[str, Any]:
    """A stored event: envelope of the log and body."""
    return {
        "seq": stored.seq,
        "sid": stored.sid,
        "ss": stored.ss,
        "ts": stored.at_ms,
        "k": stored.kind,
        "turn": stored.turn,
        "b": msgspec.json.decode(stored.body) if stored.body else None,
        **({"reduced": True} if stored.reduced else {}),
    }
