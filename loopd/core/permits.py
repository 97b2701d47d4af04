"""What a session remembers about permissions: its rules, standing answers, open questions. Pure."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from loopd.core.policy import granted
from loopd_protocol.policy import PolicyRule
from loopd_protocol.policy_events import ApprovalAnswered, ApprovalExpired, ApprovalRequested

SETTLED_MAX = 32
GRANTS_MAX = 200


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call that waits for an answer; fields as in `approval.requested`."""

    id: str
    n: int
    call: str
    tool: str
    tool_class: str
    excerpt: str
    rule: str
    reason: str
    asked_ms: int
    until_ms: int
    about: str = "tool"
    subjects: tuple[str, ...] = ()


class Permits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Permissions of one session.

    Attributes:
        rules: as given at creation or by `session.set`.
        grants: what answers for the whole session stand for; they come before the rules.
        pending: open questions, oldest first.
        settled: the last answers, id → in words.
    """

    rules: tuple[PolicyRule, ...] = ()
    grants: tuple[PolicyRule, ...] = ()
    pending: tuple[Asked, ...] = ()
    settled: dict[str, str] = {}

    @property
    def all_rules(self) -> tuple[PolicyRule, ...]:
        """In the order in which they are looked at."""
        return (*self.grants, *self.rules)


def requested(permits: Permits, event: ApprovalRequested, at_ms: int) -> Permits:
    """Behind `approval.requested`."""
    asked = Asked(
        id=event.id,
        n=event.n,
        call=event.call,
        tool=event.tool,
        tool_class=event.tool_class,
        excerpt=event.excerpt,
        rule=event.rule,
        reason=event.reason,
        asked_ms=at_ms,
        until_ms=event.until_ms,
        about=event.about,
        subjects=event.subjects,
    )
    return replace(permits, pending=(*permits.pending, asked))


def answered(permits: Permits, event: ApprovalAnswered) -> Permits:
    """Behind `approval.answered`."""
    asked = next((each for each in permits.pending if each.id == event.id), None)
    if asked is not None and event.scope == "session":
        effect = "allow" if event.answer == "allow" else "deny"
        new = granted(effect, asked.tool, asked.about, asked.subjects)
        kept = tuple(rule for rule in permits.grants if rule not in new)
        permits = replace(permits, grants=(*new, *kept)[:GRANTS_MAX])
    return _settled(permits, event.id, f"{event.answer} by {event.by}")


def expired(permits: Permits, event: ApprovalExpired) -> Permits:
    """Behind `approval.expired`."""
    words = "nobody answered in time" if event.cause == "deadline" else "its turn was cut off"
    return _settled(permits, event.id, f"denied: {words}")


def extended(permits: Permits, until_ms: int) -> Permits:
    """The hold's deadline was moved later, and with it those of all questions."""
    return replace(
        permits,
        pending=tuple(replace(each, until_ms=max(each.until_ms, until_ms)) for each in permits.pending),
    )


def _settled(permits: Permits, approval: str, words: str) -> Permits:
    settled = {**permits.settled, approval: words}
    while len(settled) > SETTLED_MAX:
        del settled[next(iter(settled))]
    pending = tuple(each for each in permits.pending if each.id != approval)
    return replace(permits, pending=pending, settled=settled)
