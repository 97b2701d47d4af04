"""The forensic part of a daemon: its key, its anchors, its spool, what was imported."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopd.bus import Bus
from loopd.config import Config
from loopd.core.redactor import Redactor
from loopd.daemon.anchoring import Anchoring, Tell
from loopd.engine.copies import Spool
from loopd.engine.forensic_desk import ForensicDesk
from loopd.engine.forensic_ports import ForensicStore
from loopd.engine.ports import Clock
from loopd.engine.queries import Queries
from loopd.engine.router import Router
from loopd.store.anchors import Signer, key_id, public_keys
from loopd.store.extent import Wanted
from loopd.store.shelf import Shelf
from loopd.store.sqlite import SqliteStore
from loopd.telemetry.otlp import OtlpFeed
from loopd_protocol.errors import Refused

IMPORTS, SPOOL, REDACTION_KEY = "imports", "spool", "redaction.key"


class Forensics:
    """Made once the journal is open.

    Args:
        anchored: told `written` or `failed` of each anchor, for metrics.

    Attributes:
        shelf: imported sessions.
        anchoring: signs the heads of the log.
    """

    def __init__(
        self,
        data: Path,
        config: Config,
        store: SqliteStore,
        clock: Clock,
        anchored: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._data = data
        self._config = config
        self._store = store
        self._tell: Tell | None = None
        if config.anchors.enabled:
            store.signer = Signer.of_folder(data)
        self.anchoring = Anchoring(
            store,
            clock,
            every_s=config.anchors.every_s,
            every_events=config.anchors.every_events,
            counted=anchored,
        )
        trusted = {key_id(bytes.fromhex(key)): bytes.fromhex(key) for key in config.anchors.trusted_keys}
        store.keys = {**trusted, **public_keys(data)}
        self.shelf = Shelf(data / IMPORTS, store.keys)
        self.shelf.load()
        self._spool = Spool(data / SPOOL, clock)
        self._spool.clear()
        # A pattern that cannot be is told at the start.
        Redactor("secrets", patterns=config.redaction.patterns)
        self._otlp = self._feed()

    def _feed(self) -> OtlpFeed | None:
        otlp = self._config.telemetry.otlp
        if otlp.endpoint is None:
            return None
        return OtlpFeed(
            otlp.endpoint,
            log=self._store.log_id,
            headers_env=otlp.headers_env,
            content=otlp.content,
            redactor=self.redactor("secrets"),
        )

    def redactor(self, profile: str) -> Redactor:
        """A redactor with the key of this data folder."""
        return Redactor(profile, key=redaction_key(self._data), patterns=self._config.redaction.patterns)

    async def export(
        self,
        sid: str | None,
        target: Path,
        redactor: Redactor,
        *,
        since: int | None,
        until: int | None,
        links: bool,
    ) -> dict[str, Any]:
        """Write an archive; returns its manifest. Links need an anchor behind the session, so one is made."""
        if links and self._tell is not None:
            await self.anchoring.sign(self._tell)
        return await self._store.export(
            Wanted(sid=sid, since=since, until=until, links=links), target, redactor
        )

    def desk(self, router: Router, queries: Queries) -> ForensicDesk:
        """What carries out the commands; proves that the rooms fit the engine's ports."""
        store: ForensicStore = self._store
        self._tell = router.say
        return ForensicDesk(
            router,
            queries,
            store,
            archivist=self,
            shelf=self.shelf,
            spool=self._spool,
            redactor=self.redactor,
        )

    async def send_spans(self, bus: Bus) -> None:
        """Tell a collector of what happens, if one is configured; for ever."""
        if self._otlp is not None:
            await self._otlp.run(bus)

    async def aclose(self) -> None:
        """Close what is open."""
        await self.shelf.aclose()
        if self._otlp is not None:
            await self._otlp.aclose()


def redaction_key(data: Path) -> bytes:
    """The key of a data folder's placeholders; made when there is none.

    Raises:
        Refused: `storage_readonly` when it can neither be read nor written.
    """
    path = data / REDACTION_KEY
    try:
        if not path.exists():
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as out:
                out.write(secrets.token_bytes(32))
            os.replace(temporary, path)
        return path.read_bytes()
    except OSError as error:
        raise Refused("storage_readonly", f"the key of redaction, {str(path)!r}: {error}") from error
