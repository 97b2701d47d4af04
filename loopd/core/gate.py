"""The ContinuationGate: the only authority that admits work into a session. Pure.

    open ──Close(hold)──▶ closed ──Open / Arrived(removes) / Tick(deadline)──▶ closed or open

A gate is open iff it has no holds. Holds are independent by cause: one for each kind, the same
automatic kind again keeps the later deadline. What an envelope does to a hold is one table,
`MATRIX`; its `passes` cells exist for presets that do not let automatic sources undo a detection.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

import msgspec

from loopd.core.state import Gate
from loopd_protocol.errors import Refused
from loopd_protocol.holds import HOLD_KINDS, AnyHold, UserSuspend
from loopd_protocol.sources import Source


class Cell(StrEnum):
    """What an envelope of a source meets at a hold."""

    REMOVES = "removes"
    WAITS = "waits"
    PASSES = "passes"


_R, _W, _P = Cell.REMOVES, Cell.WAITS, Cell.PASSES
AUTOMATIC = (Source.CRON, Source.REWAKE, Source.AGENT, Source.CHANNEL)


def _row(human: Cell, automatic: Cell) -> MappingProxyType[Source, Cell]:
    cells = {Source.HUMAN: human, Source.SYSTEM: Cell.WAITS}
    cells.update(dict.fromkeys(AUTOMATIC, automatic))
    return MappingProxyType(cells)


MATRIX: MappingProxyType[str, MappingProxyType[Source, Cell]] = MappingProxyType(
    {
        "UserSuspend": _row(_R, _W),
        "Degeneration": _row(_R, _P),
        "RequestIdle": _row(_R, _R),
        "ContinuationBackoff": _row(_R, _R),
        "Interrupted": _row(_R, _W),
        "ProviderBackoff": _row(_W, _W),
        "AwaitingApproval": _row(_W, _W),
        "Budget": _row(_W, _W),
        "CrashLoop": _row(_W, _W),
        "Maintenance": _row(_W, _W),
    }
)
"""Hold × source, total. `system` envelopes ride on the next turn and lift nothing."""

PRESET_CELLS: MappingProxyType[str, MappingProxyType[tuple[str, Cell], Cell]] = MappingProxyType(
    {
        "published": MappingProxyType({("Degeneration", Cell.PASSES): Cell.REMOVES}),
        "hardened": MappingProxyType({}),
    }
)
"""Where a preset differs from `MATRIX`."""

OPENED_BY_HAND: frozenset[str] = frozenset(
    {"Degeneration", "RequestIdle", "ContinuationBackoff", "Interrupted", "ProviderBackoff", "CrashLoop"}
)
"""Kinds that `gate open` removes. The others need their own answer: unsuspend, approve, a budget."""

LIFTED_BY_LATER_ONLY: frozenset[str] = frozenset({"UserSuspend", "Interrupted"})
"""A human envelope lifts these only if it was accepted after the hold was set."""


def cell(kind: str, source: Source, preset: str) -> Cell:
    """What an envelope of `source` meets at a hold of `kind` under `preset`."""
    base = MATRIX[kind][source]
    return PRESET_CELLS[preset].get((kind, base), base)


# -- inputs and effects -----------------------------------------------------------------------


class Close(msgspec.Struct, frozen=True):
    """Set a hold, or set it again."""

    hold: AnyHold


class Open(msgspec.Struct, frozen=True):
    """Remove holds of these kinds, as far as they stand."""

    kinds: tuple[str, ...]


class Extend(msgspec.Struct, frozen=True):
    """Move one deadline later."""

    kind: str
    until_ms: int


class Arrived(msgspec.Struct, frozen=True):
    """An envelope wants in. `ss`: when it was accepted, in session sequence numbers."""

    source: Source
    ss: int
    preset: str


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class Changed(msgspec.Struct, frozen=True):
    """The gate became `gate`; what came and went, and how late."""

    gate: Gate
    added: AnyHold | None = None
    removed: tuple[str, ...] = ()
    kept_later: bool = False
    late_ms: int | None = None


class Admit(msgspec.Struct, frozen=True):
    """The envelope may start a turn; `passing` if a hold stands nevertheless."""

    passing: bool = False


class HoldBack(msgspec.Struct, frozen=True):
    """The envelope waits for these kinds."""

    by: tuple[str, ...]


GateInput = Close | Open | Extend | Arrived | Tick
GateEffect = Changed | Admit | HoldBack


def hold_of(gate: Gate, kind: str) -> AnyHold | None:
    """The hold of this kind, if it stands."""
    return next((h for h in gate.holds if h.kind == kind), None)


def deadline_of(gate: Gate) -> int | None:
    """Earliest moment at which a hold goes by itself."""
    return min((h.until_ms for h in gate.holds if h.until_ms is not None), default=None)


def _without(gate: Gate, kinds: tuple[str, ...], late_ms: int | None = None) -> Changed:
    left = tuple(h for h in gate.holds if h.kind not in kinds)
    return Changed(gate=Gate(holds=left, gen=gate.gen + 1), removed=kinds, late_ms=late_ms)


def _closed(gate: Gate, hold: AnyHold) -> Changed:
    old = hold_of(gate, hold.kind)
    kept_later = False
    if old is not None and not isinstance(hold, UserSuspend):
        assert old.until_ms is not None
        assert hold.until_ms is not None
        if old.until_ms > hold.until_ms:
            hold = msgspec.structs.replace(hold, until_ms=old.until_ms)
            kept_later = True
    if old is not None:
        hold = msgspec.structs.replace(hold, since_ms=old.since_ms)
    rest = tuple(h for h in gate.holds if h.kind != hold.kind)
    holds = tuple(sorted((*rest, hold), key=lambda h: HOLD_KINDS.index(h.kind)))
    return Changed(gate=Gate(holds=holds, gen=gate.gen + 1), added=hold, kept_later=kept_later)


def _extended(gate: Gate, given: Extend, now: int) -> Changed:
    old = hold_of(gate, given.kind)
    if old is None:
        raise Refused("conflict", f"no hold {given.kind!r} stands; holds are {_names(gate)}")
    if old.until_ms is None or given.until_ms <= max(old.until_ms, now):
        raise Refused(
            "invalid",
            f"until {given.until_ms} ms is not later than the deadline {old.until_ms} and now {now}; "
            "extend only moves a deadline later",
            path="$.until_ms",
        )
    hold = msgspec.structs.replace(old, until_ms=given.until_ms)
    holds = tuple(hold if h is old else h for h in gate.holds)
    return Changed(gate=Gate(holds=holds, gen=gate.gen + 1), added=hold)


def _names(gate: Gate) -> str:
    return ", ".join(h.kind for h in gate.holds) or "none"


def lifted_by(gate: Gate, given: Arrived) -> tuple[str, ...]:
    """Kinds of the holds that this envelope removes, before it is judged."""
    suspend = hold_of(gate, "UserSuspend")
    if isinstance(suspend, UserSuspend) and (
        given.source is not Source.HUMAN or suspend.quarantine or given.ss <= suspend.since_ss
    ):
        return ()
    return tuple(
        h.kind
        for h in gate.holds
        if cell(h.kind, given.source, given.preset) is Cell.REMOVES
        and not (h.kind in LIFTED_BY_LATER_ONLY and given.ss <= h.since_ss)
    )


def blocked_by(gate: Gate, source: Source, preset: str, *, may_pass: bool) -> tuple[str, ...]:
    """Kinds that keep an envelope of this source waiting at this gate as it stands."""
    return tuple(h.kind for h in gate.holds if not (may_pass and cell(h.kind, source, preset) is Cell.PASSES))


def kept_by(gate: Gate, given: Arrived, *, may_pass: bool) -> tuple[str, ...]:
    """Kinds that keep this envelope waiting after it has lifted what it lifts; empty if it may come in."""
    lifted = lifted_by(gate, given)
    left = Gate(holds=tuple(h for h in gate.holds if h.kind not in lifted))
    return blocked_by(left, given.source, given.preset, may_pass=may_pass)


def transition(
    gate: Gate, given: GateInput, now: int, *, may_pass: bool = True
) -> tuple[Gate, tuple[GateEffect, ...]]:
    """One step of the gate.

    Args:
        gate: the gate before.
        given: what happened.
        now: milliseconds since the epoch (UTC).
        may_pass: whether a `passes` cell may admit now (the session's rate limit).

    Returns:
        The gate after, and effects in order. At most one `Changed` for each hold that went by its
        deadline, one for everything else.

    Raises:
        Refused: `conflict` or `invalid` for an `Extend` that does not fit.
    """
    effects: list[GateEffect] = []
    match given:
        case Close(hold):
            effects.append(_closed(gate, hold))
        case Open(kinds):
            standing = tuple(h.kind for h in gate.holds if h.kind in kinds)
            if standing:
                effects.append(_without(gate, standing))
        case Extend():
            effects.append(_extended(gate, given, now))
        case Tick():
            current = gate
            for hold in sorted(gate.holds, key=lambda h: h.until_ms or 0):
                if hold.until_ms is not None and hold.until_ms <= now:
                    change = _without(current, (hold.kind,), now - hold.until_ms)
                    effects.append(change)
                    current = change.gate
        case Arrived():
            lifted = lifted_by(gate, given)
            after = gate
            if lifted:
                change = _without(gate, lifted)
                effects.append(change)
                after = change.gate
            waiting_for = blocked_by(after, given.source, given.preset, may_pass=may_pass)
            effects.append(HoldBack(waiting_for) if waiting_for else Admit(passing=not after.is_open))
    for effect in reversed(effects):
        if isinstance(effect, Changed):
            return effect.gate, tuple(effects)
    return gate, tuple(effects)
