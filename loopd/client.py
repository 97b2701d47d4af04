"""A small blocking client of the control socket, with nothing but the standard library.

The start-up time of `loopctl` counts, so neither msgspec nor asyncio is imported here.

    with Client("/run/loopd/control.sock") as client:
        print(client.call({"t": "daemon.status"}))
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque

TYPE_CHECKING = False  # the real one is in `typing`, 4 ms of CPU
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, Self

    Frame = dict[str, Any]

READ_ONLY: frozenset[str] = frozenset(
    {
        "session.get",
        "session.list",
        "gate.get",
        "why",
        "cron.next",
        "cron.list",
        "cron.history",
        "inbox.list",
        "history.page",
        "turn.get",
        "report",
        "verify",
        "replay",
        "turn.diff",
        "anchor.list",
        "export.open",
        "export.read",
        "export.close",
        "daemon.status",
        "token.list",
        "audit",
        "consumer.list",
        "webhook.list",
        "recovery.get",
        "agents.list",
        "budget.get",
        "approval.list",
        "effect.list",
        "db.status",
        "retention.status",
    }
)
"""Commands that change nothing; every other one gets an idempotency key."""

UNAVAILABLE_EXIT = 6
_RECV_BYTES = 262_144
_SILENCE_BEATS = 3


class CallFailed(Exception):
    """The daemon refused, could not be reached or did not answer.

    Attributes:
        code: of the registry in `loopd_protocol.errors`, or `unavailable` (nothing was sent).
        path: the field at fault, or None.
        retry_after_ms: hint, or None.
        cursor: for a subscription: `{"log", "seq"}` after which to go on, or None.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        path: str | None = None,
        retry_after_ms: int | None = None,
        cursor: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.path = path
        self.retry_after_ms = retry_after_ms
        self.cursor = cursor

    @property
    def exit_code(self) -> int:
        """Exit code of `loopctl` for this error."""
        # Imported only when something failed: it costs 15 ms.
        from loopd_protocol.errors import ERRORS  # noqa: PLC0415

        row = ERRORS.get(self.code)
        return row.exit if row else UNAVAILABLE_EXIT


class Client:
    """One connection; not for several threads at once.

    It connects and says hello with its first frame, in one write.

    Args:
        path: the control socket.
        name: what the daemon's log calls this client.
        timeout_s: for connecting, and for each answer unless a call says otherwise.
        deltas: also receive live text in subscriptions.
        token: a bearer token, instead of what the kernel says of this process.

    Attributes:
        welcome: the daemon's greeting, once something was asked.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str = "loopctl",
        timeout_s: float = 30.0,
        deltas: bool = False,
        token: str | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.welcome: Frame = {}
        self._name = name
        self._timeout_s = timeout_s
        self._deltas = deltas
        self._token = token
        self._sock: socket.socket | None = None
        self._tail = bytearray()
        self._lines: deque[bytes] = deque()
        self._events: dict[str, deque[Frame]] = {}
        self._ids = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. Commands that were sent are carried out all the same."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def call(
        self,
        command: Mapping[str, Any],
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        if_rev: int | None = None,
        if_gate_gen: int | None = None,
        if_turn: int | None = None,
    ) -> Frame:
        """Carry out a command and return its result; see `ask` for the whole answer."""
        result: Frame = self.ask(
            command,
            key=key,
            timeout_s=timeout_s,
            if_rev=if_rev,
            if_gate_gen=if_gate_gen,
            if_turn=if_turn,
        ).get("r", {})
        return result

    def ask(
        self,
        command: Mapping[str, Any],
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        if_rev: int | None = None,
        if_gate_gen: int | None = None,
        if_turn: int | None = None,
    ) -> Frame:
        """Carry out a command and return the `ok` frame: `{"seq", "rev", "dup", "r"}`.

        A command that changes something gets a random idempotency key unless one is given; asking
        again with the same key never does it twice.

        Raises:
            CallFailed: the daemon refused or is not there; `timeout` when the outcome is uncertain.
        """
        if key is None and command.get("t") not in READ_ONLY:
            key = os.urandom(16).hex()
        frame: Frame = {"t": "cmd", "id": self._next_id(), "c": dict(command)}
        more = {"key": key, "if_rev": if_rev, "if_gate_gen": if_gate_gen, "if_turn": if_turn}
        frame |= {name: value for name, value in more.items() if value is not None}
        deadline = self._deadline(timeout_s)
        self._send(frame, deadline)
        return self._answer(frame["id"], deadline)

    def ping(self, *, timeout_s: float | None = None) -> Frame:
        """Ask for a `pong`: the head of the log and the daemon's clock."""
        frame = {"t": "ping", "id": self._next_id()}
        deadline = self._deadline(timeout_s)
        self._send(frame, deadline)
        return self._answer(frame["id"], deadline)

    def subscribe(
        self,
        *,
        after: Mapping[str, Any] | None = None,
        sids: Iterable[str] = (),
        kinds: Iterable[str] = (),
        snapshot: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[Frame]:
        """Frames of a subscription: `subd`, then `snap`, `ev`, `delta`, `gap`, `lag`, and `pong` as heartbeat.

        Args:
            after: cursor `{"log", "seq"}` to go on from; None begins at the head.
            sids: sessions by id or name; none means all.
            kinds: kinds or patterns such as `gate.*`; none means all.
            snapshot: begin with the present sessions.
            timeout_s: end with `timeout` after so long in all; None never ends by itself.

        Raises:
            CallFailed: refused, or the connection ended; its `cursor` tells where to go on.
        """
        sub_id = self._next_id()
        frame: Frame = {"t": "sub", "id": sub_id, "sel": {"sids": list(sids), "kinds": list(kinds)}}
        if after is not None:
            frame["after"] = dict(after)
        if snapshot:
            frame["snapshot"] = True
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        first = self._deadline(None)
        self._send(frame, first if limit is None else min(first, limit))
        queue = self._events.setdefault(sub_id, deque())
        return self._follow(sub_id, queue, limit)

    # -- one connection -----------------------------------------------------------------------

    def _follow(self, sub_id: str, queue: deque[Frame], limit: float | None) -> Iterator[Frame]:
        try:
            while True:
                while queue:
                    yield queue.popleft()
                beat_s = self.welcome.get("limits", {}).get("hb_ms", 10_000) / 1000
                silent = time.monotonic() + max(beat_s * _SILENCE_BEATS, 1.0)
                frame = self._receive(silent if limit is None else min(silent, limit))
                kind = frame.get("t")
                if kind == "err" and frame.get("id") == sub_id:
                    raise _failed(frame)
                if kind == "pong" or frame.get("sub") == sub_id or frame.get("id") == sub_id:
                    yield frame
                else:
                    self._file(frame)
        finally:
            self._events.pop(sub_id, None)

    def _answer(self, frame_id: str, deadline: float) -> Frame:
        while True:
            frame = self._receive(deadline)
            if frame.get("id") == frame_id or (frame["t"] == "err" and frame.get("id") is None):
                if frame["t"] == "err":
                    raise _failed(frame)
                return frame
            self._file(frame)

    def _file(self, frame: Frame) -> None:
        """Keep a frame for the subscription that it belongs to."""
        queue = self._events.get(str(frame.get("sub", frame.get("id"))))
        if queue is not None:
            queue.append(frame)

    def _next_id(self) -> str:
        self._ids += 1
        return str(self._ids)

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _send(self, frame: Frame, deadline: float) -> None:
        data = _encode(frame)
        if self._sock is None:
            want = ["delta"] if self._deltas else []
            hello: Frame = {"t": "hello", "v": [1, 1], "client": {"name": self._name}, "want": want}
            if self._token is not None:
                hello["auth"] = self._token
            data = _encode(hello) + data
            self._sock = _connect(self.path, deadline)
        self._sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise CallFailed("timeout", f"the daemon at {self.path!r} takes no bytes") from None
        except OSError as error:
            # The daemon hung up on us; it said why before that.
            for said in self._last_words():
                if said["t"] == "err":
                    raise _failed(said) from None
                if said["t"] == "bye":
                    raise _gone(said) from None
            raise CallFailed("unavailable", f"the daemon at {self.path!r} hung up: {error}") from None

    def _last_words(self) -> Iterator[Frame]:
        while True:
            try:
                yield self._receive(time.monotonic() + 1.0)
            except CallFailed:
                return

    def _receive(self, deadline: float) -> Frame:
        """The next frame; greets `welcome` and refuses to go on after `bye`."""
        while True:
            while not self._lines:
                self._fill(deadline)
            try:
                frame = json.loads(self._lines.popleft())
                kind = frame["t"]
            except (ValueError, KeyError, TypeError):
                raise CallFailed(
                    "unsupported_version", f"what listens at {self.path!r} does not speak this protocol"
                ) from None
            if kind == "welcome":
                self.welcome = frame
            elif kind == "bye":
                raise _gone(frame)
            else:
                return dict(frame)

    def _fill(self, deadline: float) -> None:
        if self._sock is None:
            raise CallFailed("unavailable", "the connection is closed")
        self._sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._sock.recv(_RECV_BYTES)
        except TimeoutError:
            raise CallFailed(
                "timeout", f"no answer from {self.path!r} in time; the outcome is uncertain"
            ) from None
        except OSError as error:
            data, reason = b"", str(error)
        else:
            reason = "end of stream"
        if not data:
            # What was asked may have been done: only a lost answer is known.
            code = "timeout" if self.welcome else "unavailable"
            raise CallFailed(code, f"the daemon at {self.path!r} hung up without an answer: {reason}")
        *whole, rest = data.split(b"\n")
        if whole:
            self._lines.append(bytes(self._tail + whole[0]))
            self._lines.extend(whole[1:])
            self._tail = bytearray(rest)
        else:
            self._tail += rest


def _encode(frame: Frame) -> bytes:
    try:
        text = json.dumps(frame, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode() + b"\n"
    except (TypeError, ValueError) as error:  # UnicodeEncodeError too: half of a surrogate pair
        raise CallFailed("invalid", f"this cannot be sent as JSON: {error}") from None


def _connect(path: str, deadline: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        if isinstance(error, FileNotFoundError):
            raise CallFailed("unavailable", f"no daemon: nothing is at {path!r}") from None
        if isinstance(error, ConnectionRefusedError):
            raise CallFailed("unavailable", f"no daemon: nobody listens at {path!r}") from None
        if isinstance(error, PermissionError):
            raise CallFailed("unauthenticated", f"no permission to connect to {path!r}") from None
        raise CallFailed("unavailable", f"cannot connect to {path!r}: {error}") from None
    return sock


def _failed(frame: Frame) -> CallFailed:
    return CallFailed(
        str(frame.get("code")),
        str(frame.get("msg")),
        path=frame.get("path"),
        retry_after_ms=(frame.get("retry") or {}).get("after_ms"),
    )


def _gone(frame: Frame) -> CallFailed:
    why = str(frame.get("why"))
    code = "draining" if why == "draining" else "unavailable"
    return CallFailed(code, f"the daemon said goodbye: {frame.get('msg') or why}", cursor=frame.get("cursor"))
