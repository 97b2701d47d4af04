"""The dispatcher: one place where every command of every transport is carried out.

Authorise, look up the idempotency key, check preconditions, find the session, let the core decide,
answer when it is durable. Handlers of commands that only read are in `loopd.engine.queries`.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import msgspec

from loopd.core.access import Answer, Caller, authorize
from loopd.core.inputs import Advanced
from loopd.core.state import Session
from loopd.core.writes import Idempotency
from loopd.engine import agent_desk, batches
from loopd.engine.access_desk import AccessDesk
from loopd.engine.clearance import cleared
from loopd.engine.creation import create
from loopd.engine.denials import Denials
from loopd.engine.forensic_desk import ForensicDesk
from loopd.engine.hooks import WebhookDesk
from loopd.engine.keyed import Keyed
from loopd.engine.keyring import Keyring
from loopd.engine.lateness import on_time
from loopd.engine.policy_desk import PolicyDesk, session_budgets
from loopd.engine.queries import Queries
from loopd.engine.rates import Rates
from loopd.engine.reach import Reaches
from loopd.engine.router import Router
from loopd.engine.translation import Result, input_of, result_of
from loopd.engine.upkeep import Upkeep
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.access_commands import AgentAsk
from loopd_protocol.errors import Refused
from loopd_protocol.policy_commands import BudgetSet
from loopd_protocol.retention_commands import (
    DbSnapshot,
    DbStatus,
    RetentionHold,
    RetentionRelease,
    RetentionRun,
    RetentionStatus,
)

Stop = Callable[[str, int | None], None]
"""(`drain` or `stop`, budget in ms or None): ask the daemon to end; returns at once."""

MAKE_ROOM = frozenset({"daemon.freeze", "daemon.unfreeze", "daemon.drain", "daemon.stop", "retention.run"})
"""What is carried out on a full disk as well: it makes room, or ends what takes room."""

LEAVE = frozenset({"daemon.drain", "daemon.stop"})
"""What is carried out even when nothing can be written."""


class Conditions(msgspec.Struct, frozen=True):
    """Optional preconditions of a mutating command."""

    if_rev: int | None = None
    if_gate_gen: int | None = None
    if_turn: int | None = None

    def check(self, session: Session) -> None:
        """Compare with the session as it is.

        Raises:
            Refused: `precondition_failed` with both numbers.
        """
        turn = 0 if session.turn is None else session.turn.n
        for name, asked, found in (
            ("if_rev", self.if_rev, session.ss),
            ("if_gate_gen", self.if_gate_gen, session.gate.gen),
            ("if_turn", self.if_turn, turn),
        ):
            if asked is not None and asked != found:
                raise Refused(
                    "precondition_failed", f"{name} is {asked}; it is {found} now", path=f"$.{name}"
                )


class Dispatcher:
    """Carries out commands; matches the server's port.

    Attributes:
        keyring: tokens of people and programs.
        reaches: which sessions exist for whom.
        access: tokens and consumers; `open` reads them.
        hooks: webhooks; likewise.
        upkeep: answers the commands about size and age of the journal; set by who runs it.
        forensics: explains and hands on what happened; set by who runs it.
    """

    def __init__(
        self,
        router: Router,
        queries: Queries,
        stop: Stop,
        *,
        keyring: Keyring | None = None,
        rates: Rates | None = None,
        new_secret: Callable[[], str] = lambda: secrets.token_urlsafe(32),
    ) -> None:
        self.keyring = keyring or Keyring(router.clock)
        self.reaches = Reaches(router)
        self.hooks = WebhookDesk(router, self.reaches, new_secret)
        self.access = AccessDesk(router, self.keyring, hooks=self.hooks)
        self._policy = PolicyDesk(router)
        self._rates = rates or Rates(0, 1)
        self._router = router
        self._queries = queries
        self._stop = stop
        self._inflight: dict[tuple[str, str], asyncio.Future[Answer]] = {}
        self._freezing = 0
        self._denials = Denials()
        self.upkeep: Upkeep | None = None
        self.forensics: ForensicDesk | None = None

    async def open(self) -> None:
        """Read what the house keeps: tokens, consumers, webhooks."""
        await self.keyring.load(self._router.store)
        await self.access.consumers.load()
        await self.hooks.load()

    async def dispatch(
        self,
        command: cm.Command,
        caller: Caller,
        *,
        key: str | None = None,
        if_rev: int | None = None,
        if_gate_gen: int | None = None,
        if_turn: int | None = None,
    ) -> Answer:
        """Carry out one command.

        Raises:
            Refused: with a code of the registry; nothing was changed.
        """
        try:
            if caller.kid is not None or caller.session is not None:
                self._rates.take(caller.principal, self._router.clock.monotonic_ms())
            authorize(caller, command)
            command = self.reaches.narrow(command, caller)
        except Refused as refusal:
            if self._denials.worth_writing(caller.principal, self._router.clock.monotonic_ms()):
                denied = ev.CommandDenied(principal=caller.principal, cmd=command.type, code=refusal.code)
                await self._router.say(denied, principal=caller.principal)
            raise
        conditions = Conditions(if_rev, if_gate_gen, if_turn)
        mutating = command.type in cm.MUTATING or (isinstance(command, cm.Batch) and not command.dry_run)
        if key is None or not mutating:
            answer = await self._carry_out(command, caller, conditions, None)
        else:
            answer = await self._once(command, caller, conditions, key)
        return self._shown(command, answer, caller)

    def _shown(self, command: cm.Command, answer: Answer, caller: Caller) -> Answer:
        """The answer as far as this caller may see it."""
        result = self.reaches.prune(command, answer.result, caller)
        if "read.content" not in caller.scopes and caller.session is None:
            result = cleared(result)
        return answer if result is answer.result else msgspec.structs.replace(answer, result=result)

    async def _once(self, command: cm.Command, caller: Caller, conditions: Conditions, key: str) -> Answer:
        digest = hashlib.sha256(msgspec.json.encode(command, order="deterministic")).hexdigest()
        keyed = Keyed(caller.principal, key, digest)
        place = (caller.principal, key)
        while place in self._inflight:
            await asyncio.wait([self._inflight[place]])
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._inflight[place] = future
        try:
            known = await self._router.store.idempotent(caller.principal, key)
            if known is not None:
                command_sha256, result, seq = known
                if command_sha256 != digest:
                    raise Refused("idempotency_conflict", f"key {key!r} was used for another command")
                # its own `seq`, should it have been kept later
                stored = {"seq": seq, **msgspec.json.decode(result)}
                return Answer(seq=stored["seq"], result=stored, dup=True)
            return await self._carry_out(command, caller, conditions, keyed)
        finally:
            del self._inflight[place]
            future.cancel()

    async def _carry_out(
        self, command: cm.Command, caller: Caller, conditions: Conditions, keyed: Keyed | None
    ) -> Answer:
        unwritable = self._router.unwritable
        if unwritable is not None and command.type in cm.MUTATING and command.type not in LEAVE:
            raise Refused(unwritable.code, unwritable.message)
        if self._router.maintenance and command.type in cm.MUTATING and command.type not in MAKE_ROOM:
            raise Refused("storage_full", "the disk is full; nothing was stored", retry_after_ms=2_000)
        match command:
            case cm.SessionCreate():
                return await self._create(command, caller, keyed)
            case cm.Batch():
                return await batches.carry_out(self._router, command, keyed, partial(self._each, caller))
            case cm.DaemonFreeze() | cm.DaemonUnfreeze() | cm.DaemonDrain() | cm.DaemonStop():
                return await self._house(command, caller, keyed)
            case AgentAsk():
                return await agent_desk.ask(self._router, caller, command)
            case (
                RetentionStatus()
                | RetentionRun()
                | RetentionHold()
                | RetentionRelease()
                | DbStatus()
                | DbSnapshot()
            ) if self.upkeep is not None:
                return await self.upkeep.answer(command, caller, None if keyed is None else keyed.stored)
        for desk in (self.forensics, self.access, self._policy):
            told = None if desk is None else await desk.carry_out(command, caller, keyed)
            if told is not None:
                return told
        if command.type not in cm.MUTATING:
            return await self._queries.answer(command)
        if self._router.draining:
            raise Refused(
                "draining", "the daemon is about to stop; nothing was accepted", retry_after_ms=5_000
            )
        if isinstance(command, cm.Send) and command.dedupe is not None:
            return await self._send_once(command, caller, conditions, keyed)
        return await self._change(command, caller, conditions, keyed)

    def sees(self, caller: Caller) -> Callable[[str | None, str], bool] | None:
        """Which events `(sid, kind)` exist for this caller, or None for all."""
        return self.reaches.events(caller)

    async def snapshot(self, selector: Any, caller: Caller | None = None) -> tuple[int, list[Result]]:
        """The selected sessions and the `seq` that they include; see the server's port."""
        return await self._queries.snapshot(selector, {} if caller is None else caller.labels)

    # -- one session ------------------------------------------------------------------------

    async def _change(
        self, command: cm.Command, caller: Caller, conditions: Conditions, keyed: Keyed | None
    ) -> Answer:
        given = input_of(command, caller)
        loop = await on_time(self._router, command.sid, given)  # type: ignore[attr-defined]
        conditions.check(loop.session)
        before = loop.session
        result: Result = {}
        revives = isinstance(command, cm.SessionResume) and before.status != "live"

        def describe(advanced: Advanced) -> Idempotency | None:
            result.update(result_of(command, before, advanced))
            return None if keyed is None else keyed.stored(result)

        if revives:
            self._router.directory.revive(before)
        try:
            pending = loop.apply(given, principal=caller.principal, answer=describe)
            if not result:
                describe(pending.advanced)
            with anyio.CancelScope(shield=True):  # its key is in flight until the journal has it
                await pending.committed()
        except Refused:
            if revives:
                self._router.directory.names.release(before.name, before.sid)
            raise
        seq = self._router.store.head if pending.appended is None else pending.appended.last
        if keyed is not None and not pending.advanced.events:
            await self._router.keep(keyed.stored(result))  # else a retry would act later, after all
        if isinstance(command, BudgetSet):
            await self._policy.share(loop.session, command)
            now = self._router.clock.now_ms()
            result |= session_budgets(self._router, loop.session, now)
        if before.turn is not None and loop.session.turn is None:
            result["stopped"] = await loop.stopped()
        return Answer(seq=seq, rev=pending.advanced.session.ss, result={**result, "seq": seq})

    async def _send_once(
        self, command: cm.Send, caller: Caller, conditions: Conditions, keyed: Keyed | None
    ) -> Answer:
        """A sender's `dedupe` is a key of its own: per session, whoever sends and however often."""
        inner = msgspec.structs.replace(command, dedupe=None)
        sid = self._router.resolve(command.sid)
        owner = Caller(principal=f"dedupe:{sid}", scopes=caller.scopes, source=caller.source)
        place = (owner.principal, str(command.dedupe))
        while place in self._inflight:
            await asyncio.wait([self._inflight[place]])
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._inflight[place] = future
        try:
            known = await self._router.store.idempotent(*place)
            if known is not None:
                result = {**msgspec.json.decode(known[1]), "seq": known[2]}
                return Answer(seq=known[2], result=result, dup=True)
            digest = hashlib.sha256(msgspec.json.encode(inner, order="deterministic")).hexdigest()
            answer = await self._change(command, caller, conditions, Keyed(*place, digest))
            if keyed is not None:  # behind it: whoever asks again after a crash between them meets `dedupe`
                await self._router.keep(keyed.stored(answer.result))
            return answer
        finally:
            del self._inflight[place]
            future.cancel()

    # -- creating, many, all ------------------------------------------------------------------

    async def _create(self, command: cm.SessionCreate, caller: Caller, keyed: Keyed | None) -> Answer:
        if self._router.draining:
            raise Refused(
                "draining", "the daemon is about to stop; nothing was accepted", retry_after_ms=5_000
            )

        def describe(sid: str, name: str) -> Idempotency | None:
            return None if keyed is None else keyed.stored({"sid": sid, "name": name})

        loop, pending = await create(
            self._router,
            name=command.name,
            driver=msgspec.to_builtins(command.driver),
            goal=command.goal,
            workspace=command.workspace,
            labels=command.labels,
            preset=command.preset,
            overrides=command.set,
            principal=caller.principal,
            answer=describe,
            policy=command.policy,
            budgets=command.budgets,
            parent=command.parent,
        )
        assert pending.appended is not None
        seq = pending.appended.last
        result = {"sid": loop.session.sid, "name": loop.session.name, "seq": seq}
        return Answer(seq=seq, rev=loop.session.ss, result=result)

    async def _each(self, caller: Caller, command: cm.Command, key: str | None) -> Answer:
        """Carry out the part of a batch that one session is."""
        if key is None:
            return await self._carry_out(command, caller, Conditions(), None)
        return await self._once(command, caller, Conditions(), key)

    def _frozen(self) -> bool:
        """Whether the house is frozen: as the journal says, or because somebody is about to freeze it."""
        self._router.frozen = self._freezing > 0 or self._router.store.frozen is not None
        return self._router.frozen

    async def _house(self, command: cm.Command, caller: Caller, keyed: Keyed | None) -> Answer:
        router = self._router
        by = caller.principal
        interrupted = 0
        match command:
            case cm.DaemonFreeze():
                result: Result = {"frozen": True}
                stored = None if keyed is None else keyed.stored(result)
                frozen = ev.DaemonFrozen(by=by, reason=command.reason)
                # closed before it is durable: from here on nothing is admitted, whatever comes first
                router.frozen = True
                self._freezing += 1
                try:
                    seq = (await router.say(frozen, principal=by, idempotency=stored)).last
                finally:
                    self._freezing -= 1
                    if not self._frozen():  # it could not be written, or an `unfreeze` stands behind it
                        await router.reconsider()
                if command.interrupt:
                    interrupted = await router.cut_all("freeze", by=by)
                return Answer(seq=seq, result={**result, "interrupted": interrupted, "seq": seq})
            case cm.DaemonUnfreeze():
                result = {"frozen": False}
                stored = None if keyed is None else keyed.stored(result)
                if not router.frozen:
                    if stored is not None:
                        await router.keep(stored)
                    return Answer(seq=router.store.head, result=result)
                seq = (await router.say(ev.DaemonUnfrozen(by=by), principal=by, idempotency=stored)).last
                if not self._frozen():
                    await router.reconsider()
                return Answer(seq=seq, result={**result, "seq": seq})
            case _:
                router.draining = True
                drains = isinstance(command, cm.DaemonDrain)
                self._stop("drain" if drains else "stop", getattr(command, "budget_ms", 0))
                result = {"draining" if drains else "stopping": True, "running": len(router.running())}
                return Answer(seq=router.store.head, result=result)
