"""What is asked of a verification, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from loopd.core.state import Session
from loopd_protocol.errors import Refused

FINDINGS_MAX = 100

INVARIANTS = {
    "I1": "turns start and end in turn",
    "I2": "no turn began in spite of a hold or an end",
    "I3": "automatic holds have deadlines and keep them",
    "I4": "a consumed envelope is in exactly one turn",
    "I5": "every outcome follows its intent, no intent has two",
    "I6": "one final state per cron occurrence",
    "I7": "epochs and boots never fall",
    "I8": "every acknowledged seq exists",
    "I9": "the refold of the journal is what the projections say",
    "I10": "every approval is settled once, and its turn does not outlive it",
}
"""Name → what must be true of the journal."""


def _never() -> bool:
    return False


def _nobody(what: str, done: int, total: int) -> None:
    del what, done, total


def _unheard(rows: int) -> None:
    del rows


ROWS_WORTH_IT = 20_000
"""A log of fewer rows is verified before a process that helps has started: a third of a second."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """Where the journal lies, so that other processes can read it.

    Attributes:
        alone: nobody else has it open; see `opening.connect_reader`.
        gently: somebody works with it, and comes first.
        rows_worth_it: from how many rows on other processes help.
    """

    path: Path
    alone: bool = False
    gently: bool = False
    rows_worth_it: int = ROWS_WORTH_IT


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to verify.

    Attributes:
        suspended_since: with `sid`: prove contract 3 of the gate from this `seq` on.
        stopped: asked between pages; true ends the verification with `cancelled`.
        progress: told between pages: (what, done, of how many).
        looked: told between pages how many rows more were looked at.
        file: the journal's file; None: only the connection at hand can read it.
        keys: public keys of anchors, by name.
        anchors: anchors that somebody kept elsewhere, to be compared beside the stored ones.
        evolve: `(session | None, event, *, ss, at_ms) -> Session`; None: the one in `loopd.core`.
    """

    log_id: str
    sid: str | None = None
    suspended_since: int | None = None
    evolve: Callable[..., Session] | None = None
    stopped: Callable[[], bool] = _never
    progress: Callable[[str, int, int], None] = _nobody
    looked: Callable[[int], None] = _unheard
    file: File | None = None
    keys: Mapping[str, bytes] = {}
    anchors: tuple[Any, ...] | None = None

    def check(self) -> None:
        """Between pages: does anybody still want to know?

        Raises:
            Refused: `cancelled`.
        """
        if self.stopped():
            raise Refused("cancelled", "the verification was called off")


class Findings(msgspec.Struct):
    """What does not verify; the first `FINDINGS_MAX` in full, the rest counted.

    Attributes:
        notes: what is worth knowing and no fault.
        checked: how much was looked at, by check.
        found: how many faults, by check.
    """

    listed: list[dict[str, Any]] = []
    total: int = 0
    notes: list[dict[str, Any]] = []
    checked: dict[str, int] = {}
    found: dict[str, int] = {}

    def looked(self, check: str, count: int = 1) -> None:
        """Count what was looked at for a check, so that nothing found can be told from nothing looked at."""
        self.checked[check] = self.checked.get(check, 0) + count

    def invariants(self) -> dict[str, dict[str, Any]]:
        """What was checked and found of each invariant."""
        return {
            name: {"checked": self.checked.get(name, 0), "found": self.found.get(name, 0), "what": what}
            for name, what in INVARIANTS.items()
        }

    def add(self, check: str, what: str, **where: Any) -> None:
        """Note one finding. `where` names what it is about: seq, sid, ss, table."""
        self.total += 1
        self.found[check] = self.found.get(check, 0) + 1
        if len(self.listed) < FINDINGS_MAX:
            self.listed.append({"check": check, "what": what, **where})

    def note(self, check: str, what: str, **where: Any) -> None:
        """Note what is worth knowing and no fault."""
        if len(self.notes) < FINDINGS_MAX:
            self.notes.append({"check": check, "what": what, **where})

    def take_over(self, others: Findings) -> None:
        """Go on with what was found elsewhere, as if it had been found here."""
        self.listed += others.listed[: FINDINGS_MAX - len(self.listed)]
        self.notes += others.notes[: FINDINGS_MAX - len(self.notes)]
        self.total += others.total
        for mine, theirs in ((self.checked, others.checked), (self.found, others.found)):
            for check, count in theirs.items():
                mine[check] = mine.get(check, 0) + count
