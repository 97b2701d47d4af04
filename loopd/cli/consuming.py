"""`loopctl watch --consumer`: a stream whose place the daemon keeps, and acknowledging what was printed."""

from __future__ import annotations

import time

from loopd.cli.console import safe
from loopd.cli.exits import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from loopd.cli.run import Run

ACK_EVENTS = 100
ACK_S = 1.0
"""Each acknowledgement is a commit of the daemon: so often is enough, and at the end."""
GONE = frozenset({"unavailable", "draining", "timeout"})
"""Codes after which the daemon may come back."""


class Consumer:
    """A named cursor, as its reader sees it.

    Attributes:
        after: the last event that is done with; the stream begins behind it.
        sids, kinds: what the consumer was made for.
    """

    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self._name = name
        listed = run.link.ask({"t": "consumer.list"})["consumers"]
        found = next((each for each in listed if each["name"] == name), None)
        if found is None:
            hint = f"make it with `loopctl consumer create {name}`; `loopctl consumer list` shows yours"
            raise Failure("not_found", f"no consumer {name!r} of yours", hint=hint)
        self.sids: list[str] = list(found["sids"])
        self.kinds: list[str] = list(found["kinds"])
        self._log = run.link.log
        cursor = found["cursor"]
        self._rewind = cursor["log"] != self._log
        if self._rewind:
            run.console.err.write(
                f"loopctl: gap: consumer {safe(name)} is at log {safe(cursor['log'])}; this is "
                f"{safe(self._log)}: starting over\n"
            )
        self.after = 0 if self._rewind else int(cursor["seq"])
        self._done = self._acked = self.after
        self._since = 0
        self._last = time.monotonic()

    def done(self, seq: int) -> None:
        """This event was printed; acknowledge when it is time."""
        self._done = max(self._done, seq)
        self._since += 1
        if self._since >= ACK_EVENTS or time.monotonic() - self._last >= ACK_S:
            self.acknowledge()

    def passed(self, frames: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The frames; a heartbeat says up to where nothing was wanted, so that the consumer does not fall behind."""
        for frame in frames:
            yield frame
            if frame.get("t") == "pong" and frame.get("cursors"):
                self._done = max(self._done, *frame["cursors"].values())
                self.acknowledge()

    def acknowledge(self) -> None:
        """Tell the daemon. One that is away just now is told later, when the stream comes back with `--reconnect`."""
        if self._done == self._acked and not self._rewind:
            return
        command = {"t": "consumer.ack", "name": self._name, "seq": self._done, "log": self._log}
        if self._rewind:
            command["rewind"] = True
        try:
            self._run.link.change(command)
        except Failure as failure:
            if self._run.args.reconnect and failure.code in GONE:
                return
            raise
        self._acked, self._since, self._last, self._rewind = self._done, 0, time.monotonic(), False

    def leave(self) -> None:
        """The stream ended: acknowledge the rest if the daemon still listens; else it comes once more."""
        try:
            self.acknowledge()
        except Failure as failure:
            if failure.code not in GONE:
                raise
            self._run.console.err.write(
                f"loopctl: not acknowledged: events {self._acked + 1} to {self._done} come once more\n"
            )
