"""Approvals and budgets across sessions: lists, limits of labels, and what is left of everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from loopd.core import approvals
from loopd.core.access import Answer, Caller
from loopd.core.account import Purse, total_of, which
from loopd.core.budgets import purses_of
from loopd.core.inputs import House, Reconsidered
from loopd.core.settings import settings_for
from loopd.core.state import Session
from loopd.engine.keyed import Keyed
from loopd.engine.router import Router
from loopd.engine.treasury import limit_row
from loopd_protocol import commands as cm
from loopd_protocol import policy_commands as pc
from loopd_protocol.bounds import MAX_INT
from loopd_protocol.errors import Refused
from loopd_protocol.policy_events import BudgetChanged

WHICH_CHARS = 200
LISTED_MAX = 1_000
LOOKED_MAX = 10_000
"""Live sessions whose own limits are listed together, those that ran last first."""

Result = dict[str, Any]


class PolicyDesk:
    """Answers `approval.list` and `budget.get`, and carries out `budget.set` of a label."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def carry_out(self, command: cm.Command, caller: Caller, keyed: Keyed | None) -> Answer | None:
        """Carry out one command, or None when it is about one session alone."""
        head = self._router.store.head
        match command:
            case pc.ApprovalList():
                return Answer(seq=head, result=await self._approvals(command))
            case pc.BudgetGet():
                return Answer(seq=head, result=await self._budgets(command.sid, command.label))
            case pc.BudgetSet():
                if (command.sid is None) == (command.label is None):
                    raise Refused("invalid", "expected exactly one of sid and label")
                if command.label is not None:
                    return await self._limit_label(command, command.label, caller, keyed)
        return None

    # -- approvals ----------------------------------------------------------------------------

    async def _approvals(self, command: pc.ApprovalList) -> Result:
        router = self._router
        if command.sid is not None:
            sids = [router.resolve(command.sid)]
        else:
            waiting = [row for row in router.rows.values() if "AwaitingApproval" in row.holds]
            sids = [row.sid for row in sorted(waiting, key=lambda row: row.until_ms or MAX_INT)][:LISTED_MAX]
        found = [
            view for session in (await router.states_of(sids)).values() for view in approval_views(session)
        ]
        return {"approvals": sorted(found, key=lambda view: (view["until_ms"], view["id"]))}

    # -- budgets ------------------------------------------------------------------------------

    async def _budgets(self, sid: str | None, label: str | None) -> Result:
        router, now = self._router, self._router.clock.now_ms()
        if sid is not None:
            session = await router.state_of(sid)
            return {"sid": session.sid, **session_budgets(router, session, now)}
        if label is not None:
            found = [purse_view(purse) for purse in router.treasury.of_label(label, now)]
            return {"label": label, "budgets": found}
        budgets = [
            purse_view(p) for each in router.treasury.labels() for p in router.treasury.of_label(each, now)
        ]
        live = [row for row in router.rows.values() if row.status == "live"]
        live.sort(key=lambda row: -row.last_turn_ms)
        limited = [row.sid for row in live[:LOOKED_MAX]]
        unpriced: dict[str, int] = {}
        for start in range(0, len(limited), LISTED_MAX):
            for session in (await router.states_of(limited[start : start + LISTED_MAX])).values():
                for model, tokens in session.account.unpriced.items():
                    unpriced[model] = unpriced.get(model, 0) + tokens
                if session.account.limits:
                    own = session_purses(router, session, now)
                    budgets += [
                        {**purse_view(purse), "sid": session.sid, "name": session.name}
                        for purse in own
                        if purse.scope == "session"
                    ]
        return {
            "budgets": budgets,
            "unpriced": unpriced,
            "currency": router.prices.currency,
            "more": len(live) > LOOKED_MAX,
        }

    async def share(self, session: Session, command: pc.BudgetSet) -> None:
        """A limit of a session was set: count what its children have spent of it already."""
        family = self._router.treasury.family(session.sid)
        if not family or command.limit is None:
            return
        router, key = self._router, (command.kind, command.per_ms)
        await router.treasury.fill(
            router.store,
            router.rows,
            router.clock.now_ms(),
            router.durable,
            trees=(session.sid,),
            only=key,
        )
        await router.reconsider_some([session.sid, *family], Reconsidered())

    async def _limit_label(
        self, command: pc.BudgetSet, label: str, caller: Caller, keyed: Keyed | None
    ) -> Answer:
        router, now = self._router, self._router.clock.now_ms()
        name = which(label, command.kind, command.per_ms)
        if len(name) > WHICH_CHARS:
            raise Refused(
                "invalid", f"{name!r} has {len(name)} characters; at most {WHICH_CHARS}", path="$.label"
            )
        standing = {purse.which for purse in router.treasury.of_label(label, now)}
        if command.limit is None and name not in standing:
            raise Refused("not_found", f"no limit {name!r}; see `loopctl budget`", path="$.label")
        event = BudgetChanged(
            what=command.kind,
            limit=command.limit,
            per_ms=command.per_ms,
            label=label,
            by=caller.principal,
            reason=command.reason,
        )
        result: Result = {"label": label, "which": name, "limit": command.limit}
        stored = None if keyed is None else keyed.stored(result)
        appended = await router.tell(
            (event,), principal=caller.principal, idempotency=stored, house=(limit_row(event),)
        )
        router.treasury.limit_label(event)
        if name not in standing:
            key = (command.kind, command.per_ms)
            await router.treasury.fill(
                router.store, router.rows, now, router.durable, labels=(label,), only=key
            )
        await router.reconsider_some(router.treasury.with_label(label, router.rows.values()), Reconsidered())
        budgets = [purse_view(purse) for purse in router.treasury.of_label(label, router.clock.now_ms())]
        return Answer(seq=appended.last, result={**result, "budgets": budgets, "seq": appended.last})


def approval_views(session: Session) -> list[Result]:
    """The open questions of a session."""
    found: list[Result] = [
        {
            "id": asked.id,
            "sid": session.sid,
            "name": session.name,
            "turn": asked.n,
            "tool": asked.tool,
            "tool_class": asked.tool_class,
            "excerpt": asked.excerpt,
            "rule": asked.rule,
            "reason": asked.reason,
            "about": asked.about,
            "subjects": list(asked.subjects),
            "asked_ms": asked.asked_ms,
            "until_ms": asked.until_ms,
        }
        for asked in session.permits.pending
    ]
    hold = approvals.parked(session)
    if hold is not None:
        found.append(
            {
                "id": approvals.steps_id(session),
                "sid": session.sid,
                "name": session.name,
                "turn": session.turns,
                "tool": "more_steps",
                "tool_class": "other",
                "excerpt": hold.reason,
                "rule": hold.by,
                "reason": "the session is parked at its step limit",
                "about": "session",
                "subjects": [],
                "asked_ms": hold.since_ms,
                "until_ms": hold.until_ms,
            }
        )
    return found


def session_purses(router: Router, session: Session, now: int) -> tuple[Purse, ...]:
    """All limits that bind a session."""
    house = House(
        settings=settings_for(session.preset, session.overrides), purses=router.treasury.purses(session, now)
    )
    return purses_of(session, house, now)


def session_budgets(router: Router, session: Session, now: int) -> Result:
    """What a session has spent, what it may spend, and what nobody knows the price of."""
    total = total_of(session)
    return {
        "budgets": [purse_view(purse) for purse in session_purses(router, session, now)],
        "spent": {
            "tokens": total.of("tokens"),
            "input_tokens": total.input,
            "output_tokens": total.output,
            "cost": total.cost,
            "wall": total.wall,
            "turns": total.turns,
        },
        "unpriced": session.account.unpriced,
        "parent": session.account.parent,
        "children": router.treasury.family(session.sid),
        "currency": router.prices.currency,
        "priced": bool(router.prices),
    }


def purse_view(purse: Purse) -> Result:
    """A limit and what is left of it."""
    return {
        "which": purse.which,
        "scope": purse.scope,
        "kind": purse.kind,
        "limit": purse.limit,
        "used": purse.used,
        "left": max(0, purse.limit - purse.used),
        "per_ms": purse.per_ms,
        "until_ms": purse.until_ms,
        "spent": purse.spent,
    }


def policy_view(session: Session) -> list[Result]:
    """Rules about tool calls, standing answers first."""
    rules: Iterable[Any] = session.permits.all_rules
    return [msgspec.to_builtins(rule) for rule in rules]
