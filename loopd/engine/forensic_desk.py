"""Carries out commands that explain and hand on what happened, and answers for imported sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from loopd.core.access import Answer, Caller
from loopd.core.comparison import compared
from loopd.core.redactor import Redactor
from loopd.core.settings import settings_of
from loopd.core.state import Session
from loopd.core.writes import Idempotency
from loopd.engine import copies
from loopd.engine.creation import create
from loopd.engine.forensic_ports import Archivist, Entry, ForensicStore, ImportShelf
from loopd.engine.forking import origin_of
from loopd.engine.imported import Reader
from loopd.engine.keyed import Keyed
from loopd.engine.queries import Queries
from loopd.engine.router import Router
from loopd.engine.views import session_view
from loopd_protocol import commands as cm
from loopd_protocol import forensic_commands as fc
from loopd_protocol.errors import Refused
from loopd_protocol.forensic_events import ExportMade, ImportDropped, SessionImported

Result = dict[str, Any]
MakeRedactor = Callable[[str], Redactor]

WORKSPACE_NOTE = (
    "Files are not turned back: the workspace is as it is now, and parent and fork share it unless the fork "
    "has one of its own."
)


class ForensicDesk:
    """Replay, looks into the past, forks, comparisons, anchors, export, import."""

    def __init__(
        self,
        router: Router,
        queries: Queries,
        store: ForensicStore,
        *,
        archivist: Archivist,
        shelf: ImportShelf,
        spool: copies.Spool,
        redactor: MakeRedactor,
    ) -> None:
        self._router = router
        self._queries = queries
        self._store = store
        self._archivist = archivist
        self._shelf = shelf
        self._spool = spool
        self._redactor = redactor
        self._reader = Reader(router, shelf)
        self._shelving = anyio.Lock()

    async def carry_out(self, command: cm.Command, caller: Caller, keyed: Keyed | None) -> Answer | None:
        """Carry out one command, or None when it is not one of these."""
        entry = self._imported(command)
        if entry is not None:
            return await self._of_imported(entry, command, caller, keyed)
        match command:
            case cm.SessionGet() if command.at is not None or command.at_ms is not None:
                return self._told(await self._at(self._store, self._router.resolve(command.sid), command))
            case cm.Verify():
                whose = None if command.sid is None else self._router.resolve(command.sid)
                proof = await self._store.verify(
                    sid=whose, suspended_since=command.suspended_since, given=command.anchors or None
                )
                return self._told(proof)
            case cm.SessionList():
                answer = await self._queries.answer(command)
                return msgspec.structs.replace(answer, result=self._with_imported(command, answer.result))
            case fc.SessionReplay():
                sid = self._router.resolve(command.sid)
                return self._told(await self._replay(self._store, sid, command))
            case fc.SessionFork():
                parent = await self._router.state_of(command.sid)
                return await self._fork(self._store, parent, command, caller, keyed)
            case fc.TurnDiff():
                return self._told(await self._diff(command))
            case fc.AnchorList():
                listed = await self._store.anchors(after=command.after, limit=command.limit)
                keys = [{"key": name, "public": raw.hex()} for name, raw in self._store.keys.items()]
                return self._told({"anchors": listed, "keys": keys})
            case fc.ExportOpen() | fc.ExportRead() | fc.ExportClose():
                return self._told(await self._export(command, caller))
            case fc.ImportOpen() | fc.ImportWrite() | fc.ImportFinish() | fc.ImportDrop():
                return self._told(await self._import(command, caller))
        return None

    def _told(self, result: Result) -> Answer:
        return Answer(seq=self._store.head, result=result)

    # -- imported sessions --------------------------------------------------------------------------

    def _imported(self, command: cm.Command) -> Entry | None:
        """The imported session that a command names; a session of this log with the same name comes first."""
        ref = getattr(command, "sid", None)
        if not isinstance(ref, str) or isinstance(command, fc.TurnDiff):
            return None
        entry = self._shelf.find(ref)
        if entry is None or ref == entry.sid:
            return entry
        try:
            self._router.resolve(ref)
        except Refused:
            return entry
        return None

    async def _of_imported(
        self, entry: Entry, command: cm.Command, caller: Caller, keyed: Keyed | None
    ) -> Answer:
        match command:
            case cm.SessionGet() if command.at is not None or command.at_ms is not None:
                return self._told(await self._at(await self._shelf.store_of(entry), entry.sid, command))
            case cm.Verify():
                proof = await self._shelf.verify(
                    entry, suspended_since=command.suspended_since, given=command.anchors or None
                )
                return self._told(proof)
            case fc.SessionReplay():
                if entry.redaction != "none":
                    return self._told(_not_whole(entry))
                return self._told(await self._replay(await self._shelf.store_of(entry), entry.sid, command))
            case fc.SessionFork():
                store = await self._shelf.store_of(entry)
                parent = await store.load_session(entry.sid)
                assert parent is not None
                return await self._fork(store, parent, command, caller, keyed)
            case fc.ImportDrop():
                async with self._shelving:
                    await self._shelf.drop(entry)
                    dropped = ImportDropped(sid=entry.sid, by=caller.principal)
                    seq = (await self._router.say(dropped, principal=caller.principal)).last
                return Answer(seq=seq, result={"sid": entry.sid, "dropped": True, "seq": seq})
        return self._told(await self._reader.answer(entry, command))

    def _with_imported(self, command: cm.SessionList, result: Result) -> Result:
        selector = command.selector
        if result.get("next") is not None or command.after is not None or selector.labels:
            return result
        chosen = [
            entry
            for entry in self._shelf.entries.values()
            if not selector.sids or entry.sid in selector.sids or entry.name in selector.sids
        ]
        if not chosen:
            return result
        views = [self._reader.listed(entry) for entry in sorted(chosen, key=lambda entry: entry.at_ms)]
        return {**result, "sessions": [*result["sessions"], *views]}

    # -- the past -----------------------------------------------------------------------------------

    async def _at(self, store: ForensicStore, sid: str, command: cm.SessionGet) -> Result:
        session, at = await store.state_at(sid, seq=command.at, at_ms=command.at_ms)
        return {**session_view(session), "at": at}

    async def _replay(self, store: ForensicStore, sid: str, command: fc.SessionReplay) -> Result:
        if command.set:
            session = await store.load_session(sid)
            assert session is not None
            settings_of(session.preset, {**session.overrides, **command.set})  # a typing error must not pass
        return await store.replay(sid, command.set)

    async def _diff(self, command: fc.TurnDiff) -> Result:
        first = await self._seen(command.sid, command.n, command.step)
        other = command.sid if command.other_sid is None else command.other_sid
        second = await self._seen(other, command.other_n, command.other_step)
        ops = compared(first["messages"], second["messages"])
        return {
            "a": {name: first[name] for name in ("sid", "n", "step", "request_sha256", "count", "missing")},
            "b": {name: second[name] for name in ("sid", "n", "step", "request_sha256", "count", "missing")},
            "ops": ops,
            "same": all(op["op"] == "same" for op in ops),
        }

    async def _seen(self, ref: str, n: int, step: int) -> Result:
        asked = cm.TurnGet(sid=ref, n=n, prompt=True, step=step)
        entry = self._imported(asked)
        if entry is not None:
            view = await self._reader.answer(entry, asked)
        else:
            view = (await self._queries.answer(asked)).result
        prompt = view["prompt"]
        return {
            "sid": view["sid"],
            "n": view["n"],
            "step": step,
            "messages": prompt["messages"],
            "count": len(prompt["messages"]),
            "request_sha256": prompt.get("recorded_sha256") or prompt.get("request_sha256"),
            "missing": prompt.get("missing") or [],
        }

    # -- forks --------------------------------------------------------------------------------------

    async def _fork(
        self,
        store: ForensicStore,
        parent: Session,
        command: fc.SessionFork,
        caller: Caller,
        keyed: Keyed | None,
    ) -> Answer:
        if self._router.draining:
            raise Refused(
                "draining", "the daemon is about to stop; nothing was accepted", retry_after_ms=5_000
            )
        origin = await origin_of(store, parent, command.n)
        then = origin.state
        if not then.driver:
            raise Refused(
                "conflict", f"the driver of {parent.name!r} was redacted; nothing could run a fork of it"
            )
        goal = command.goal
        if goal is None and then.goal is not None and then.goal.status == "active":
            goal = then.goal.text
        workspace = command.workspace if command.workspace is not None else then.workspace
        told: Result = {
            "parent": {"sid": parent.sid, "name": parent.name, "n": origin.event.n, "seq": origin.event.seq},
            "workspace": workspace,
            "note": WORKSPACE_NOTE,
        }

        def describe(sid: str, name: str) -> Idempotency | None:
            return None if keyed is None else keyed.stored({"sid": sid, "name": name, **told})

        loop, pending = await create(
            self._router,
            name=command.name,
            driver=then.driver,
            goal=goal or None,
            workspace=workspace,
            labels=then.labels if command.labels is None else command.labels,
            preset=then.preset,
            overrides={**then.overrides, **command.set},
            principal=caller.principal,
            answer=describe,
            policy=then.permits.rules,
            budgets=then.account.limits,
            parent=self._living(then.account.parent),
            origin=origin,
            suspended=command.suspended,
        )
        assert pending.appended is not None
        seq = pending.appended.last
        result = {"sid": loop.session.sid, "name": loop.session.name, **told, "seq": seq}
        return Answer(seq=seq, rev=loop.session.ss, result=result)

    def _living(self, sid: str | None) -> str | None:
        """A parent that still lives: a fork spends what the forked session would have spent."""
        row = None if sid is None else self._router.rows.get(sid)
        return None if row is None or row.status != "live" else row.sid

    # -- out and in -----------------------------------------------------------------------------------

    async def _export(self, command: cm.Command, caller: Caller) -> Result:
        match command:
            case fc.ExportOpen():
                return await self._open_export(command, caller)
            case fc.ExportRead():
                place = self._spool.find(command.id, caller.principal, incoming=False)
                data, following = await anyio.to_thread.run_sync(copies.piece_of, place, command.offset)
                return {"data": data, "next": following}
            case fc.ExportClose():
                self._spool.end(self._spool.find(command.id, caller.principal, incoming=False))
                return {"id": command.id, "closed": True}
        raise Refused("unknown_type", f"no handler for {command.type!r}")

    async def _open_export(self, command: fc.ExportOpen, caller: Caller) -> Result:
        sid = None if command.sid is None else self._router.resolve(command.sid)
        if command.since is not None and command.until is not None and command.since >= command.until:
            raise Refused(
                "invalid", f"since {command.since} is not before until {command.until}", path="$.since"
            )
        place = self._spool.begin(caller.principal)
        try:
            manifest = await self._archivist.export(
                sid,
                place.path,
                self._redactor(command.redact),
                since=command.since,
                until=command.until,
                links=command.links,
            )
            digest, size = await anyio.to_thread.run_sync(_digest, place)
        except BaseException:
            self._spool.end(place)
            raise
        made = ExportMade(
            sid=sid,
            first_seq=manifest["range"]["first"],
            last_seq=manifest["range"]["last"],
            events=manifest["counts"]["events"],
            redaction=command.redact,
            sha256=digest,
            by=caller.principal,
        )
        seq = (await self._router.say(made, principal=caller.principal)).last
        shown = {name: value for name, value in manifest.items() if name != "files"}
        return {"id": place.id, "bytes": size, "sha256": digest, "manifest": shown, "seq": seq}

    async def _import(self, command: cm.Command, caller: Caller) -> Result:
        match command:
            case fc.ImportOpen():
                place = self._spool.begin(
                    caller.principal, incoming=True, size=command.bytes, sha256=command.sha256
                )
                return {"id": place.id, "chunk": fc.CHUNK_BYTES}
            case fc.ImportWrite():
                place = self._spool.find(command.id, caller.principal, incoming=True)
                following = await anyio.to_thread.run_sync(copies.append, place, command.offset, command.data)
                return {"id": place.id, "next": following}
            case fc.ImportFinish():
                place = self._spool.find(command.id, caller.principal, incoming=True)
                return await self._finish_import(place, caller)
            case fc.ImportDrop():
                raise Refused("not_found", f"no imported session {command.sid!r}", path="$.sid")
        raise Refused("unknown_type", f"no handler for {command.type!r}")

    async def _finish_import(self, place: copies.Place, caller: Caller) -> Result:
        try:
            await anyio.to_thread.run_sync(copies.whole, place)
            async with self._shelving:  # what is on the shelf and what the journal says of it go together
                entries, dup = await self._shelf.check_in(
                    place.path, by=caller.principal, now_ms=self._router.clock.now_ms(), taken=self._taken
                )
                seq = await self._tell_imported(entries, caller, dup=dup)
        finally:
            self._spool.end(place)
        return {"sessions": [self._reader.listed(entry) for entry in entries], "dup": dup, "seq": seq}

    async def _tell_imported(self, entries: Sequence[Entry], caller: Caller, *, dup: bool) -> int:
        """Journal which sessions are here. Of those that were here before it may be missing: the disk was full."""
        known = await self._store.imports() if dup else set[str]()
        seq = self._store.head
        for entry in entries:
            if entry.sid in known:
                continue
            event = SessionImported(
                sid=entry.sid,
                name=entry.name,
                log=entry.log,
                of=entry.of,
                first_seq=entry.first_seq,
                last_seq=entry.last_seq,
                events=entry.events,
                head_hash=entry.head_hash,
                redaction=entry.redaction,
                archive=entry.archive,
                by=entry.by,
            )
            seq = (await self._router.say(event, principal=caller.principal)).last
        return seq

    def _taken(self, name: str) -> bool:
        try:
            self._router.resolve(name)
        except Refused:
            return False
        return True


def _not_whole(entry: Entry) -> Result:
    why = f"it was exported with redaction {entry.redaction!r}: what was said is not all there, so nothing can be decided again"
    counts = dict.fromkeys(("events", "decisions", "facts", "verdicts", "last_seq"), 0)
    return {"sid": entry.sid, "status": "ended", "why": why, **counts}


def _digest(place: copies.Place) -> tuple[str, int]:
    import hashlib  # noqa: PLC0415

    found, size = hashlib.sha256(), 0
    with place.path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
            size += len(piece)
    return found.hexdigest(), size
