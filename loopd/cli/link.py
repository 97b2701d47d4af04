"""One connection to the daemon, made when the first command needs it."""

from __future__ import annotations

import os

from loopd.cli.exits import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import Any

    from loopd.client import CallFailed, Client
    from loopd.client_http import HttpClient

SYSTEM_SOCKET = "/run/loopd/control.sock"


def socket_path(given: str | None) -> str:
    """Path of the control socket: `--socket`, `LOOPD_SOCKET`, the user's own, the system's."""
    chosen = given or os.environ.get("LOOPD_SOCKET")
    if chosen:
        return chosen
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = f"{runtime}/loopd/control.sock" if runtime else None
    if own is not None and (os.path.exists(own) or not os.path.exists(SYSTEM_SOCKET)):
        return own
    return SYSTEM_SOCKET


def address(args: argparse.Namespace) -> tuple[str, str | None]:
    """Where the daemon is, a socket's path or an URL, and the token to show there.

    `--socket` and `--url` beat the environment, a token file beats a token in it.
    """
    if args.socket and args.url:
        raise Failure("usage", "both --socket and --url; expected one of them")
    url = args.url or (None if args.socket else os.environ.get("LOOPD_URL"))
    file = args.token_file or os.environ.get("LOOPD_TOKEN_FILE")
    token = os.environ.get("LOOPD_TOKEN") or None
    if file:
        try:
            with open(file, encoding="utf-8") as stream:
                token = stream.read(1_024).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Failure("invalid", f"token file {file}: {error}") from None
    if url is None:
        # The environment's token is for the URL of the environment; the kernel vouches for us at a socket.
        return socket_path(args.socket), token if args.token_file else None
    return url, token


class Link:
    """A lazy client whose faults are `Failure`s.

    Attributes:
        path: the control socket, or an URL.
        token: shown there; None lets the kernel say who we are.
        timeout_s: how long each answer may take.
        key: idempotency key of the change, or None for a fresh one.
    """

    def __init__(self, path: str, token: str | None, timeout_s: float, key: str | None = None) -> None:
        self.path = path
        self.token = token
        self.timeout_s = timeout_s
        self.key = key
        self._client: Client | HttpClient | None = None

    def client(self, *, deltas: bool = False) -> Client | HttpClient:
        """The client; it connects with its first frame."""
        if self._client is None:
            if "://" in self.path:
                from loopd.client import CallFailed
                from loopd.client_http import HttpClient

                try:
                    self._client = HttpClient(self.path, self.token, timeout_s=self.timeout_s, deltas=deltas)
                except CallFailed as error:
                    raise self._failure(error) from None
            else:
                from loopd.client import Client

                self._client = Client(self.path, timeout_s=self.timeout_s, deltas=deltas, token=self.token)
        return self._client

    def twin(self) -> Link:
        """Another connection to the same daemon, for a second thread."""
        return Link(self.path, self.token, self.timeout_s)

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out a reading command; the result."""
        return dict(self._answer(command)["r"])

    def change(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out a mutating command; the result with its `seq`, and `dup` if it was a repetition."""
        answer = self._answer(command, self.key or os.urandom(16).hex())
        result = dict(answer["r"])
        if "seq" in answer:
            result.setdefault("seq", answer["seq"])
        if answer.get("dup"):
            result["dup"] = True
        return result

    def _answer(self, command: dict[str, Any], key: str | None = None) -> dict[str, Any]:
        from loopd.client import CallFailed

        try:
            return self.client().ask(command, key=key)
        except CallFailed as error:
            # A batch has no key of its own, so repeating it needs a look first.
            raise self._failure(error, key if command["t"] != "batch" else None) from None

    @property
    def log(self) -> str:
        """Identity of the daemon's log."""
        if not self.client().welcome:
            self._ping()
        return str(self.client().welcome["head"]["log"])

    @property
    def head(self) -> int:
        """`seq` of the newest event when the connection was made."""
        if not self.client().welcome:
            self._ping()
        return int(self.client().welcome["head"]["seq"])

    def _ping(self) -> None:
        from loopd.client import CallFailed

        try:
            self.client().ping()
        except CallFailed as error:
            raise self._failure(error) from None

    def stream(
        self,
        *,
        after: int | None = None,
        log: str | None = None,
        sids: Sequence[str] = (),
        kinds: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Frames of a subscription, until the connection ends (a `Failure`).

        It is in force when this returns: what happens after that will be in it.
        """
        from loopd.client import CallFailed

        cursor = None if after is None else {"log": log or self.log, "seq": after}
        try:
            frames = self.client().subscribe(after=cursor, sids=sids, kinds=kinds, timeout_s=timeout_s)
            first = next(frames)
        except CallFailed as error:
            raise self._failure(error) from None
        return self._rest(first, frames)

    def _rest(self, first: dict[str, Any], frames: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        from loopd.client import CallFailed

        yield first
        try:
            yield from frames
        except CallFailed as error:
            raise self._failure(error) from None

    def close(self) -> None:
        """Hang up."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _failure(self, error: CallFailed, key: str | None = None) -> Failure:
        hint = ""
        if error.code == "unavailable":
            hint = "is `loopd serve` running, and is this its socket? --socket PATH or LOOPD_SOCKET"
        elif error.code == "timeout" and key is not None:
            hint = f"it may have been carried out; the same with `--key {key}` does it once"
        return Failure(
            error.code, error.message, path=error.path, retry_after_ms=error.retry_after_ms, hint=hint
        )
