"""Asking a model: one request with its visible retries, whichever API it speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from loopd.drivers.chat_settings import ChatSettings
from loopd.drivers.error_prose import ErrorProse
from loopd.drivers.host import TurnHost
from loopd.drivers.model import CallFailed, ask_model
from loopd.drivers.retry import Fault
from loopd.drivers.wires import Wire
from loopd.drivers.wires.answer import Answer

if TYPE_CHECKING:
    import httpx


class Asker:
    """Asks one endpoint during one turn.

    Args:
        client: open for the turn.
        url: of the API.
        wire: how it is spoken to.
        settings: retries and bounds.
        prose: recognises errors told in words.
        host: is told of retries and of streamed text.
        jitter: random numbers in [0, 1).
    """

    def __init__(  # noqa: PLR0917
        self,
        client: httpx.AsyncClient,
        url: str,
        wire: Wire,
        settings: ChatSettings,
        prose: ErrorProse,
        host: TurnHost,
        jitter: Callable[[], float],
    ) -> None:
        self._client = client
        self._url = url
        self._wire = wire
        self._settings = settings
        self._prose = prose
        self._host = host
        self._jitter = jitter

    async def ask(self, body: bytes, *, shown: bool = True) -> Answer:
        """Send `body` until an answer came or it was tried often enough.

        Args:
            body: the exact request.
            shown: stream the text to watchers, and let the host judge it.

        Raises:
            CallFailed: it failed more often than is retried, or cannot succeed.
        """
        attempt = 1
        chanted = False

        def show(text: str) -> None:
            if shown and not self._host.delta(text):
                message = "the answer says the same over and over"
                raise CallFailed(Fault(cause="chanting", message=message, retryable=not chanted))

        while True:
            try:
                return await self._once(body, show)
            except CallFailed as error:
                delay_ms = self._settings.retry.delay_ms(error.fault, attempt, self._jitter())
                chanted = chanted or error.fault.cause == "chanting"
                if delay_ms is None:
                    raise
                await self._host.retrying(attempt=attempt, cause=error.fault.cause, delay_ms=delay_ms)
            await anyio.sleep(delay_ms / 1_000)
            attempt += 1

    async def _once(self, body: bytes, show: Callable[[str], None]) -> Answer:
        answer = await ask_model(
            self._client, self._url, body, self._wire.answer(), show=show, limits=self._settings.limits
        )
        if not answer.calls() and self._prose.told(answer.text):
            said = " ".join(answer.text.split())[:300]
            raise CallFailed(Fault(cause="error_prose", message=said, retryable=True))
        return answer
