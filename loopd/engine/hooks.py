"""Webhooks as they are kept: commands about them, and how far each of them is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec

from loopd.core.access import Answer, Caller
from loopd.core.webhook import DeadLetter, Webhook
from loopd.core.writes import HouseRow
from loopd.engine.keyed import Keyed
from loopd.engine.reach import Reaches
from loopd.engine.router import Router
from loopd_protocol import access_commands as ac
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.access_events import (
    WebhookCreated,
    WebhookDeadLetter,
    WebhookDeleted,
    WebhookFailing,
    WebhookGap,
    WebhookRecovered,
)
from loopd_protocol.errors import Refused

WEBHOOKS_MAX = 100
DEAD_MAX = 10_000
"""Dead letters that are kept of one webhook; the oldest is forgotten."""
DEAD_SHOWN = 100


class WebhookDesk:
    """All webhooks, in memory and in the store; matches the port of `loopd.webhooks`."""

    def __init__(self, router: Router, reaches: Reaches, new_secret: Callable[[], str]) -> None:
        self._router = router
        self._reaches = reaches
        self._new_secret = new_secret
        self._known: dict[str, Webhook] = {}
        self._dead: dict[str, dict[int, DeadLetter]] = {}
        self._changed = anyio.Event()
        self._leaving: dict[str, anyio.Event] = {}
        self._hurries: dict[str, anyio.Event] = {}

    async def load(self) -> None:
        """Read them from the store."""
        rows = await self._router.store.house("webhook")
        self._known = {name: msgspec.json.decode(body, type=Webhook) for name, body in rows.items()}
        for body in (await self._router.store.house("dead_letter")).values():
            letter = msgspec.json.decode(body, type=DeadLetter)
            self._dead.setdefault(letter.webhook, {})[letter.seq] = letter

    # -- commands ---------------------------------------------------------------------------------

    async def carry_out(self, command: cm.Command, caller: Caller, keyed: Keyed | None) -> Answer | None:
        """Carry out one command, or None when it is not one of these."""
        match command:
            case ac.WebhookCreate():
                return await self._create(command, caller, keyed)
            case ac.WebhookList():
                listed = [self._view(hook) for _, hook in sorted(self._known.items())]
                return Answer(seq=self._router.store.head, result={"webhooks": listed})
            case ac.WebhookDelete():
                return await self._delete(command, caller, keyed)
            case ac.WebhookRetry():
                return await self._retry(command)
        return None

    async def _create(self, command: ac.WebhookCreate, caller: Caller, keyed: Keyed | None) -> Answer:
        head = self._router.store.head
        if command.name in self._known:
            raise Refused("already_exists", f"a webhook is called {command.name!r}", path="$.name")
        if len(self._known) >= WEBHOOKS_MAX:
            raise Refused("overloaded", f"{WEBHOOKS_MAX} webhooks exist; delete one first")
        after = head if command.after is None else command.after
        if after > head:
            raise Refused("invalid", f"after is {after}; the log ends with {head}", path="$.after")
        if command.content and "read.content" not in caller.scopes:
            raise Refused("forbidden", f"content needs scope 'read.content'; {caller.principal} lacks it")
        hook = Webhook(
            name=command.name,
            url=command.url,
            secret=command.secret or self._new_secret(),
            kinds=command.kinds,
            labels=dict(command.labels),
            format=command.format,
            content=command.content,
            timeout_ms=command.timeout_ms,
            give_up_ms=command.give_up_ms,
            created_ms=self._router.clock.now_ms(),
            by=caller.principal,
            cursor=after,
        )
        event = WebhookCreated(
            name=hook.name,
            origin=_origin(hook.url),
            format=hook.format,
            after=after,
            kinds=hook.kinds,
            labels=hook.labels,
            content=hook.content,
            by=caller.principal,
        )
        result = self._view(hook)
        appended = await self._router.tell(
            (event,),
            principal=caller.principal,
            idempotency=None if keyed is None else keyed.stored(result),
            house=(_row(hook),),
        )
        self._known[hook.name] = hook
        self._tell_change()
        shown = {"secret": hook.secret} if command.secret is None else {}
        return Answer(seq=appended.last, result={**result, **shown, "seq": appended.last})

    async def _delete(self, command: ac.WebhookDelete, caller: Caller, keyed: Keyed | None) -> Answer:
        hook = self._find(command.name)
        result = {"name": hook.name}
        letters = tuple(
            _gone("dead_letter", _letter_id(hook.name, seq)) for seq in self._dead.get(hook.name, ())
        )
        decided = self._leaving[hook.name] = anyio.Event()
        try:
            appended = await self._router.tell(
                (WebhookDeleted(name=hook.name, by=caller.principal),),
                principal=caller.principal,
                idempotency=None if keyed is None else keyed.stored(result),
                house=(_gone("webhook", hook.name), *letters),
            )
            self._known.pop(hook.name, None)
            self._dead.pop(hook.name, None)
        finally:
            del self._leaving[hook.name]
            decided.set()
        self._tell_change()
        return Answer(seq=appended.last, result={**result, "seq": appended.last})

    async def _retry(self, command: ac.WebhookRetry) -> Answer:
        hook = self._find(command.name)
        again: dict[str, Any] = {}
        rows: tuple[HouseRow, ...] = ()
        if command.dead and (letters := self._dead.get(hook.name)):
            # From the oldest on: also what came after it is sent again, in order, with the ids it had.
            again = {"cursor": min(letters) - 1, "rewinds": hook.rewinds + 1}
            rows = tuple(_gone("dead_letter", _letter_id(hook.name, seq)) for seq in letters)
        moved = msgspec.structs.replace(hook, tries=0, since_ms=0, next_ms=None, **again)
        await self._keep(moved, *rows)
        if again:
            self._dead.pop(hook.name, None)
        self._hurries.pop(hook.name, anyio.Event()).set()
        return Answer(seq=self._router.store.head, result=self._view(moved))

    def _find(self, name: str) -> Webhook:
        hook = self._known.get(name)
        if hook is None or name in self._leaving:
            raise Refused("not_found", f"no webhook {name!r}; `loopctl webhook list`", path="$.name")
        return hook

    def _view(self, hook: Webhook) -> dict[str, Any]:
        letters = self._dead.get(hook.name, {})
        return {
            "name": hook.name,
            "origin": _origin(hook.url),
            "format": hook.format,
            "kinds": list(hook.kinds),
            "labels": hook.labels,
            "content": hook.content,
            "cursor": hook.cursor,
            "lag": max(0, self._router.store.head - hook.cursor),
            "delivered": hook.delivered,
            "state": "failing" if hook.tries else "well",
            "tries": hook.tries,
            "error": hook.error,
            "next_ms": hook.next_ms,
            "last_ok_ms": hook.last_ok_ms,
            "dead_count": len(letters),
            "dead": [
                {"seq": letter.seq, "at_ms": letter.at_ms, "tries": letter.tries, "error": letter.error}
                for _, letter in sorted(letters.items())[-DEAD_SHOWN:]
            ],
            "created_ms": hook.created_ms,
            "by": hook.by,
        }

    # -- for deliveries -----------------------------------------------------------------------------

    def names(self) -> frozenset[str]:
        """All webhooks."""
        return frozenset(self._known)

    def get(self, name: str) -> Webhook | None:
        """A webhook as it stands, None when it is gone."""
        return self._known.get(name)

    def reaches(self, hook: Webhook, sid: str | None) -> bool:
        """Whether events of this session go there at all."""
        return not hook.labels or (sid is not None and self._reaches.sees(sid, hook.labels))

    def session_name(self, sid: str) -> str | None:
        """Name of a session."""
        row = self._router.rows.get(sid)
        return None if row is None else row.name

    async def changed(self, known: frozenset[str]) -> None:
        """Return when there are other webhooks than these."""
        while self.names() == known:
            await self._changed.wait()

    async def hurry(self, name: str) -> None:
        """Return when somebody wants this one tried now."""
        await self._hurries.setdefault(name, anyio.Event()).wait()

    async def passed(self, name: str, seq: int, *, rewinds: int) -> None:
        """Everything up to `seq` was delivered or is not wanted; see `delivered` for `rewinds`."""
        hook = self._known.get(name)
        if hook is not None and hook.rewinds == rewinds:
            await self._keep(msgspec.structs.replace(hook, cursor=max(hook.cursor, seq)))

    async def delivered(self, name: str, seq: int, now: int, *, rewinds: int) -> None:
        """The sink took event `seq`; tells when it had been failing.

        `rewinds` is what the webhook had when the event was chosen: one that was set back meanwhile stays where
        it was set.
        """
        hook = self._known.get(name)
        if hook is None:
            return
        well = msgspec.structs.replace(
            hook,
            cursor=seq if hook.rewinds == rewinds else hook.cursor,
            tries=0,
            since_ms=0,
            next_ms=None,
            error="",
            last_ok_ms=now,
            delivered=hook.delivered + 1,
        )
        events: tuple[ev.Event, ...] = ()
        if hook.tries:
            events = (WebhookRecovered(name=name, tries=hook.tries, down_ms=max(0, now - hook.since_ms)),)
        await self._keep(well, events=events)

    async def failed(self, name: str, seq: int, error: str, now: int, next_ms: int) -> None:
        """It did not; it is tried again at `next_ms`. Tells the first time."""
        hook = self._known.get(name)
        if hook is None:
            return
        events: tuple[ev.Event, ...] = ()
        if not hook.tries:
            events = (WebhookFailing(name=name, seq=seq, error=error[:4_000]),)
        failing = msgspec.structs.replace(
            hook, tries=hook.tries + 1, since_ms=hook.since_ms or now, next_ms=next_ms, error=error
        )
        await self._keep(failing, events=events)

    async def dead(self, name: str, seq: int, error: str, now: int, *, rewinds: int) -> None:
        """It refused event `seq` for good: the event is set aside, unless it comes again anyway."""
        hook = self._known.get(name)
        if hook is None or hook.rewinds != rewinds:
            return
        letter = DeadLetter(webhook=name, seq=seq, at_ms=now, tries=hook.tries, error=error)
        letters = self._dead.setdefault(name, {})
        letters[seq] = letter
        rows = [HouseRow(kind="dead_letter", id=_letter_id(name, seq), body=msgspec.json.encode(letter))]
        if len(letters) > DEAD_MAX:
            oldest = min(letters)
            del letters[oldest]
            rows.append(_gone("dead_letter", _letter_id(name, oldest)))
        well = msgspec.structs.replace(hook, cursor=seq, tries=0, since_ms=0, next_ms=None)
        await self._keep(well, *rows, events=(WebhookDeadLetter(name=name, seq=seq, error=error[:4_000]),))

    async def missed(self, name: str, first: int, last: int, *, rewinds: int) -> None:
        """Events `first` to `last` are not stored any more: said once, with the cursor that goes past them."""
        hook = self._known.get(name)
        if hook is None or hook.rewinds != rewinds:
            return
        past = msgspec.structs.replace(hook, cursor=max(hook.cursor, last))
        await self._keep(past, events=(WebhookGap(name=name, first=first, last=last),))

    async def _keep(self, hook: Webhook, *rows: HouseRow, events: tuple[ev.Event, ...] = ()) -> None:
        while (leaving := self._leaving.get(hook.name)) is not None:
            await (
                leaving.wait()
            )  # a row that is written behind its deletion would come back at the next start
        before = self._known.get(hook.name)
        if before is None:
            return
        self._known[hook.name] = hook  # at once: what is decided while this is written builds on it
        try:
            await self._router.tell(events, principal="daemon", house=(_row(hook), *rows))
        except Refused:
            if self._known.get(hook.name) is hook:
                self._known[hook.name] = before
            raise

    def _tell_change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


def _row(hook: Webhook) -> HouseRow:
    return HouseRow(kind="webhook", id=hook.name, body=msgspec.json.encode(hook))


def _gone(kind: str, name: str) -> HouseRow:
    return HouseRow(kind=kind, id=name, body=None)


def _letter_id(name: str, seq: int) -> str:
    return f"{name}:{seq:016}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"[:200]
