"""Archives that `loopd.store.export` wrote: read, verified alone, and made into a database to be read.

An archive comes from elsewhere: its names, sizes and numbers are checked before anything is made of them.
"""

from __future__ import annotations

import base64
import binascii
import re
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from loopd import __version__
from loopd.core.evolution import evolve
from loopd.core.state import Session
from loopd.store import anchors, chain, export
from loopd.store.anchors import Anchor
from loopd.store.content import packed
from loopd.store.invariants import SessionInvariants
from loopd.store.projection import Placed, Plan
from loopd.store.request import Findings
from loopd.store.rows import ROW_COLUMNS, Row
from loopd.store.schema import migrate
from loopd.store.statements import Table, insert
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused

UNPACKED_MAX = 64 << 30
LINE_MAX = 64 << 20
BROKEN = (zipfile.BadZipFile, zlib.error, KeyError, OSError, EOFError, NotImplementedError, RuntimeError)
"""What a damaged zip may raise."""
SMALL_MAX = 64 << 20
ROWS_AT_ONCE = 512
_BLOB_NAME = re.compile(r"blobs/[0-9a-f]{64}")
_NAMES = frozenset(
    {
        export.MANIFEST, export.SIGNATURE, export.JOURNAL, export.SESSIONS, export.BOOTS, export.ANCHORS,
        "README.txt",
    }
)  # fmt: skip
_JOURNAL = Table("journal", ROW_COLUMNS)
_BLOB = Table("blob", ("sha", "at_ms", "used_ms", "codec", "len", "data"), ("sha",), "NOTHING")


class Line(msgspec.Struct, kw_only=True):
    """A row of the journal as an archive has it."""

    seq: int
    sid: int | None
    ss: int
    epoch: int
    boot: int
    at_ms: int
    kind: str
    kv: int
    turn: int | None
    cause_seq: int | None
    principal: str
    blob: str | None
    h: str
    sh: str | None
    body: msgspec.Raw = msgspec.Raw(b"")
    body_b64: str | None = None
    body_sha: str | None = None
    redacted: bool = False

    def row(self) -> Row:
        """The row; its `body_sha` stands for a body that is not the one that was hashed."""
        body = bytes(self.body) or None
        if self.body_b64 is not None:
            body = base64.b64decode(self.body_b64, validate=True)
        digest = None if self.body_sha is None else bytes.fromhex(self.body_sha)
        if body is None and digest is None:
            raise ValueError("a row has neither a body nor the digest of one")
        return Row(
            seq=self.seq,
            sid=self.sid,
            ss=self.ss,
            epoch=self.epoch,
            boot=self.boot,
            at_ms=self.at_ms,
            kind=self.kind,
            kv=self.kv,
            turn=self.turn,
            cause_seq=self.cause_seq,
            principal=self.principal,
            body=body,
            body_sha=digest,
            blob=None if self.blob is None else bytes.fromhex(self.blob),
            h=bytes.fromhex(self.h),
            sh=None if self.sh is None else bytes.fromhex(self.sh),
        )


_decode_line = msgspec.json.Decoder(Line).decode


class Archive:
    """An open archive.

    Attributes:
        manifest: what it says of itself.

    Raises:
        Refused: `invalid` when the file is no export of loopd, or of a newer format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
            infos = self._zip.infolist()
            names = [info.filename for info in infos]
            strange = [name for name in names if name not in _NAMES and not _BLOB_NAME.fullmatch(name)]
            if strange or len(set(names)) != len(names):
                raise Refused(
                    "invalid", f"{str(path)!r} holds {strange[:3] or 'a name twice'}; expected an export"
                )
            if sum(info.file_size for info in infos) > UNPACKED_MAX:
                raise Refused("invalid", f"{str(path)!r} unpacks to over {UNPACKED_MAX} bytes")
            self.manifest_bytes = self._small(export.MANIFEST)
            self.manifest: dict[str, Any] = msgspec.json.decode(self.manifest_bytes, type=dict[str, Any])
        except (*BROKEN, msgspec.MsgspecError, ValueError) as error:
            raise Refused("invalid", f"{str(path)!r} is no export of loopd: {error}") from error
        if self.manifest.get("format") != export.NAME or self.manifest.get("v") != export.FORMAT:
            found = f"{self.manifest.get('format')!r} {self.manifest.get('v')!r}"
            raise Refused("invalid", f"{str(path)!r} is {found}; expected {export.NAME!r} {export.FORMAT}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def log(self) -> str:
        """Identity of the log that it was taken from."""
        return str(self.manifest["log"])

    def rows(self) -> Iterator[Row]:
        """All rows, in order.

        Raises:
            Refused: `corrupt`, naming the line.
        """
        for row, _ in self.marked_rows():
            yield row

    def marked_rows(self) -> Iterator[tuple[Row, bool]]:
        """All rows, in order, with whether redaction changed them.

        Raises:
            Refused: `corrupt`, naming the line.
        """
        for number, text in enumerate(self.lines(export.JOURNAL), 1):
            try:
                line = _decode_line(text)
                yield line.row(), line.redacted
            except (msgspec.MsgspecError, ValueError) as error:
                raise Refused("corrupt", f"{export.JOURNAL}, line {number}: {error}") from error

    def lines(self, name: str) -> Iterator[bytes]:
        """Lines of a file."""
        try:
            with self._zip.open(name) as file:
                while line := file.readline(LINE_MAX + 1):
                    if len(line) > LINE_MAX:
                        raise Refused("invalid", f"{name} has a line of over {LINE_MAX} bytes")
                    yield line
        except BROKEN as error:
            raise Refused("corrupt", f"{name} cannot be read: {error}") from error

    def values(self, name: str) -> list[dict[str, Any]]:
        """A small file of JSON lines."""
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in self._small(name).splitlines()]

    def blob_names(self) -> list[str]:
        """Digests (hex) of the content in it."""
        return [
            name.removeprefix(export.BLOBS) for name in self._zip.namelist() if name.startswith(export.BLOBS)
        ]

    def blob(self, sha: str) -> bytes:
        """Content by its name."""
        return self._zip.read(f"{export.BLOBS}{sha}")

    def digest_of(self, name: str) -> tuple[str, int]:
        """SHA-256 and size of a file in it."""
        found, size = sha256(), 0
        with self._zip.open(name) as file:
            while piece := file.read(1 << 20):
                found.update(piece)
                size += len(piece)
        return found.hexdigest(), size

    def _small(self, name: str) -> bytes:
        if self._zip.getinfo(name).file_size > SMALL_MAX:
            raise Refused("invalid", f"{name} is over {SMALL_MAX} bytes")
        return self._zip.read(name)

    def signature(self) -> dict[str, Any] | None:
        """What signs the manifest, if anything does."""
        try:
            return msgspec.json.decode(self._small(export.SIGNATURE), type=dict[str, Any])
        except (*BROKEN, msgspec.MsgspecError, ValueError):
            return None


# -- verification ------------------------------------------------------------------------------------


def verify(
    archive: Archive,
    *,
    keys: Mapping[str, bytes] | None = None,
    given: tuple[Anchor, ...] | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Verify an archive alone; a proof object like that of `loopd.store.verify`, with `archive` and `signature`.

    Args:
        archive: what to verify.
        keys: public keys that are trusted, by name; without them the archive's own key only shows that it was not
            changed since somebody signed it.
        given: anchors that somebody kept elsewhere.
        progress: told now and then.
    """
    findings = Findings()
    manifest = archive.manifest
    check = _Check(archive, findings, progress)
    check.files()
    signature = _signature(archive, dict(keys or {}), findings)
    check.run()
    blobs = check.blobs()
    kept = [msgspec.convert(value, Anchor) for value in _values(archive, export.ANCHORS, findings)]
    trusted = dict(keys or {})
    if signature.get("public"):
        trusted.setdefault(str(signature["key"]), bytes.fromhex(str(signature["public"])))
    result: dict[str, Any] = {
        "ok": False,
        "version": __version__,
        "archive": str(archive.path),
        "log": archive.log,
        "scope": manifest.get("scope"),
        "range": manifest.get("range"),
        "head": check.last.seq if check.last is not None else 0,
        "head_hash": check.last.h.hex() if check.last is not None else "",
        "redaction": manifest.get("redaction"),
        "signature": {name: value for name, value in signature.items() if name != "public"},
        "checked": {"events": check.events, "sessions": len(check.sessions), "blobs": blobs},
        "anchors": check.anchors(kept, trusted),
    }
    if given is not None:
        result["anchors_given"] = check.anchors(list(given), trusted)
    result["invariants"] = findings.invariants()
    result["findings"] = findings.listed
    if findings.total > len(findings.listed):
        result["findings_total"] = findings.total
    result["ok"] = findings.total == 0
    return result


def _values(archive: Archive, name: str, findings: Findings) -> list[dict[str, Any]]:
    try:
        return archive.values(name)
    except (*BROKEN, msgspec.MsgspecError, ValueError) as error:
        findings.add("file", f"{name} cannot be read: {error}")
        return []


def _signature(archive: Archive, keys: dict[str, bytes], findings: Findings) -> dict[str, Any]:
    proof = archive.signature()
    if proof is None:
        if archive.manifest.get("key"):
            findings.add(
                "signature", f"the manifest names key {archive.manifest['key']!r}; its signature is missing"
            )
        return {"status": "none"}
    try:
        public, signature = bytes.fromhex(proof["public"]), base64.b64decode(proof["sig"], validate=True)
    except (KeyError, ValueError, binascii.Error):
        findings.add("signature", "the signature of the manifest cannot be read")
        return {"status": "wrong"}
    key = anchors.key_id(public)
    data = export.SIGNED + sha256(archive.manifest_bytes).hexdigest().encode()
    holds = anchors.signature_holds(public, signature, data)
    if not holds or key != proof.get("key") or key != archive.manifest.get("key"):
        findings.add("signature", f"the signature of the manifest by key {key} is wrong")
        return {"status": "wrong", "key": key}
    status = "trusted" if keys.get(key) == public else "holds"
    return {"status": status, "key": key, "public": public.hex()}


class _Check:
    """Streams the rows once."""

    def __init__(
        self, archive: Archive, findings: Findings, progress: Callable[[str, int, int], None]
    ) -> None:
        self._archive = archive
        self._findings = findings
        self._progress = progress
        self.events = 0
        self.last: Row | None = None
        self.hashes: dict[int, str] = {}
        self.sessions: dict[int, _Session] = {}
        self._named: set[bytes] = set()
        self._redacts = (archive.manifest.get("redaction") or {}).get("profile") != "none"

    def files(self) -> None:
        """Digests of all files are those of the manifest."""
        listed = self._archive.manifest.get("files") or {}
        for name, said in listed.items():
            try:
                digest, size = self._archive.digest_of(name)
            except BROKEN as error:
                self._findings.add("file", f"{name} cannot be read: {error}", file=name)
                continue
            if (digest, size) != (said.get("sha256"), said.get("bytes")):
                self._findings.add(
                    "file", f"{name} has digest {digest}; the manifest says {said.get('sha256')}", file=name
                )
        for sha in self._archive.blob_names():
            if f"{export.BLOBS}{sha}" not in listed:
                self._findings.add("file", f"blob {sha} is not in the manifest", file=f"{export.BLOBS}{sha}")

    def run(self) -> None:
        """All rows: chains, contiguity, invariants, heads, counts."""
        manifest, findings = self._archive.manifest, self._findings
        whole_log = manifest.get("scope") == "log"
        previous = bytes.fromhex(manifest.get("previous_hash") or "") if whole_log else b""
        expected = int((manifest.get("range") or {}).get("first") or 0)
        total = int((manifest.get("counts") or {}).get("events") or 0)
        for said in _values(self._archive, export.SESSIONS, findings):
            self.sessions[int(said["num"])] = _Session(self._archive.log, said, findings)
        if whole_log and expected == 1 and previous != chain.log_genesis(self._archive.log):
            findings.add("chain", "the chain does not begin with the log's identity", seq=1)
        epoch = 0
        try:
            for row in self._archive.rows():
                where = {"seq": row.seq, "ss": row.ss}
                self.events += 1
                if whole_log:
                    findings.looked("I8")
                    if row.seq != expected:
                        findings.add("I8", f"seq jumps from {expected - 1} to {row.seq}", seq=expected)
                    if chain.link(previous, row.digest()) != row.h:
                        findings.add(
                            "chain", f"{row.kind!r} does not match its hash or its predecessor's", **where
                        )
                    previous, expected = row.h, row.seq + 1
                findings.looked("I7")
                if row.epoch < epoch:
                    findings.add("I7", f"epoch {row.epoch} after epoch {epoch}", **where)
                epoch = max(epoch, row.epoch)
                self._row(row, where)
                self.last = row
                if self.events % 4_096 == 0:
                    self._progress("events", self.events, total)
        except Refused as refused:
            findings.add("file", refused.message, file=export.JOURNAL)
        self._ends(total)

    def _row(self, row: Row, where: dict[str, Any]) -> None:
        if row.blob is not None:
            self._named.add(row.blob)
        if row.body_sha is not None and row.body is not None and not self._redacts and row.oddities():
            self._findings.add("row", "a body was replaced in an archive without redaction", **where)
        if len(self.hashes) < 1_000_000:
            self.hashes[row.seq] = row.h.hex()
        if row.sid is None:
            return
        session = self.sessions.get(row.sid)
        if session is None:
            self._findings.add("row", f"session number {row.sid} is not listed", **where)
            return
        session.see(row, where)

    def _ends(self, total: int) -> None:
        head = self._archive.manifest.get("head") or {}
        if self.last is None or (self.last.seq, self.last.h.hex()) != (head.get("seq"), head.get("hash")):
            found = "nothing" if self.last is None else f"seq {self.last.seq}"
            self._findings.add("head", f"the rows end with {found}; the manifest says seq {head.get('seq')}")
        if self.events != total:
            self._findings.add("head", f"{self.events} rows are there; the manifest says {total}")
        for session in self.sessions.values():
            session.finish()

    def blobs(self) -> int:
        """Content is what its name says, unless redaction replaced it."""
        names = self._archive.blob_names()
        for place, sha in enumerate(names):
            self._progress("blobs", place, len(names))
            try:
                data = self._archive.blob(sha)
            except BROKEN as error:
                self._findings.add("blob", f"blob {sha} cannot be read: {error}")
                continue
            if not self._redacts and sha256(data).hexdigest() != sha:
                self._findings.add("blob", f"blob {sha} does not match its digest")
        counts = self._archive.manifest.get("counts") or {}
        if len(names) != counts.get("blobs"):
            self._findings.add(
                "blob", f"{len(names)} blobs are there; the manifest says {counts.get('blobs')}"
            )
        return len(names)

    def anchors(self, kept: list[Anchor], keys: Mapping[str, bytes]) -> dict[str, Any]:
        """Anchors against the rows that are there."""
        unsigned = compared = 0
        for anchor in kept:
            public = keys.get(anchor.key)
            signature = base64.b64decode(anchor.sig)
            if public is None:
                unsigned += 1
            elif not anchors.signature_holds(public, signature, anchor.signed()):
                self._findings.add(
                    "anchor", f"the signature of the anchor at seq {anchor.seq} is wrong", seq=anchor.seq
                )
                continue
            found = self.hashes.get(anchor.seq)
            if anchor.log != self._archive.log:
                self._findings.add("anchor", f"the anchor is of log {anchor.log!r}", seq=anchor.seq)
            elif found is not None:
                compared += 1
                if found != anchor.h.lower():
                    self._findings.add(
                        "anchor",
                        f"seq {anchor.seq} has hash {found}; the anchor has {anchor.h}",
                        seq=anchor.seq,
                    )
        return {"checked": len(kept), "compared": compared, "unsigned": unsigned}


class _Session:
    """The chain and the invariants of one session of an archive."""

    def __init__(self, log: str, said: dict[str, Any], findings: Findings) -> None:
        self._said = said
        self._findings = findings
        self._sid = str(said["sid"])
        self._ss = int(said["first"]["ss"]) - 1
        self._previous = bytes.fromhex(said["previous_hash"])
        self._invariants = SessionInvariants(self._sid, findings.add, findings.looked)
        if self._ss == 0 and self._previous != chain.session_genesis(log, int(said["num"])):
            findings.add("session chain", "the chain does not begin with the session", sid=self._sid)
        if self._ss:
            self._invariants.unseen("", None, 0)

    def see(self, row: Row, where: dict[str, Any]) -> None:
        findings, where = self._findings, {"sid": self._sid, **where}
        findings.looked("I8")
        if row.ss != self._ss + 1:
            findings.add("I8", f"ss jumps from {self._ss} to {row.ss}", **where)
        if chain.link(self._previous, row.digest()) != row.sh:
            findings.add(
                "session chain", f"{row.kind!r} does not match its hash or its predecessor's", **where
            )
        self._previous, self._ss = row.sh or b"", row.ss
        kind = ev.EVENT_TYPES.get(row.kind)
        if row.body is None or kind is None:
            self._invariants.unseen(row.kind, row.turn, row.boot)
            return
        try:
            event = msgspec.json.decode(row.body, type=kind)
        except (msgspec.MsgspecError, ValueError) as error:
            findings.add("body", f"{row.kind!r} cannot be decoded: {error}", **where)
            self._invariants.unseen(row.kind, row.turn, row.boot)
            return
        self._invariants.see(row.seq, row.ss, row.boot, event)

    def finish(self) -> None:
        last = self._said["last"]
        if self._ss != last["ss"] or self._previous.hex() != self._said["head_hash"]:
            what = f"session {self._sid} ends with ss {self._ss}; the archive says {last['ss']}"
            self._findings.add("head", what, sid=self._sid)


# -- into a database -----------------------------------------------------------------------------------


def importable(archive: Archive) -> list[dict[str, Any]]:
    """The sessions of an archive, which must be there from their beginning.

    Raises:
        Refused: `invalid` when one begins in the middle.
    """
    sessions = archive.values(export.SESSIONS)
    for said in sessions:
        if said["first"]["ss"] != 1:
            raise Refused(
                "invalid",
                f"session {said['sid']!r} begins at event {said['first']['ss']} in this archive; only a session from "
                "its first event on can be imported (export it without --since)",
            )
    return sessions


def into_database(archive: Archive, target: Path, aliases: Mapping[int, tuple[str, str]]) -> None:
    """Write a database that readers open like a journal: the rows as they were, projections made anew.

    Args:
        archive: verified before.
        target: a file that does not exist yet.
        aliases: (sid, name) by session number: what the sessions are called here.
    """
    connection = sqlite3.connect(target, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        migrate(connection)
        connection.execute("BEGIN")
        _fill(connection, archive, aliases)
        connection.execute("COMMIT")
    finally:
        connection.close()


def renamed(aliases: Mapping[int, tuple[str, str]]) -> Callable[..., Session]:
    """`evolve`, for sessions that have other names here than in their own log."""

    def follow(session: Session | None, event: ev.Event, *, ss: int, at_ms: int) -> Session:
        after = evolve(session, event, ss=ss, at_ms=at_ms)
        sid, name = aliases.get(after.num, (after.sid, after.name))
        return after if (after.sid, after.name) == (sid, name) else replace(after, sid=sid, name=name)

    return follow


def _fill(connection: sqlite3.Connection, archive: Archive, aliases: Mapping[int, tuple[str, str]]) -> None:
    boots = archive.values(export.BOOTS)
    last = boots[-1] if boots else {"epoch": 1, "n": 1}
    connection.execute(
        "INSERT INTO meta (id, log_id, created_ms, epoch, boots) VALUES (1, ?, 0, ?, ?)",
        (archive.log, last["epoch"], last["n"]),
    )
    for boot in boots:
        names = ("n", "id", "version", "epoch", "at_ms", "head", "derivation")
        connection.execute(
            f"INSERT INTO boot ({', '.join(names)}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608  (constants)
            tuple(boot[name] for name in names),
        )
    for sha in archive.blob_names():
        data = archive.blob(sha)
        digest = sha256(data).hexdigest()
        columns = packed(digest, data, 0)
        # redacted content keeps the name by which events know it
        insert(connection, _BLOB, [(bytes.fromhex(sha), *columns[1:])])
    follow = renamed(aliases)
    states: dict[int, Session | None] = {}
    rows: list[tuple[Any, ...]] = []
    for row, redacted in archive.marked_rows():
        # What is verified is the archive; here a body_sha says that retention left less, and only that.
        stored = replace(row, body_sha=None) if redacted and row.body is not None else row
        rows.append(tuple(getattr(stored, name) for name in ROW_COLUMNS))
        if len(rows) >= ROWS_AT_ONCE:
            insert(connection, _JOURNAL, rows)
            rows = []
        if row.sid is None or row.body is None or row.kind not in ev.EVENT_TYPES:
            continue
        before = states.get(row.sid)
        event = ev.decode(row.body)
        try:
            after = follow(before, event, ss=row.ss, at_ms=row.at_ms)
        except (ValueError, AssertionError):
            if before is None:
                raise Refused("corrupt", f"session number {row.sid} begins with {row.kind!r}") from None
            after = replace(before, ss=row.ss)  # what is left of a redacted event does not follow
        plan = Plan()
        plan.add(row.sid, before, after, [Placed(row.seq, row.ss, row.at_ms, event, row.body)])
        plan.write(connection)
        states[row.sid] = after
    insert(connection, _JOURNAL, rows)
