"""The state of one session: a frozen value that `advance` replaces and the journal keeps.

Moments are milliseconds since the Unix epoch (UTC). The whole value serialises with msgspec.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.core.account import NOTHING, Account, Used
from loopd.core.permits import Permits
from loopd.core.rules import RulesState
from loopd.core.stops.counting import StopState
from loopd_protocol.holds import AnyHold
from loopd_protocol.sources import Source, Trigger


class Gate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Open iff `holds` is empty. `gen` counts changes; at most one hold of each kind."""

    holds: tuple[AnyHold, ...] = ()
    gen: int = 0

    @property
    def is_open(self) -> bool:
        """Whether continuations may start."""
        return not self.holds


class Goal(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status`: active, paused, complete, infeasible or blocked; `origin`: model or user."""

    text: str
    status: str = "active"
    origin: str = "user"
    note: str = ""
    set_ms: int = 0


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An accepted envelope that no turn has consumed. Its text is in the journal at `ss`.

    Attributes:
        count: how many envelopes of the same job this one stands for.
        held: an `envelope.held` event was written for it.
        manual: it comes from `cron run`, not from the job's expression.
    """

    id: str
    ss: int
    source: Source
    at_ms: int
    job: str | None = None
    due_ms: int | None = None
    count: int = 1
    held: bool = False
    manual: bool = False


class Running(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The turn that runs now.

    Attributes:
        charged_ms: up to when its running time is charged.
        asked_ms: since when it waits for an answer; that is no running time.
        prepaid: what model calls of its running step were charged with already.
    """

    n: int
    trigger: Trigger
    started_ms: int
    ss: int
    steps: int = 0
    calls: int = 0
    tokens: int = 0
    text: str = ""
    passing: bool = False
    stopping: str | None = None
    progressed: bool = False
    near: dict[str, int] = {}
    charged_ms: int = 0
    asked_ms: int | None = None
    prepaid: Used = NOTHING


class CronJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cron job of the session. `next_ms` is None while paused."""

    job: str
    expr: str
    text: str
    tz: str = "UTC"
    missed: str = "one"
    catchup_ms: int = 86_400_000
    next_ms: int | None = None
    paused: bool = False


class Wake(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A wake-up that the agent asked for: once at `due_ms`, or each time `expr` is due."""

    id: str
    due_ms: int
    note: str = ""
    expr: str | None = None


class OpenEffect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that was begun and of which no final outcome is known.

    Attributes:
        uncertain: the daemon died while it ran; a person has to find out.
        repeatable: doing it again does no harm.
    """

    id: str
    n: int
    call: str
    tool: str
    repeatable: bool = False
    uncertain: bool = False


class Spent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens so far; `barren` are those spent since the last progress."""

    input: int = 0
    output: int = 0
    barren: int = 0


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parent of a fork: its turn `n` was the last one that the fork knows, its event `seq` the last."""

    sid: str
    n: int
    seq: int
    log: str = ""


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One long-lived agent conversation.

    Attributes:
        sid, num: public id, and the small integer that stands for it in SQL.
        overrides: dotted settings as given; `loopd.core.settings` makes them whole.
        ss: sequence number of its last event; it is also the session's revision.
        status: `live`, or one of the four terminal states.
        relapses: how often each loop closed the gate.
        idle_ms: sum of chained `request_idle` without any other turn between them.
        idled: the running turn asked to idle.
        withhold_tools: the next step is a text-only step.
        fingerprint: last known digest of the outside state.
        crash_boots: numbers of the last boots that found this session in the middle of a turn.
        progress_ms: last moment of progress.
        stops: what the stop rules remember.
        effects: tools that run, or of which nobody knows how they ended.
        cron_seen: last due moment of each job that was accounted for, also of jobs that were removed: the
            clock may go back.
        run: number of the run, from 1; a person who resumes an ended session begins the next one.
        memory: what the session's driver keeps over restarts, by key.
        last_manual_ms: moment by which the last `cron run` goes; each run has its own.
        permits: rules about tool calls, and the questions that are open.
        account: what was spent, and limits.
        next_overrides: overrides from the next turn on.
        origin: which session it was forked from, and where.
    """

    sid: str
    num: int
    name: str
    driver: dict[str, Any]
    preset: str
    overrides: dict[str, Any] = {}
    labels: dict[str, str] = {}
    workspace: str | None = None
    created_ms: int = 0
    ss: int = 0
    status: str = "live"
    stop_reason: str = ""
    gate: Gate = Gate()
    goal: Goal | None = None
    inbox: tuple[Waiting, ...] = ()
    turn: Running | None = None
    crons: tuple[CronJob, ...] = ()
    wakes: tuple[Wake, ...] = ()
    turns: int = 0
    steps: int = 0
    last_turn_ms: int = 0
    last_pass_ms: int = 0
    last_text: str = ""
    repeat_streak: int = 0
    barren_streak: int = 0
    provider_failures: int = 0
    relapses: dict[str, int] = {}
    rules: RulesState = RulesState()
    rules_scope_ss: int = 0
    spent: Spent = Spent()
    progress_ms: int = 0
    idle_ms: int = 0
    idled: bool = False
    withhold_tools: bool = False
    phase: str = ""
    fingerprint: str = ""
    toolless_continuations: int = 0
    crash_boots: tuple[int, ...] = ()
    last_manual_ms: int = 0
    ended_ms: int = 0
    stops: StopState = StopState()
    run: int = 1
    effects: tuple[OpenEffect, ...] = ()
    cron_seen: dict[str, int] = {}
    memory: dict[str, str] = {}
    permits: Permits = Permits()
    account: Account = Account()
    next_overrides: dict[str, Any] | None = None
    origin: Origin | None = None
