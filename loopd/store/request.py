"""What is asked of a verification, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from loopd.core.state import Session
from loopd_protocol.errors import Refused

FINDINGS_MAX = 100


def _never() -> bool:
    return False


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to verify.

    Attributes:
        suspended_since: with `sid`: prove contract 3 of the gate from this `seq` on.
        stopped: asked between pages; true ends the verification with `cancelled`.
        evolve: `(session | None, event, *, ss, at_ms) -> Session`; None: the one in `loopd.core`.
    """

    log_id: str
    sid: str | None = None
    suspended_since: int | None = None
    evolve: Callable[..., Session] | None = None
    stopped: Callable[[], bool] = _never

    def check(self) -> None:
        """Between pages: does anybody still want to know?

        Raises:
            Refused: `cancelled`.
        """
        if self.stopped():
            raise Refused("cancelled", "the verification was called off")


class Findings:
    """What does not verify; the first `FINDINGS_MAX` in full, the rest counted."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self.total = 0
        self.notes: list[dict[str, Any]] = []

    def add(self, check: str, what: str, **where: Any) -> None:
        """Note one finding. `where` names what it is about: seq, sid, ss, table."""
        self.total += 1
        if len(self.listed) < FINDINGS_MAX:
            self.listed.append({"check": check, "what": what, **where})

    def note(self, check: str, what: str, **where: Any) -> None:
        """Note what is worth knowing and no fault."""
        if len(self.notes) < FINDINGS_MAX:
            self.notes.append({"check": check, "what": what, **where})
