"""`loopctl verify`: the proof of the log, of a session, of a suspension, or of an export."""

from __future__ import annotations

import contextlib

from loopd.cli.console import plural, safe
from loopd.cli.exits import FAILED, OK, Failure
from loopd.cli.forensics import patient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loopd.cli.console import Console
    from loopd.cli.run import Run

ANCHORS_AT_ONCE = 2_000
"""Anchors that go to a daemon in one frame; offline all of a file are compared."""

TOLD_S = 1.0
KEY_BYTES = 32
FOUND_MAX = 100


def verify(run: Run) -> int:
    """Proves that the journal is whole; exit code 1 when it is not."""
    args, console = run.args, run.console
    told = _Told(run)
    trusted = _trusted(args.trust)
    if trusted and args.anchors is None and not (args.sid or "").endswith(".zip"):
        raise Failure("usage", "--trust is about a signature; expected FILE.zip or --anchors FILE beside it")
    given = _given(args.anchors)
    if args.sid is not None and args.sid.endswith(".zip"):
        proof = _archive(args, told, trusted, given)
    elif args.data is None:
        if args.anchor is not None:
            raise Failure("usage", "--anchor is compared with files; expected --data DIR beside it")
        proof = _asked(run, told, given)
    else:
        from loopd.cli.offline import proof_of

        proof = proof_of(
            args.data,
            sid=args.sid,
            suspended_since=args.suspended_since,
            anchor=args.anchor,
            anchors=given,
            progress=told,
        )
    told.over()
    if trusted and given is not None:
        from loopd.store.anchors import not_trusted

        strange = list(not_trusted(given, trusted))
        proof = {
            **proof,
            "ok": proof["ok"] and not strange,
            "findings": [*proof["findings"], *strange[:FOUND_MAX]],
        }
    good = bool(proof.get("ok"))
    if console.format != "table":
        console.json(proof)
        return OK if good else FAILED
    console.line(_verdict(console, proof))
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
    console.pairs([(name.replace("_", " "), value) for name, value in _facts(proof)])
    return OK if good else FAILED


def _verdict(console: Console, proof: dict[str, Any]) -> str:
    """One line: what is proven, or what is not."""
    what = "archive" if proof.get("archive") else "journal"
    checks = {finding.get("check") for finding in proof.get("findings") or ()}
    if proof.get("ok"):
        return console.styled(f"the {what} is whole", "green")
    if checks == {"contract 3"}:
        return console.styled(
            f"NOT PROVEN (the {what} is whole, the suspension is not what was asked for)", "red"
        )
    if checks == {"signature"}:
        return console.styled(
            f"NOT TRUSTED (the {what} is whole, its signature is not what was asked for)", "red"
        )
    return console.styled("NOT WHOLE", "red")


def _facts(proof: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What was looked at, in words."""
    for name, value in proof.items():
        match name, value:
            case (("ok" | "findings" | "notes" | "invariants" | "head"), _):
                continue
            case _, None:
                continue
            case "range", {"first": first, "last": last}:
                yield name, f"seq {first} to {last}"
            case "checked", {}:
                yield name, ", ".join(plural(count, what) for what, count in value.items())
            case "session", {"ss": ss}:
                yield name, f"{ss:,} events, chain ends with {value.get('hash')}"
            case "took_ms", int():
                yield "took", f"{value:,} ms"
            case "anchors", {}:
                where = "in the archive" if proof.get("archive") else "stored beside the log"
                yield name, _anchored(value, proof, where)
            case "anchors_given", {}:
                yield "anchors elsewhere", _anchored(value, proof, "kept elsewhere")
            case "signature", {}:
                yield name, _signed(value)
            case "links", {}:
                yield name, _linked(value, proof)
            case "head_hash", _:
                yield name, f"{value} (seq {proof.get('head')})"
            case "redaction", {"profile": profile}:
                yield name, profile
            case _:
                yield name, value if isinstance(value, str) else _compact(value)


def _anchored(found: dict[str, Any], proof: dict[str, Any], where: str) -> str:
    """What a set of anchors says about the log."""
    count = found.get("checked") or 0
    if not count:
        return f"none {where}"
    words = f"{count:,} {where}"
    if proof.get("archive") and not proof.get("links"):
        words += f", {found.get('compared') or 0:,} of them at an event that is in the archive"
        return words if found.get("compared") else f"{words}: they prove nothing about it"
    if found.get("unsigned"):
        words += f", {found['unsigned']:,} by a key that is not known here (only their hash was compared)"
    if found.get("deleted"):
        words += f", {found['deleted']:,} of events that retention has deleted"
    agreed = found.get("agreed")
    if agreed is None:
        return f"{words}; none of them is in this log" if not found.get("deleted") else words
    behind = max(0, int((proof.get("range") or {}).get("last") or 0) - agreed)
    if proof.get("sid") or proof.get("archive"):
        return f"{words}; the log is as it was up to seq {agreed}"
    return f"{words}; the log is as it was up to seq {agreed}, {behind:,} events came after it"


def _signed(found: dict[str, Any]) -> str:
    """Whose archive it is."""
    key = found.get("key")
    match found.get("status"):
        case "trusted":
            return f"by key {key}, which you trust"
        case "holds":
            return f"by key {key}, which only the archive itself names; --trust KEY says whose it must be"
        case "none":
            return "none: whoever can write a file could have made all of it"
        case other:
            return f"{other}, key {key}"


def _linked(found: dict[str, Any], proof: dict[str, Any]) -> str:
    """How far an archive is tied to the log it was taken from."""
    words = f"{found.get('foreign') or 0:,} events of others, seq {found.get('first')} to {found.get('last')}"
    tied = found.get("tied_to")
    if tied is None:
        return f"{words}; no anchor is among them"
    given = proof.get("anchors_given") or {}
    kept = " that was kept elsewhere" if (given.get("agreed") or 0) >= tied else ""
    return f"{words}; tied to the log by the anchor at seq {tied}{kept}"


def _asked(run: Run, told: _Told, anchors: tuple[Any, ...] | None) -> dict[str, Any]:
    args = run.args
    command: dict[str, Any] = {"t": "verify"}
    if args.sid is not None:
        command["sid"] = args.sid
    if args.suspended_since is not None:
        command["suspended_since"] = args.suspended_since
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
        raise Failure(
            "invalid", f"{path!r} holds no anchors; expected what a webhook or `loopctl anchor export` told"
        )
    return found


def _trusted(keys: list[str]) -> dict[str, bytes]:
    if not keys:
        return {}
    from loopd.store.anchors import key_id

    try:
        raw = [bytes.fromhex(key) for key in keys]
    except ValueError:
        raw = []
    if not raw or any(len(key) != KEY_BYTES for key in raw):
        raise Failure("usage", "--trust expects a public key: 64 hex digits, see `loopctl anchor list`")
    return {key_id(key): key for key in raw}


def _archive(
    args: Any,
    told: Callable[[str, int, int], None],
    trusted: dict[str, bytes],
    given: tuple[Any, ...] | None,
) -> dict[str, Any]:
    from pathlib import Path

    from loopd.store.archive import Archive
    from loopd.store.archive_check import verify as verify_archive
    from loopd_protocol.errors import Refused

    path = Path(args.sid)
    if not path.is_file():
        raise Failure("not_found", f"no file {args.sid!r}; expected what `loopctl export` wrote")
    try:
        with Archive(path) as archive:
            proof = verify_archive(
                archive, keys=trusted, given=given, suspended_since=args.suspended_since, progress=told
            )
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
