"""A session comes into being: checked, named, durable, and only then told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from loopd.core.policy import check as check_policy
from loopd.core.settings import settings_of
from loopd.core.writes import Idempotency
from loopd.engine.forking import Origin
from loopd.engine.founding import founded
from loopd.engine.history import CONTEXT_BYTES, History
from loopd.engine.office import Pending
from loopd.engine.session_loop import SessionLoop
from loopd.engine.treasury import child_row, parent_of
from loopd_protocol import events as ev
from loopd_protocol.policy import BudgetLimit, PolicyRule

if TYPE_CHECKING:
    from loopd.engine.router import Router


async def create(
    router: Router,
    *,
    name: str | None,
    driver: dict[str, Any],
    goal: str | None,
    workspace: str | None,
    labels: dict[str, str],
    preset: str | None,
    overrides: Mapping[str, Any],
    principal: str,
    answer: Callable[[str, str], Idempotency | None],
    policy: tuple[PolicyRule, ...] = (),
    budgets: tuple[BudgetLimit, ...] = (),
    parent: str | None = None,
    origin: Origin | None = None,
    suspended: bool = False,
) -> tuple[SessionLoop, Pending]:
    """Create a session, durably; with `origin` it is a fork.

    Raises:
        Refused: `already_exists`, `invalid` settings or driver, `overloaded`, storage codes.
    """
    default_preset, default_overrides = router.defaults
    chosen = preset or default_preset
    merged = {**default_overrides, **overrides}
    settings_of(chosen, merged)
    check_policy(policy)
    above = None if parent is None else await parent_of(router, parent)
    num, sid, name = router.directory.reserve(name)
    try:
        probe = router.make_driver(sid, driver, workspace)
        await probe.aclose()
        now = router.clock.now_ms()
        created = ev.SessionCreated(
            sid=sid,
            num=num,
            name=name,
            driver=driver,
            preset=chosen,
            settings=merged,
            labels=labels,
            workspace=workspace,
            by=principal,
            policy=policy,
            budgets=budgets,
            parent=None if above is None else above.sid,
        )
        forked = None if origin is None else msgspec.structs.replace(origin.event, by=principal)
        first = founded(
            created, goal, now=now, closed_by=router.closed_by, forked=forked, suspended=suspended
        )
        history = History(context_bytes=int(driver.get("context_bytes") or CONTEXT_BYTES))
        loop = SessionLoop(router, first.session, history)
        router.host(loop)
        key = answer(sid, name)
        pending = loop.created(
            created,
            first,
            now=now,
            principal=principal,
            idempotency=key,
            house=() if above is None else (child_row(sid, above.sid),),
            blobs=None if origin is None else origin.blobs(),
        )
    except BaseException:
        router.directory.names.release(name, sid)
        raise
    if above is not None:
        router.treasury.adopt(sid, above, now)
    with anyio.CancelScope(shield=True):
        await pending.committed()
    return loop, pending
