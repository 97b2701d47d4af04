"""`loopctl verify`: the proof of the log, of a session, of a suspension, or of an export."""

from __future__ import annotations

import contextlib

from loopd.cli.console import safe
from loopd.cli.exits import FAILED, OK, Failure
from loopd.cli.forensics import patient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loopd.cli.run import Run

ANCHORS_AT_ONCE = 2_000
"""Anchors that go to a daemon in one frame; offline all of a file are compared."""

TOLD_S = 1.0


def verify(run: Run) -> int:
    """Proves that the journal is whole; exit code 1 when it is not."""
    args, console = run.args, run.console
    told = _Told(run)
    if args.sid is not None and args.sid.endswith(".zip"):
        proof = _archive(args, told)
    elif args.data is None:
        if args.anchor is not None:
            raise Failure("usage", "--anchor is compared with files; expected --data DIR beside it")
        proof = _asked(run, told)
    else:
        from loopd.cli.offline import proof_of

        proof = proof_of(
            args.data,
            sid=args.sid,
            suspended_since=args.suspended_since,
            anchor=args.anchor,
            anchors=_given(args.anchors),
            progress=told,
        )
    told.over()
    good = bool(proof.get("ok"))
    if console.format != "table":
        console.json(proof)
        return OK if good else FAILED
    whole = "the archive is whole" if proof.get("archive") else "the journal is whole"
    console.line(console.styled(whole, "green") if good else console.styled("NOT WHOLE", "red"))
    if proof.get("proof") and good:
        console.line(safe(_suspension(proof["proof"])))
    for finding in proof.get("findings") or []:
        console.line(f"  {console.styled(safe(_finding(finding)), 'red')}")
    for note in proof.get("notes") or []:
        console.line(f"  {console.styled('note: ' + safe(_finding(note)), 'yellow')}")
    if args.invariants:
        rows = [
            [name, each["what"], f"{each['checked']:,}", f"{each['found']:,}"]
            for name, each in (proof.get("invariants") or {}).items()
        ]
        console.table(("", "INVARIANT", "CHECKED", "FOUND"), rows, flex=1)
    console.pairs(
        [
            (name, value if isinstance(value, str) else _compact(value))
            for name, value in proof.items()
            if name not in {"ok", "findings", "notes", "invariants"} and value is not None
        ]
    )
    return OK if good else FAILED


def _asked(run: Run, told: _Told) -> dict[str, Any]:
    args = run.args
    command: dict[str, Any] = {"t": "verify"}
    if args.sid is not None:
        command["sid"] = args.sid
    if args.suspended_since is not None:
        command["suspended_since"] = args.suspended_since
    anchors = _given(args.anchors)
    if anchors is not None:
        import msgspec

        if len(anchors) > ANCHORS_AT_ONCE:
            run.console.err.write(
                f"loopctl: only the last {ANCHORS_AT_ONCE} of {len(anchors)} anchors go to the daemon; --data DIR compares all\n"
            )
        command["anchors"] = [msgspec.to_builtins(anchor) for anchor in anchors[-ANCHORS_AT_ONCE:]]
    patient(run)
    with told.watching(run):
        return run.link.ask(command)


def _given(path: str | None) -> tuple[Any, ...] | None:
    if path is None:
        return None
    from loopd.store.anchors import parsed
    from loopd_protocol.errors import Refused

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = tuple(parsed(file))
    except OSError as error:
        raise Failure("not_found", f"{path!r} cannot be read: {error}") from None
    except Refused as refused:
        raise Failure(refused.code, f"{path!r}: {refused.message}") from None
    if not found:
        raise Failure("invalid", f"{path!r} holds no anchors; expected lines of `loopctl anchor export`")
    return found


def _archive(args: Any, told: Callable[[str, int, int], None]) -> dict[str, Any]:
    from pathlib import Path

    from loopd.store.anchors import key_id
    from loopd.store.archive import Archive
    from loopd.store.archive_check import verify as verify_archive
    from loopd_protocol.errors import Refused

    try:
        trusted = [bytes.fromhex(key) for key in args.trust]
    except ValueError:
        raise Failure(
            "usage", "--trust expects a public key: 64 hex digits, see `loopctl anchor list`"
        ) from None
    path = Path(args.sid)
    if not path.is_file():
        raise Failure("not_found", f"no file {args.sid!r}; expected what `loopctl export` wrote")
    try:
        with Archive(path) as archive:
            keys = {key_id(key): key for key in trusted}
            proof = verify_archive(archive, keys=keys, given=_given(args.anchors), progress=told)
    except Refused as refused:
        raise Failure(refused.code, refused.message) from None
    if trusted and proof["signature"].get("status") != "trusted":
        what = f"the archive is not signed by a key that is trusted: {proof['signature']}"
        proof = {**proof, "ok": False, "findings": [*proof["findings"], {"check": "signature", "what": what}]}
    return proof


class _Told:
    """Shows on a terminal how far long work has come, at most once a second."""

    def __init__(self, run: Run) -> None:
        from time import monotonic

        self._now = monotonic
        self._err = run.console.err
        self._shows = self._err.isatty()
        self._last = monotonic()
        self._shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Work has come this far."""
        if not self._shows or self._now() - self._last < TOLD_S:
            return
        self._last, self._shown = self._now(), True
        share = f" of {total:,}" if total else ""
        self._err.write(f"\r\x1b[K{what}: {done:,}{share}")
        self._err.flush()

    @contextlib.contextmanager
    def watching(self, run: Run) -> Iterator[None]:
        """Ask the daemon on a second connection how far it has come, as long as the block runs."""
        if not self._shows:
            yield
            return
        import threading

        over, link = threading.Event(), run.link.twin()

        def look() -> None:
            with contextlib.suppress(Failure):  # who may not see the status sees no progress
                while not over.wait(TOLD_S):
                    found = link.ask({"t": "daemon.status"}).get("verifying")
                    if found:
                        self(*found)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(TOLD_S)
            link.close()

    def over(self) -> None:
        """Take the line away."""
        if self._shown:
            self._err.write("\r\x1b[K")


def _finding(finding: Any) -> str:
    if not isinstance(finding, dict):
        return str(finding)
    where = ", ".join(f"{k} {v}" for k, v in finding.items() if k not in {"check", "what"})
    return f"{finding.get('check')}: {finding.get('what')}" + (f" ({where})" if where else "")


def _suspension(proof: dict[str, Any]) -> str:
    """The proof of a suspension as a sentence; a suspension that was lifted must not look like one that stands."""
    since = proof.get("suspended_since")
    if proof.get("lifted_seq") is None:
        return f"suspended since seq {since}: no turn has started, through seq {proof.get('checked_through')}"
    return (
        f"NOT SUSPENDED ANY MORE: lifted at seq {proof['lifted_seq']} ({proof.get('lifted_by')});"
        f" from seq {since} until then no turn started"
    )


def _compact(value: Any) -> str:
    import json

    return json.dumps(value)
