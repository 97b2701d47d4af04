"""The source × hold table of the design, written out by hand: what the tests expect, not what the code says."""

from __future__ import annotations

from loopd_protocol.holds import (
    AnyHold,
    AwaitingApproval,
    Budget,
    ContinuationBackoff,
    CrashLoop,
    Degeneration,
    Interrupted,
    Maintenance,
    ProviderBackoff,
    RequestIdle,
    UserSuspend,
)

SOURCES = ("human", "cron", "rewake", "agent", "channel", "system")
STARTING = ("human", "cron", "rewake", "agent", "channel")
"""Sources that may begin a turn."""

STRENGTH = ("rewake", "cron", "channel", "agent", "human")
"""Weakest first: the strongest source of a batch names the turn's trigger."""

_TABLE = """
                     human    cron     rewake   agent    channel  system   by hand
UserSuspend          removes  waits    waits    waits    waits    waits    no
Degeneration         removes  PRESET   PRESET   PRESET   PRESET   waits    yes
RequestIdle          removes  removes  removes  removes  removes  waits    yes
ContinuationBackoff  removes  removes  removes  removes  removes  waits    yes
Interrupted          removes  waits    waits    waits    waits    waits    yes
ProviderBackoff      waits    waits    waits    waits    waits    waits    yes
AwaitingApproval     waits    waits    waits    waits    waits    waits    no
Budget               waits    waits    waits    waits    waits    waits    no
CrashLoop            waits    waits    waits    waits    waits    waits    yes
Maintenance          waits    waits    waits    waits    waits    waits    no
"""

ROWS = [line.split() for line in _TABLE.strip().splitlines()[1:]]
KINDS = tuple(row[0] for row in ROWS)
BY_HAND = frozenset(row[0] for row in ROWS if row[-1] == "yes")
NEEDS_LATER = frozenset({"UserSuspend", "Interrupted"})
"""A human envelope lifts these only when it was accepted after them."""

_PRESET = {"published": "removes", "hardened": "passes"}
EXPECTED: dict[tuple[str, str, str], str] = {
    (row[0], source, preset): _PRESET[preset] if word == "PRESET" else word
    for row in ROWS
    for source, word in zip(SOURCES, row[1:-1], strict=True)
    for preset in _PRESET
}
CELLS = sorted(EXPECTED)


def a_hold(kind: str, until_ms: int | None = 10_000, *, since_ss: int = 5, **given: object) -> AnyHold:
    """A hold of this kind with everything that it requires."""
    common = {"by": "test", "since_ms": 1_000, "since_ss": since_ss, "until_ms": until_ms}
    more: dict[str, dict[str, object]] = {
        "Degeneration": {"rule": "repeated_text"},
        "AwaitingApproval": {"request": "more steps?"},
        "Budget": {"which": "tokens"},
        "CrashLoop": {"boots": 3},
    }
    types = (
        UserSuspend,
        Degeneration,
        RequestIdle,
        ContinuationBackoff,
        Interrupted,
        ProviderBackoff,
        AwaitingApproval,
        Budget,
        CrashLoop,
        Maintenance,
    )
    by_kind = {cls.__name__: cls for cls in types}
    return by_kind[kind](**(common | more.get(kind, {}) | given))  # type: ignore[arg-type,return-value]
