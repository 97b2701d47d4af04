"""The matrix: which faults there are, and in which seeded order they are tried."""

from __future__ import annotations

import random

import msgspec

KINDS = (
    "session.created",
    "envelope.accepted",
    "envelope.held",
    "gate.changed",
    "goal.changed",
    "cron.changed",
    "cron.occurrence",
    "turn.started",
    "turn.step",
    "turn.completed",
    "turn.interrupted",
    "effect.intent",
    "effect.outcome",
    "daemon.recovered",
    "daemon.started",
)
"""Facts that are durable before they are acknowledged or acted on (class D0)."""

SELDOM = frozenset(
    {
        "session.created",
        "goal.changed",
        "cron.changed",
        "daemon.recovered",
        "daemon.started",
        "turn.interrupted",
    }
)
LIVE_KINDS = tuple(kind for kind in KINDS if not kind.startswith("daemon."))
"""Those that a daemon writes once it is ready: before that, an error of the disk is a start that fails."""

COMMIT_POINTS = ("commit.begin", "commit.written", "commit.done", "commit.told")
OTHER_POINTS = (
    "boot.opened",
    "boot.recovered",
    "boot.ready",
    "checkpoint.before",
    "checkpoint.after",
    "turn.driver",
    "tool.before",
    "tool.after",
)
DAMAGES = ("lying fsync", "torn log", "log bits", "database bits", "cut database")
FAILING_POINTS = ("commit.begin", "commit.written", "checkpoint.before")
FAILURES = {"full": "ENOSPC", "eio": "EIO"}
STOPS_S = (2.5, 33.0)
"""The second is longer than every timeout of the daemon: `hello` 5 s, model 5 s (as configured here), tools 10 s,
a cancelled driver 15 s, a peer that takes nothing 30 s."""

FAMILIES = ("point", "moment", "term", "stop", "disk", "fails", "clock", "damage")
KILLS = ("point", "moment")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        env: variables of the daemon.
        after: so many acknowledgements come first.
        times: for damage: copies that are damaged.
        fat: send long texts, so that checkpoints come.
    """

    family: str
    detail: str = ""
    env: dict[str, str] = {}
    after: int = 0
    for_s: float = 0.0
    times: int = 1
    jumps: tuple[int, ...] = ()
    fat: bool = False

    def __str__(self) -> str:
        return f"{self.family} {self.detail}".strip()


def at_point(name: str, kind: str | None, nth: int, *, action: str = "kill") -> Fault:
    """`kill -9` at a named point."""
    spec = f"{name}{'/' + kind if kind else ''}:{action}@{nth}"
    label = f"{name}{'/' + kind if kind else ''}"
    return Fault(
        family="point",
        detail=label,
        env={"LOOPD_TESTING_FAILPOINTS": spec},
        fat=name.startswith("checkpoint"),
    )


def failing(name: str, kind: str | None, nth: int, action: str) -> Fault:
    """The storage fails at a named point, once, with the error of a full or of a broken disk."""
    label = f"{name}{'/' + kind if kind else ''}"
    return Fault(
        family="fails",
        detail=f"{FAILURES[action]} {label}",
        env={"LOOPD_TESTING_FAILPOINTS": f"{label}:{action}@{nth}"},
        fat=name.startswith("checkpoint"),
    )


def faults(seed: int) -> list[Fault]:
    """One round of the whole matrix, shuffled; ask for the next round with the next seed."""
    dice = random.Random(f"plan:{seed}")
    found = []
    for point in COMMIT_POINTS:
        found += [at_point(point, kind, 1 if kind in SELDOM else dice.randrange(1, 12)) for kind in KINDS]
        found.append(at_point(point, None, dice.randrange(1, 60)))
    for point in OTHER_POINTS:
        once = point.startswith(("boot", "checkpoint"))
        found.append(at_point(point, None, 1 if once else dice.randrange(1, 12)))
    found += [Fault(family="moment", detail="kill -9", after=dice.randrange(1, 80)) for _ in range(16)]
    found += [Fault(family="term", detail="SIGTERM", after=dice.randrange(5, 60)) for _ in range(2)]
    found += [
        Fault(family="stop", detail=f"SIGSTOP {for_s:g} s", after=dice.randrange(5, 60), for_s=for_s)
        for for_s in STOPS_S
    ]
    for point in FAILING_POINTS:
        for action in FAILURES:
            kinds = (None,) if point.startswith("checkpoint") else LIVE_KINDS
            found += [
                failing(point, kind, 1 if kind in SELDOM else dice.randrange(1, 8), action) for kind in kinds
            ]
    for code in ("ENOSPC", "EIO", "EIO-SYNC"):
        found.append(Fault(family="disk", detail=code, after=dice.randrange(5, 60), for_s=0.6))
    jumps = tuple(dice.choice((3_000, 61_000, 3_600_000, -3_000, -61_000, -3_600_000)) for _ in range(3))
    found.append(Fault(family="clock", detail="jumps", after=10, jumps=jumps))
    found += [Fault(family="damage", detail=what, after=dice.randrange(20, 80), times=6) for what in DAMAGES]
    dice.shuffle(found)
    return found
