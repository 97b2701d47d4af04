"""Named, durable cursors: a program that comes back after a week goes on where it acknowledged last."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.core.access import Answer, Caller
from loopd.core.writes import HouseRow
from loopd.engine.keyed import Keyed
from loopd.engine.keyring import Keyring
from loopd.engine.router import Router
from loopd_protocol import access_commands as ac
from loopd_protocol import commands as cm
from loopd_protocol.access_events import ConsumerCreated, ConsumerDeleted
from loopd_protocol.errors import Refused

CONSUMERS_MAX = 1_000


class Consumer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named cursor; `seq` is the last event that is done with."""

    name: str
    owner: str
    log: str
    seq: int
    kinds: tuple[str, ...] = ()
    sids: tuple[str, ...] = ()
    created_ms: int = 0
    acked_ms: int = 0

    def row(self) -> HouseRow:
        """As the store keeps it."""
        return HouseRow(kind="consumer", id=self.name, body=msgspec.json.encode(self))


class Consumers:
    """Creates, moves, lists and forgets named cursors. They belong to the principal that made them."""

    def __init__(self, router: Router, keyring: Keyring) -> None:
        self._router = router
        self._keyring = keyring
        self._known: dict[str, Consumer] = {}
        self._leaving: set[str] = set()

    async def load(self) -> None:
        """Read them from the store."""
        rows = await self._router.store.house("consumer")
        log = self._router.store.cursor_log
        # The position of one that came with a copy of another log is one of this log too.
        self._known = {
            name: msgspec.structs.replace(msgspec.json.decode(body, type=Consumer), log=log)
            for name, body in rows.items()
        }

    async def carry_out(self, command: cm.Command, caller: Caller, keyed: Keyed | None) -> Answer | None:
        """Carry out one command, or None when it is not one of these."""
        match command:
            case ac.ConsumerCreate():
                return await self._create(command, caller, keyed)
            case ac.ConsumerAck():
                return await self._ack(command, caller)
            case ac.ConsumerList():
                head = self._router.store.head
                listed = [
                    self._view(c)
                    for c in sorted(self._known.values(), key=lambda c: c.name)
                    if self._may(caller, c)
                ]
                return Answer(seq=head, result={"consumers": listed})
            case ac.ConsumerDelete():
                return await self._delete(command, caller, keyed)
        return None

    async def _create(self, command: ac.ConsumerCreate, caller: Caller, keyed: Keyed | None) -> Answer:
        store = self._router.store
        sids = tuple(self._router.resolve(ref) for ref in command.sids)
        known = self._known.get(command.name)
        if known is not None:
            if self._may(caller, known) and (known.kinds, known.sids) == (command.kinds, sids):
                return Answer(seq=store.head, result=self._view(known), dup=True)
            raise Refused("already_exists", f"a consumer is called {command.name!r}", path="$.name")
        if len(self._known) >= CONSUMERS_MAX:
            raise Refused("overloaded", f"{CONSUMERS_MAX} consumers exist; delete one first")
        after = store.head if command.after is None else command.after
        if after > store.head:
            raise Refused("invalid", f"after is {after}; the log ends with {store.head}", path="$.after")
        now = self._router.clock.now_ms()
        made = Consumer(
            name=command.name,
            owner=caller.principal,
            log=store.cursor_log,
            seq=after,
            kinds=command.kinds,
            sids=sids,
            created_ms=now,
            acked_ms=now,
        )
        event = ConsumerCreated(
            name=made.name, after=after, kinds=made.kinds, sids=made.sids, by=caller.principal
        )
        stored = None if keyed is None else keyed.stored(self._view(made))
        appended = await self._router.tell(
            (event,), principal=caller.principal, idempotency=stored, house=(made.row(),)
        )
        self._known[made.name] = made
        return Answer(seq=appended.last, result={**self._view(made), "seq": appended.last})

    async def _ack(self, command: ac.ConsumerAck, caller: Caller) -> Answer:
        store = self._router.store
        known = self._own(command.name, caller)
        if (command.log or known.log) != store.cursor_log:
            raise Refused(
                "conflict", f"log {command.log or known.log!r}; this is {store.cursor_log!r}", path="$.log"
            )
        if command.seq > store.head:
            raise Refused("invalid", f"seq is {command.seq}; the log ends with {store.head}", path="$.seq")
        if command.seq < known.seq and not command.rewind:
            return Answer(seq=store.head, result=self._view(known), dup=True)  # an older ack that came late
        moved = msgspec.structs.replace(
            known, seq=command.seq, log=store.cursor_log, acked_ms=self._router.clock.now_ms()
        )
        # Moved at once: acks that overtake each other must not move it back. A crash gives the last ones again.
        self._known[moved.name] = moved
        try:
            await self._router.tell((), principal=caller.principal, house=(moved.row(),))
        except Refused:
            if self._known.get(known.name) is moved:
                self._known[known.name] = known
            raise
        return Answer(seq=store.head, result=self._view(moved))

    async def _delete(self, command: ac.ConsumerDelete, caller: Caller, keyed: Keyed | None) -> Answer:
        known = self._own(command.name, caller)
        result = {"name": known.name}
        self._leaving.add(known.name)  # an ack behind this would write it again
        try:
            appended = await self._router.tell(
                (ConsumerDeleted(name=known.name, by=caller.principal),),
                principal=caller.principal,
                idempotency=None if keyed is None else keyed.stored(result),
                house=(HouseRow(kind="consumer", id=known.name, body=None),),
            )
            self._known.pop(known.name, None)
        finally:
            self._leaving.discard(known.name)
        return Answer(seq=appended.last, result={**result, "seq": appended.last})

    def _own(self, name: str, caller: Caller) -> Consumer:
        known = self._known.get(name)
        if known is None or name in self._leaving or not self._may(caller, known):
            raise Refused("not_found", f"no consumer {name!r}; `loopctl consumer list`", path="$.name")
        return known

    def _may(self, caller: Caller, consumer: Consumer) -> bool:
        if consumer.owner == caller.principal or ("admin" in caller.scopes and not caller.labels):
            return True
        return caller.kid is not None and consumer.owner in {
            f"token:{kid}" for kid in self._keyring.ancestors(caller.kid)
        }

    def _view(self, consumer: Consumer) -> dict[str, Any]:
        return {
            "name": consumer.name,
            "owner": consumer.owner,
            "cursor": {"log": consumer.log, "seq": consumer.seq},
            "lag": max(0, self._router.store.head - consumer.seq),
            "kinds": list(consumer.kinds),
            "sids": list(consumer.sids),
            "created_ms": consumer.created_ms,
            "acked_ms": consumer.acked_ms,
        }
