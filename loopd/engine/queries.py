"""Commands that only read: lists, reasons, history, what the model saw."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from loopd.core import schedule
from loopd.core.access import Answer
from loopd.core.compaction import applied, plan_of, shortened
from loopd.core.conversation import Message, TurnRequest
from loopd.core.writes import StoredEvent
from loopd.engine import reports
from loopd.engine.absence import deletion_of, missing_turn, said
from loopd.engine.frames import listed
from loopd.engine.history import messages_of, step_messages
from loopd.engine.loading import blob_names
from loopd.engine.manifest import Manifest, content_digest, rows_of, sha256
from loopd.engine.model_calls import calls_of
from loopd.engine.router import Router
from loopd.engine.selection import select
from loopd.engine.views import (
    cron_view,
    event_view,
    gate_view,
    row_view,
    session_view,
    waiting_view,
    why_view,
)
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.forensic_events import SessionForked

ANSWER_BYTES = 8 << 20
"""A page of history ends here, whatever its limit: an answer is built and sent in one piece."""

Result = dict[str, Any]
StatusSource = Callable[[], Result]
AgentSource = Callable[[], Awaitable[list[Result]]]


async def no_agents() -> list[Result]:
    """A house that hosts no agents."""
    return []


class Queries:
    """Answers from rows, loaded sessions and the journal; changes nothing.

    Attributes:
        altered: redaction changed what was said: a message is shown although its digest is not the one of then.
    """

    def __init__(self, router: Router, status: StatusSource, agents: AgentSource = no_agents) -> None:
        self.altered = False
        self._router = router
        self._store = router.store
        self._status = status
        self._agents = agents

    async def answer(self, command: cm.Command) -> Answer:
        """Carry out one reading command."""
        head = self._store.head
        match command:
            case cm.DaemonStatus():
                result = self._status()
            case cm.AgentsList():
                result = {"agents": await self._agents()}
            case cm.SessionList():
                result = await self._list(command)
            case cm.SessionGet():
                result = session_view(await self._router.state_of(command.sid))
            case cm.GateGet():
                session = await self._router.state_of(command.sid)
                result = {"sid": session.sid, **gate_view(session)}
            case cm.Why():
                session = await self._router.state_of(command.sid)
                result = why_view(session, self._router.closed_by)
                result["unwell"] = self._router.unwell.get(session.sid)
            case cm.InboxList():
                result = await self._inbox(command)
            case cm.CronList():
                result = await self._crons(command)
            case cm.CronNext():
                result = await self._cron_next(command)
            case cm.CronHistory():
                sid = self._router.resolve(command.sid)
                result = {"occurrences": await self._store.occurrences(sid, command.job, command.limit)}
            case cm.HistoryPage():
                result = await self._history(command)
            case cm.TurnGet():
                result = await self._turn(command)
            case cm.SessionReport():
                result = await reports.report(self._router, command)
            case cm.EffectList():
                whose = None if command.sid is None else self._router.resolve(command.sid)
                result = {"effects": await self._store.effects(whose, command.state, command.limit)}
            case cm.RecoveryGet():
                result = {"boots": await self._store.recoveries(command.limit)}
            case cm.Verify():
                whose = None if command.sid is None else self._router.resolve(command.sid)
                result = await self._store.verify(sid=whose, suspended_since=command.suspended_since)
            case _:
                raise Refused("unknown_type", f"no handler for {command.type!r}")
        return Answer(seq=head, result=result)

    async def snapshot(
        self, selector: Any, within: Mapping[str, str] | None = None
    ) -> tuple[int, list[Result]]:
        """Selected sessions with the labels `within`, and the `seq` up to which they include everything."""
        sids = tuple(getattr(selector, "sids", ()) or ())
        labels = dict(getattr(selector, "labels", {}) or {}) | dict(within or {})
        seq = self._store.head
        # The head moves a step of the loop before the rows do; after one step they include all up to it.
        await asyncio.sleep(0)
        rows = select(self._router, labels, sids, ended=bool(sids))
        return seq, [row_view(row) for row in rows]

    async def _list(self, command: cm.SessionList) -> Result:
        selector = command.selector
        rows = select(self._router, selector.labels, selector.sids, ended=selector.ended)
        match command.sort:
            case "name":
                rows.sort(key=lambda row: row.name)
            case "stagnation":
                rows.sort(key=lambda row: (-max(row.repeat_streak, row.barren_streak), row.progress_ms))
            case _:
                rows.sort(key=lambda row: row.num)
        names = [row.sid for row in rows]
        start = 0
        if command.after is not None:
            start = names.index(command.after) + 1 if command.after in names else len(names)
        page = rows[start : start + command.limit]
        paid = bool(self._router.prices)
        telling = [row.sid for row in page if row.holds or row.goal or row.running or (paid and row.tokens)]
        states = await self._router.states_of(telling)
        views = []
        for row in page:
            view = row_view(row)
            state = states.get(row.sid)
            if state is not None:
                full = session_view(state)
                kept = ("gate", "holds", "goal", "turn", "tokens", "cost_micro", "unpriced")
                view |= {key: full[key] for key in kept}
            else:
                view |= {"holds": [], "goal": None, "turn": None}
            views.append(view)
        more = start + command.limit < len(rows)
        return {"sessions": views, "next": page[-1].sid if more and page else None}

    async def _inbox(self, command: cm.InboxList) -> Result:
        session = await self._router.state_of(command.sid)
        kinds = tuple(hold.kind for hold in session.gate.holds)
        by = (*kinds, self._router.closed_by) if self._router.closed_by else kinds
        stored = await self._store.events_at(session.sid, [w.ss for w in session.inbox])
        texts = {event.ss: msgspec.json.decode(event.body).get("text", "") for event in stored}
        envelopes = [{**waiting_view(w, by), "text": texts.get(w.ss, "")} for w in session.inbox]
        return {"sid": session.sid, "envelopes": envelopes}

    async def _crons(self, command: cm.CronList) -> Result:
        if command.sid is not None:
            session = await self._router.state_of(command.sid)
            return {"jobs": [cron_view(session.sid, job) for job in session.crons]}
        return {"jobs": await self._store.cron_jobs()}

    async def _cron_next(self, command: cm.CronNext) -> Result:
        now = self._router.clock.now_ms()
        if command.expr is not None:
            return {"next": schedule.upcoming(command.expr, command.tz, now, command.count)}
        if command.sid is None or command.job is None:
            raise Refused("invalid", "expected either expr, or sid and job")
        session = await self._router.state_of(command.sid)
        job = next((j for j in session.crons if j.job == command.job), None)
        if job is None:
            raise Refused("not_found", f"session {session.name!r} has no cron job {command.job!r}")
        return {"next": [] if job.paused else schedule.upcoming(job.expr, job.tz, now, command.count)}

    async def _history(self, command: cm.HistoryPage) -> Result:
        sid = None if command.sid is None else self._router.resolve(command.sid)
        newest = command.after is None
        bounds: dict[str, Any] = {"after": command.after, "before": command.before}
        page = await self._store.page(
            sid=sid,
            limit=command.limit,
            kinds=command.kinds,
            newest=newest,
            max_bytes=ANSWER_BYTES,
            **bounds,
        )
        more: list[StoredEvent] = []
        if page:
            bounds |= {"before": page[0].seq} if newest else {"after": page[-1].seq}
            more = await self._store.page(sid=sid, limit=1, kinds=command.kinds, newest=newest, **bounds)
        return {"events": [event_view(event) for event in page], "more": bool(more)}

    # -- turns ------------------------------------------------------------------------------

    async def _turn(self, command: cm.TurnGet) -> Result:
        session = await self._router.state_of(command.sid)
        n = session.turns if command.n is None else command.n
        if not 1 <= n <= session.turns:
            raise Refused(
                "not_found", f"turn {n} of {session.name!r}; it has turns 1 to {session.turns}", path="$.n"
            )
        stored = await self._store.turn_events(session.sid, n)
        if not stored:
            origin = session.origin
            if origin is not None and n <= origin.n:
                parent = self._router.rows.get(origin.sid)
                raise Refused(
                    "not_found",
                    f"turn {n} of {session.name!r} was taken by {(parent.name if parent else origin.sid)!r}, from "
                    f"which it was forked behind turn {origin.n}; ask for turn {n} of that session",
                    path="$.n",
                )
            raise await missing_turn(self._store, session.name, n)
        view: Result = {"sid": session.sid, "n": n, "outcome": "running", "steps": [], "envelopes": []}
        for event in stored:
            body = msgspec.json.decode(event.body)
            match event.kind:
                case "turn.started":
                    view |= {"trigger": body["trigger"], "started_ms": event.at_ms}
                    view |= {"prompt_text": body.get("prompt"), "manifest": body.get("manifest")}
                    view |= {"seq": event.seq}
                case "turn.step":
                    view["steps"].append({"seq": event.seq, "at_ms": event.at_ms, **body})
                case "turn.completed":
                    view |= {
                        "outcome": body["outcome"],
                        "ended_ms": event.at_ms,
                        "error": body.get("error", ""),
                        "cause": body.get("cause", ""),
                    }
                case "turn.interrupted":
                    view |= {"outcome": "interrupted", "ended_ms": event.at_ms, "cause": body["cause"]}
                    view |= {name: body.get(name, "") for name in ("partial", "partial_blob")}
                case "envelope.accepted":
                    view["envelopes"].append({"seq": event.seq, **body})
                case "degeneration.detected" | "gate.changed":
                    view.setdefault("findings", []).append({"seq": event.seq, **body})
                case _:
                    pass
        deletion = await deletion_of(self._store, stored)
        if deletion is not None:
            view["deleted"] = deletion
            if command.prompt:
                raise Refused("not_found", said(deletion, f"the content of turn {n}"), path="$.n")
        if command.calls:
            view["calls"] = await calls_of(self._store, session.sid, n, view.get("seq", 0))
        if command.prompt:
            view["prompt"] = await self._prompt(session.sid, n, command.step, stored, view.get("manifest"))
        return view

    async def _prompt(
        self, sid: str, n: int, step: int, stored: list[StoredEvent], manifest_sha: str | None
    ) -> Result:
        """Rebuild what the model saw before step `step` of turn `n` from the manifest and the journal."""
        data = None if manifest_sha is None else await self._store.blob(manifest_sha)
        if data is None:
            raise Refused("not_found", f"the manifest of turn {n} is not stored any more")
        manifest = msgspec.json.decode(data, type=Manifest)
        messages, missing = await self._messages(sid, manifest)
        done = [e for e in stored if e.kind == "turn.step"]
        if not 1 <= step <= max(1, len(done) + 1):
            raise Refused("not_found", f"step {step} of turn {n}; the last one is {len(done)}", path="$.step")
        shown = await self._shown(sid, messages, stored, step)
        request = TurnRequest(
            sid=sid,
            n=n,
            trigger=ev.decode(next(e for e in stored if e.kind == "turn.started").body).trigger,  # type: ignore[attr-defined]
            messages=shown,
            workspace=(await self._router.state_of(sid)).workspace,
            tools_withheld=self._withheld(manifest, done, step),
            turns_seen=n - 1,
            tools=await self._offered(done, step),
        )
        rendered = await self._rendered(sid, request)
        recorded = ev.decode(done[step - 1].body).request_sha256 if step <= len(done) else None  # type: ignore[attr-defined]
        return {
            "step": step,
            "messages": [msgspec.to_builtins(m) for m in request.messages],
            "missing": missing,
            "request": None if rendered is None else rendered.decode("utf-8", "replace"),
            "request_sha256": None if rendered is None else sha256(rendered),
            "recorded_sha256": recorded,
            "frames": await self._frames(stored, done, step),
        }

    async def _frames(
        self, stored: list[StoredEvent], done: list[StoredEvent], step: int
    ) -> list[dict[str, str]] | None:
        """What passed between the driver and a hosted agent in that step; None for other drivers."""
        ends = [e for e in stored if e.kind in {"turn.completed", "turn.interrupted"}]
        holds = done[step - 1 : step] or ends
        digest = msgspec.json.decode(holds[0].body).get("frames") if holds else None
        data = None if digest is None else await self._store.blob(digest)
        return None if data is None else listed(data)

    @staticmethod
    def _withheld(manifest: Manifest, done: list[StoredEvent], step: int) -> bool:
        if step == 1:
            return manifest.tools_withheld
        if step <= len(done):
            return bool(msgspec.json.decode(done[step - 1].body).get("tools_withheld", False))
        return False

    async def _rendered(self, sid: str, request: TurnRequest) -> bytes | None:
        session = await self._router.state_of(sid)
        spec = {**session.driver, "api_key_env": None} if "api_key_env" in session.driver else session.driver
        try:
            driver = self._router.make_driver(sid, spec, session.workspace)
        except Refused:
            return None  # its script or workspace is gone; the messages are still shown
        try:
            return driver.render(request)
        finally:
            await driver.aclose()

    async def _messages(self, sid: str, manifest: Manifest) -> tuple[list[Message], list[int]]:
        rows = await rows_of(manifest, self._store.blob)
        if rows is None:
            raise Refused("not_found", f"a manifest that turn {manifest.n} builds on is not stored any more")
        numbers = sorted({row[0] for row in rows if row[0]})
        found: dict[tuple[int, str, str | None], Message] = {}
        by_digest: dict[str, Message] = {}  # a fork's one event holds many messages
        for stored in await self._store.events_at(sid, numbers):
            event = ev.decode(stored.body)
            for message in messages_of(event, stored.ss, await self._blobs(event)):
                found[message.ss, message.role, message.call_id] = message
                if isinstance(event, SessionForked):
                    by_digest[content_digest(message)] = message
        messages: list[Message] = []
        missing: list[int] = []
        for ss, role, source, ephemeral, digest, call_id in rows:
            if ss == 0:
                text = await self._store.blob(digest)
                messages.append(Message(ss=0, role="system", source=source, text=(text or b"").decode()))
                continue
            known = found.get((ss, role, call_id))
            if known is not None and content_digest(known) != digest:
                known = by_digest.get(digest) or _as_shown(known, digest, manifest.shortened)
            if known is None and self.altered:
                known = found.get((ss, role, call_id))
            if known is None:
                missing.append(ss)
                continue
            messages.append(msgspec.structs.replace(known, ephemeral=ephemeral))
        return messages, missing

    async def _offered(self, done: list[StoredEvent], step: int) -> bytes | None:
        """The tool schemas of a step as they were offered; None where they were not recorded."""
        event = ev.decode(done[step - 1].body) if step <= len(done) else None
        digest = event.tools_sha256 if isinstance(event, ev.TurnStep) else None
        return None if digest is None else await self._store.blob(digest)

    async def _shown(
        self, sid: str, messages: list[Message], stored: list[StoredEvent], step: int
    ) -> tuple[Message, ...]:
        """What was shown in `step`: with what steps before it and notices added, and compactions took away."""
        added: list[Message] = list(messages)
        steps = 0
        for item in stored:
            event = ev.decode(item.body)
            if isinstance(event, ev.TurnStep):
                steps += 1
                if steps >= step:
                    break
                added.extend(step_messages(event, item.ss, await self._blobs(event)))
            elif isinstance(event, ev.ContextCompacted):
                summary = event.summary
                if event.summary_blob is not None:
                    summary = (await self._blobs(event)).get(event.summary_blob, b"").decode()
                added = list(applied(added, plan_of(event, summary), item.ss))
            elif isinstance(event, ev.EnvelopeDelivered):
                number = int(event.id.rsplit("_", 1)[1])
                for accepted in await self._store.events_at(sid, [number]):
                    added.extend(messages_of(ev.decode(accepted.body), accepted.ss, {}))
        return tuple(added)

    async def _blobs(self, event: ev.Event) -> dict[str, bytes]:
        blobs: dict[str, bytes] = {}
        for digest in blob_names(event):
            data = await self._store.blob(digest)
            if data is not None:
                blobs[digest] = data
        return blobs


def _as_shown(message: Message, digest: str, chars: Sequence[int]) -> Message | None:
    """The message as a compaction left it, found by its digest; None when it is not to be found."""
    return next(
        (m for m in (shortened(message, each) for each in chars) if content_digest(m) == digest), None
    )
