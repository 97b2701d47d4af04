"""A webhook: where events go, which ones, and when a sink that fails is asked again. Pure."""

from __future__ import annotations

import msgspec

USUAL_KINDS: tuple[str, ...] = (
    "session.ended", "degeneration.detected", "approval.*", "budget.*", "daemon.*", "webhook.*", "recovery.*",
)  # fmt: skip
"""What an operator wants to hear of who named nothing."""
FIRST_DELAY_MS = 1_000
LAST_DELAY_MS = 300_000
REFUSALS_MIN = 5
"""So often a sink must have refused an event before it is given up, however short `give_up_ms` is."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sink and how far it is.

    Attributes:
        cursor: last `seq` that was delivered, not wanted, or given up.
        tries: at the event behind the cursor; since_ms: when the first of them was.
        next_ms: when it is tried again, or None.
        error: of the last try; empty when it went well.
        rewinds: how often the cursor was moved back by hand.
    """

    name: str
    url: str
    secret: str
    kinds: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    format: str = "json"
    content: bool = False
    timeout_ms: int = 10_000
    give_up_ms: int = 3_600_000
    created_ms: int = 0
    by: str = ""
    cursor: int = 0
    tries: int = 0
    since_ms: int = 0
    next_ms: int | None = None
    error: str = ""
    last_ok_ms: int | None = None
    delivered: int = 0
    rewinds: int = 0

    def wants(self, kind: str) -> bool:
        """Whether events of this kind go there."""
        return any(
            kind == wanted or (wanted.endswith("*") and kind.startswith(wanted[:-1]))
            for wanted in self.kinds or USUAL_KINDS
        )


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a sink refused for good."""

    webhook: str
    seq: int
    at_ms: int
    tries: int
    error: str


def delay_ms(tries: int, *, asked_ms: int | None = None) -> int:
    """How long to wait after so many failed tries; `asked_ms` is what the sink asked for."""
    doubled: int = min(LAST_DELAY_MS, FIRST_DELAY_MS << min(tries - 1, 16))
    return doubled if asked_ms is None else max(doubled, min(asked_ms, 3_600_000))


def given_up(webhook: Webhook, now: int, *, refused: bool) -> bool:
    """Whether the event behind the cursor goes to the dead letters.

    Only what the sink itself refuses (4xx) does. A sink that is away is asked for ever: events wait in the log
    for as long as it keeps them, and come in order when it is back.
    """
    return refused and webhook.tries >= REFUSALS_MIN and now - webhook.since_ms >= webhook.give_up_ms
