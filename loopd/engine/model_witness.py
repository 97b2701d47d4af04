"""The engine's word on model calls that go through the proxy: may they leave, and that they are kept."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loopd.core.inputs import ModelReported
from loopd.engine import intake
from loopd.engine.live_turn import LiveTurn
from loopd.engine.router import Router
from loopd.engine.session_loop import SessionLoop
from loopd_protocol.errors import Refused
from loopd_protocol.events import ModelAsked, ModelCalled


class ModelWitness:
    """Implements the port `Witness` of the proxy.

    A call may leave while a turn of its session runs that nobody told to stop, and in which nothing closed
    the gate: a hold that was set since the turn began ends it with the next call, but for the one of a tool
    that waits for an approval. An operator's
    `suspend` without `--mode` lets a running turn end by itself, and so do its calls.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    async def admit(self, sid: str, request_bytes: int, cut: Callable[[], None]) -> int:
        """See the port."""
        del request_bytes
        loop, turn = self._running(sid)
        self._check(loop, turn)
        await turn.afford()
        _, now = self._running(sid)
        if now is not turn:
            raise Refused("gate_closed", "The turn in which this was asked is over.")
        self._check(loop, turn)
        turn.calls.add(cut)
        return turn.n

    def leaving(self, sid: str, call: ModelAsked) -> None:
        """See the port."""
        loop = self._router.loaded(sid)
        if loop is not None:
            loop.note(msgspec.structs.replace(call, model=intake.label(call.model)))

    def over(self, sid: str, cut: Callable[[], None]) -> None:
        """See the port."""
        loop = self._router.loaded(sid)
        if loop is not None and loop.turn is not None:
            loop.turn.calls.discard(cut)

    def turn_of(self, sid: str) -> int:
        """See the port."""
        loop = self._router.loaded(sid)
        return 0 if loop is None else loop.session.turns

    async def called(
        self, sid: str, call: ModelCalled, *, request: bytes | None, response: bytes | None
    ) -> None:
        """See the port."""
        blobs = {
            sha: data
            for sha, data in ((call.request_sha256, request), (call.response_sha256, response))
            if data is not None
        }
        fields = {
            name: getattr(call, name) for name in ModelReported.__struct_fields__ if hasattr(call, name)
        }
        usage = intake.usage(call.usage)
        cost = self._router.prices.cost(call.model, usage)
        named = {"model": intake.label(call.model), "cause": intake.label(call.cause)}
        given = ModelReported(
            **{**fields, **named, "usage": usage},
            cost_micro=cost.micro,
            priced=cost.priced,
        )
        loop = await self._router.loop_of(sid)
        await loop.apply(given, blobs=blobs).committed()

    def _running(self, sid: str) -> tuple[SessionLoop, LiveTurn]:
        loop = self._router.loaded(sid)
        turn = None if loop is None else loop.turn
        running = None if loop is None else loop.session.turn
        if loop is None or turn is None or turn.cut or running is None or running.n != turn.n:
            raise Refused("gate_closed", "No turn of this session runs now.")
        return loop, turn

    def _check(self, loop: SessionLoop, turn: LiveTurn) -> None:
        session, running = loop.session, loop.session.turn
        assert running is not None
        if session.idled:
            raise Refused("gate_closed", "The agent asked to idle.")
        if running.stopping is not None or turn.told_to_stop:
            raise Refused("gate_closed", "The session was found going in circles and was told to stop.")
        for hold in session.gate.holds:
            if hold.kind not in {"UserSuspend", "AwaitingApproval"} and hold.since_ss > running.ss:
                raise Refused("gate_closed", f"The session is held: {hold.kind}.")
