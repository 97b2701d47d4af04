"""The screen's talk with the daemon: one link for questions and changes, one for what happens.

Links block, so questions run in a worker thread one at a time, and the stream in a thread of its own.
"""

from __future__ import annotations

import threading
import time

from loopd.cli.exits import Failure
from loopd.cli.standing import pages_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loopd.cli.link import Link

RETRY_FIRST_S, RETRY_MAX_S = 0.2, 5.0
READING = frozenset({"session.list", "session.get", "daemon.status", "history.page", "why"})


class Feed:
    """Everything that the screen asks for or hears.

    Args:
        link: a connection to the daemon; the stream uses a twin of it.

    Attributes:
        watched: session whose live text is passed on; of all others it is dropped at once.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.watched: str | None = None

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command; blocks.

        Raises:
            Failure: refused, or nobody answers; the next question connects anew.
        """
        with self._lock:
            try:
                if command["t"] in READING:
                    return self._link.ask(command)
                return self._link.change(command)
            except Failure as failure:
                if failure.code in {"unavailable", "timeout", "uncertain", "draining"}:
                    self._link.close()
                raise

    def sessions(self, *, ended: bool) -> list[dict[str, Any]]:
        """All sessions; blocks. Raises `Failure`."""
        return pages_of(self.ask, {"t": "session.list", "selector": {"ended": ended}})

    def follow(self, hear: Callable[[dict[str, Any]], object]) -> None:
        """Hand each frame of the log from now on to `hear`, in a thread, until `close`.

        After a break it goes on behind the last event, so none is missed. `hear` also gets
        `{"t": "link", "up": bool, "why": …}` when the connection comes or goes.
        """
        threading.Thread(target=self._follow, args=(hear,), daemon=True, name="loopctl-top").start()

    def _follow(self, hear: Callable[[dict[str, Any]], object]) -> None:
        after: int | None = None
        pause_s = RETRY_FIRST_S
        while not self._over.is_set():
            link = self._link.twin()
            try:
                link.client(deltas=True)
                after = link.head if after is None else after
                for frame in link.stream(after=after):
                    if self._over.is_set():
                        return
                    kind = frame.get("t")
                    if kind == "subd":
                        hear({"t": "link", "up": True})
                    if kind == "ev":
                        after = frame["seq"]
                    if kind != "delta" or frame.get("sid") == self.watched:
                        hear(frame)
                    pause_s = RETRY_FIRST_S
            except Failure as failure:
                if not self._over.is_set():
                    hear({"t": "link", "up": False, "why": f"{failure.code}: {failure.message}"})
            finally:
                link.close()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def close(self) -> None:
        """Hear no more."""
        self._over.set()
