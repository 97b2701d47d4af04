"""Carries out commands about tokens, and tells who did what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loopd.core.access import Answer, Caller
from loopd.core.writes import Appended, HouseRow, Idempotency
from loopd.engine.consumers import Consumers
from loopd.engine.hooks import WebhookDesk
from loopd.engine.keyed import Keyed
from loopd.engine.keyring import Key, Keyring
from loopd.engine.router import Router
from loopd_protocol import access_commands as ac
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.access_events import TokenCreated, TokenRevoked
from loopd_protocol.errors import Refused

_TOLD = (
    "cmd", "code", "cause", "status", "job", "kid", "name", "reason", "note", "mode", "id", "scopes", "origin", "by",
)  # fmt: skip
"""Members of a payload that an audit entry shows; none holds messages."""


class AccessDesk:
    """Tokens and the audit trail, with consumers and webhooks behind the same desk."""

    def __init__(
        self,
        router: Router,
        keyring: Keyring,
        *,
        consumers: Consumers | None = None,
        hooks: WebhookDesk | None = None,
    ) -> None:
        self._router = router
        self.keyring = keyring
        self.consumers = consumers or Consumers(router, keyring)
        self.hooks = hooks

    async def carry_out(self, command: cm.Command, caller: Caller, keyed: Keyed | None) -> Answer | None:
        """Carry out one command, or None when it is not one of these."""
        match command:
            case ac.TokenNew():
                return await self._new(command, caller, keyed)
            case ac.TokenList():
                return Answer(seq=self._router.store.head, result={"tokens": self._listed()})
            case ac.TokenRevoke():
                return await self._revoke(command, caller, keyed)
            case ac.TokenRotate():
                return await self._rotate(command, caller, keyed)
            case ac.Audit():
                return await self._audit(command)
        told = await self.consumers.carry_out(command, caller, keyed)
        if told is None and self.hooks is not None:
            told = await self.hooks.carry_out(command, caller, keyed)
        return told

    async def _new(self, command: ac.TokenNew, caller: Caller, keyed: Keyed | None) -> Answer:
        _within(command.scopes, command.labels, caller)
        token, key = self.keyring.make(
            scopes=command.scopes,
            source=command.source,
            labels=command.labels,
            note=command.note,
            expires_ms=command.expires_ms,
            by=caller.principal,
        )
        result = view(key)
        appended = await self._write(
            [_created(key)], [key], caller, None if keyed is None else keyed.stored(result)
        )
        self.keyring.keep(key)
        return Answer(seq=appended.last, result={**result, "token": token, "seq": appended.last})

    async def _revoke(self, command: ac.TokenRevoke, caller: Caller, keyed: Keyed | None) -> Answer:
        key = self.keyring.find(command.kid)
        now = self._router.clock.now_ms()
        gone = msgspec.structs.replace(key, revoked_ms=now)
        event = TokenRevoked(kid=key.kid, reason=command.reason, at_ms=now, by=caller.principal)
        result = {"kid": key.kid, "revoked_ms": now}
        # Worth nothing before it is durable: whoever holds it must not use the moment in between.
        self.keyring.keep(gone)
        try:
            appended = await self._write(
                [event], [gone], caller, None if keyed is None else keyed.stored(result)
            )
        except Refused:
            self.keyring.keep(key)
            raise
        return Answer(seq=appended.last, result={**result, "seq": appended.last})

    async def _rotate(self, command: ac.TokenRotate, caller: Caller, keyed: Keyed | None) -> Answer:
        old = self.keyring.find(command.kid)
        _within(old.scopes, old.labels, caller)
        now = self._router.clock.now_ms()
        token, key = self.keyring.make(
            scopes=old.scopes,
            source=old.source,
            labels=old.labels,
            note=old.note,
            expires_ms=old.expires_ms,
            by=caller.principal,
            replaces=old.kid,
        )
        gone = msgspec.structs.replace(old, revoked_ms=now + command.grace_ms)
        told = TokenRevoked(kid=old.kid, reason="rotated", at_ms=now + command.grace_ms, by=caller.principal)
        result = {**view(key), "old_ends_ms": now + command.grace_ms}
        appended = await self._write(
            [_created(key), told], [key, gone], caller, None if keyed is None else keyed.stored(result)
        )
        self.keyring.keep(key)
        if self.keyring.stands(old):  # else somebody revoked it meanwhile: that holds, and no grace does
            self.keyring.keep(gone)
        return Answer(seq=appended.last, result={**result, "token": token, "seq": appended.last})

    async def _write(
        self, events: list[ev.Event], keys: list[Key], caller: Caller, stored: Idempotency | None
    ) -> Appended:
        rows: tuple[HouseRow, ...] = tuple(key.row() for key in keys)
        return await self._router.tell(
            tuple(events), principal=caller.principal, idempotency=stored, house=rows
        )

    def _listed(self) -> list[dict[str, Any]]:
        return [
            {**view(key), "used_ms": used, "state": "in force" if worth else "ended"}
            for key, used, worth in self.keyring.listed()
        ]

    async def _audit(self, command: ac.Audit) -> Answer:
        sid = None if command.sid is None else self._router.resolve(command.sid)
        rows = await self._router.store.audit(
            principal=command.principal,
            sid=sid,
            denied=command.denied,
            after=command.after,
            limit=command.limit + 1,
        )
        entries = []
        for seq, whose, at_ms, kind, principal, body in rows[: command.limit]:
            told = msgspec.json.decode(body)
            shown = {name: told[name] for name in _TOLD if told.get(name) not in (None, "", principal)}
            entries.append(
                {"seq": seq, "at_ms": at_ms, "principal": principal, "sid": whose, "what": kind, "b": shown}
            )
        entries.reverse()
        return Answer(
            seq=self._router.store.head, result={"entries": entries, "more": len(rows) > command.limit}
        )


def view(key: Key) -> dict[str, Any]:
    """A token without what is secret."""
    return {
        "kid": key.kid,
        "scopes": list(key.scopes),
        "source": key.source,
        "labels": key.labels,
        "note": key.note,
        "created_ms": key.created_ms,
        "by": key.by,
        "expires_ms": key.expires_ms,
        "revoked_ms": key.revoked_ms,
        "replaces": key.replaces or None,
    }


def _created(key: Key) -> TokenCreated:
    return TokenCreated(
        kid=key.kid,
        scopes=key.scopes,
        labels=key.labels,
        expires_ms=key.expires_ms,
        note=key.note,
        replaces=key.replaces,
        by=key.by,
    )


def _within(scopes: tuple[str, ...], labels: Mapping[str, str], caller: Caller) -> None:
    """Nobody hands out more than they have."""
    more = sorted(set(scopes) - caller.scopes)
    if more:
        raise Refused(
            "forbidden", f"scopes {', '.join(more)}; {caller.principal} has them not and gives none on"
        )
    if any(labels.get(name) != value for name, value in caller.labels.items()):
        raise Refused("forbidden", f"{caller.principal} reaches fewer sessions than this token would")
