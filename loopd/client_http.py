"""A small blocking client of the HTTP API with the methods of `loopd.client.Client`.

Nothing but the standard library is needed.

    with HttpClient("https://loopd.example:9464", token) as client:
        print(client.call({"t": "daemon.status"}))

Certificates are checked against the system's authorities, or those in the file `SSL_CERT_FILE` names.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from urllib.parse import urlencode, urlsplit

from loopd.client import READ_ONLY, CallFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, Self

    Frame = dict[str, Any]

_BEATS_S = 35.0
"""Silence after which a stream counts as dead; the server says something every 10 s."""
_ANSWER_BYTES = 64 << 20


class HttpClient:
    """Calls by `POST /v1/commands`, subscriptions by `GET /v1/events`; not for several threads at once.

    Args:
        url: scheme, host and port, for example `http://127.0.0.1:9464`.
        token: `lpd_…`.
        timeout_s: for connecting, and for each answer unless a call says otherwise.
        deltas: also receive live text in subscriptions.

    Attributes:
        welcome: the daemon's greeting, once something was asked.

    Raises:
        CallFailed: `invalid` for an address that is none.
    """

    def __init__(self, url: str, token: str | None, *, timeout_s: float = 30.0, deltas: bool = False) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if (
            parts.scheme not in {"http", "https"}
            or not parts.hostname
            or port == -1
            or parts.path not in {"", "/"}
        ):
            raise CallFailed("invalid", f"url is {url!r}; expected http://HOST:PORT or https://HOST[:PORT]")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise CallFailed("unauthenticated", "the token has characters that no token has")
        self.path = url
        self.welcome: Frame = {}
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._secure = parts.scheme == "https"
        self._token = token
        self._timeout_s = timeout_s
        self._deltas = deltas
        self._line: http.client.HTTPConnection | None = None
        self._streams: list[http.client.HTTPConnection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. Commands that were sent are carried out all the same."""
        for line in (self._line, *self._streams):
            if line is not None:
                line.close()
        self._line, self._streams = None, []

    def call(self, command: Mapping[str, Any], **more: Any) -> Frame:
        """Carry out a command and return its result; see `ask`."""
        result: Frame = self.ask(command, **more).get("r", {})
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
        """Carry out a command and return `{"seq", "rev", "dup", "r"}`; as `loopd.client.Client.ask`.

        Raises:
            CallFailed: the daemon refused or is not there; `timeout` when the outcome is uncertain.
        """
        self._greet(timeout_s)
        if key is None and command.get("t") not in READ_ONLY:
            key = os.urandom(16).hex()
        headers = {"Idempotency-Key": key, "If-Rev": if_rev, "If-Gate-Gen": if_gate_gen, "If-Turn": if_turn}
        shown = {name: str(value) for name, value in headers.items() if value is not None}
        try:
            body = json.dumps(dict(command), ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise CallFailed("invalid", f"this cannot be sent as JSON: {error}") from None
        return self._exchange("POST", "/v1/commands", body, shown, timeout_s)

    def ping(self, *, timeout_s: float | None = None) -> Frame:
        """The greeting anew: the head of the log and the daemon's clock."""
        self.welcome = {}
        self._greet(timeout_s)
        return self.welcome

    def subscribe(
        self,
        *,
        after: Mapping[str, Any] | None = None,
        sids: Iterable[str] = (),
        kinds: Iterable[str] = (),
        snapshot: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[Frame]:
        """Frames of a subscription, as `loopd.client.Client.subscribe`.

        Raises:
            CallFailed: refused, or the connection ended.
        """
        self._greet(timeout_s)
        query = [("sid", sid) for sid in sids] + [("kind", kind) for kind in kinds]
        if after is not None:
            query.append(("after", f"{after['log']}:{after['seq']}"))
        query += [(name, "true") for name, on in (("snapshot", snapshot), ("deltas", self._deltas)) if on]
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        line = self._connection(self._timeout_s)
        self._streams.append(line)
        answer = self._sent(line, "GET", f"/v1/events?{urlencode(query)}", None, {})
        if answer.status != 200:
            raise _failed(answer, answer.read(_ANSWER_BYTES))
        return self._follow(line, answer, limit)

    # -- one connection -----------------------------------------------------------------------

    def _greet(self, timeout_s: float | None) -> None:
        if not self.welcome:
            self.welcome = self._exchange("GET", "/v1/welcome", None, {}, timeout_s)

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float | None
    ) -> Frame:
        patience_s = self._timeout_s if timeout_s is None else timeout_s
        kept = self._line is not None
        line = self._line = self._line or self._connection(patience_s)
        if line.sock is not None:
            line.sock.settimeout(patience_s)
        try:
            answer = self._sent(line, method, path, body, headers)
            data = answer.read(_ANSWER_BYTES)
        except CallFailed as failed:
            self._drop()
            if kept and failed.code == "unavailable":  # it was closed while we were idle
                return self._exchange(method, path, body, headers, timeout_s)
            raise
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise CallFailed("timeout", f"{self.path} hung up in its answer: {error!r}") from None
        if answer.status != 200:
            raise _failed(answer, data)
        try:
            frame = json.loads(data)
        except ValueError:
            raise CallFailed("unsupported_version", f"what listens at {self.path} is no loopd") from None
        return dict(frame)

    def _drop(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _sent(
        self,
        line: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> http.client.HTTPResponse:
        if self._token is not None:
            headers = {**headers, "Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        try:
            if line.sock is None:
                line.connect()
        except OSError as error:
            raise CallFailed("unavailable", f"no daemon: cannot connect to {self.path}: {error}") from None
        try:
            line.request(method, path, body, headers)
            return line.getresponse()
        except TimeoutError:
            raise CallFailed(
                "timeout", f"no answer from {self.path} in time; the outcome is uncertain"
            ) from None
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            raise CallFailed("unavailable", f"{self.path} hung up: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            raise CallFailed("timeout", f"{self.path} hung up without an answer: {error!r}") from None

    def _follow(
        self, line: http.client.HTTPConnection, answer: http.client.HTTPResponse, limit: float | None
    ) -> Iterator[Frame]:
        cursor: Frame | None = None
        fields: dict[str, str] = {}
        try:
            while True:
                left = _BEATS_S if limit is None else min(_BEATS_S, limit - time.monotonic())
                if left <= 0:
                    raise CallFailed("timeout", "the time for the subscription is over", cursor=cursor)
                _patience(line, answer, left)
                try:
                    raw = answer.readline()
                except TimeoutError:
                    if limit is not None and time.monotonic() >= limit:
                        continue
                    raise CallFailed(
                        "unavailable", f"{self.path} says nothing any more", cursor=cursor
                    ) from None
                except (OSError, http.client.HTTPException) as error:
                    raise CallFailed(
                        "unavailable", f"{self.path} hung up: {error!r}", cursor=cursor
                    ) from None
                if not raw:
                    raise CallFailed("unavailable", f"{self.path} hung up", cursor=cursor)
                text = raw.decode().rstrip("\n")
                if text:
                    name, _, value = text.partition(":")
                    fields[name] = value.removeprefix(" ")
                    continue
                told, fields = fields, {}
                log, _, seq = told.get("id", "").rpartition(":")
                if log:
                    cursor = {"log": log, "seq": int(seq)}
                if "data" in told:
                    frame = json.loads(told["data"])
                    if frame["t"] == "bye":
                        code = "draining" if frame.get("why") == "draining" else str(frame.get("why"))
                        raise CallFailed(code, f"the daemon said goodbye: {frame.get('msg')}", cursor=cursor)
                    yield frame
                elif cursor is not None:
                    yield {"t": "pong", "head": cursor, "cursors": {"sse": cursor["seq"]}}
        finally:
            line.close()
            if line in self._streams:
                self._streams.remove(line)


def _patience(line: http.client.HTTPConnection, answer: http.client.HTTPResponse, left: float) -> None:
    """Set how long the next line may take; a response that closes its connection keeps the socket to itself."""
    sock = line.sock
    if sock is None:
        raw = getattr(answer.fp, "raw", None)
        sock = getattr(raw, "_sock", None)
    if isinstance(sock, socket.socket):
        sock.settimeout(max(left, 0.001))


def _failed(answer: http.client.HTTPResponse, data: bytes) -> CallFailed:
    try:
        told = json.loads(data)
        return CallFailed(
            str(told["code"]),
            str(told.get("detail") or told.get("title")),
            path=told.get("path"),
            retry_after_ms=told.get("retry_after_ms"),
        )
    except (ValueError, KeyError, TypeError):
        return CallFailed("unavailable", f"what answers there is no loopd: {answer.status} {answer.reason}")
