"""Export: an archive of one session or of the log that verifies alone.

A zip with `manifest.json` (what is in it, heads, digests of the files), `manifest.sig` (Ed25519, when the daemon
has a key), `journal.ndjson` (one row a line, bodies as the bytes that were hashed), `sessions.ndjson`,
`boots.ndjson`, `anchors.ndjson`, `blobs/<sha256>` and a README. The rows of a session carry its own chain, so it
verifies without the rest of the log; the whole log carries both.

Redaction replaces bodies and blobs; a row then keeps the digest of what was hashed (`body_sha`), so the chains
still verify, and the manifest's own digests (and signature) cover what stands in their place.
"""

from __future__ import annotations

import base64
import re
import sqlite3
import zipfile
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from loopd import __version__
from loopd.core.evolution import DERIVATION
from loopd.core.redactor import Redactor
from loopd.store import anchors, chain
from loopd.store.anchors import Signer
from loopd.store.archive_links import end_of, foreign
from loopd.store.content import unpacked
from loopd.store.extent import Wanted, rows_of
from loopd.store.past import number_of
from loopd.store.rows import PAGE_ROWS, Row
from loopd_protocol.errors import Refused

FORMAT = 1
NAME = "loopd.export"
MANIFEST, SIGNATURE, JOURNAL = "manifest.json", "manifest.sig", "journal.ndjson"
SESSIONS, BOOTS, ANCHORS = "sessions.ndjson", "boots.ndjson", "anchors.ndjson"
LINKS = "links.ndjson"
BLOBS = "blobs/"
SIGNED = b"loopd export 1\n"
_HEX = re.compile(rb"[0-9a-f]{64}")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Every entry has the same moment, so that the same log makes the same archive."""

README = """\
This is an export of a loopd journal. `loopctl verify FILE.zip` checks it without a daemon and without a network:
the hash chains, the digests of all files, the signature of the manifest, and what must be true of the events.
`loopctl import FILE.zip` makes its sessions readable in another daemon; they never run there.
Format: docs/howto/export-for-an-auditor.md of loopd.
"""


class _Entry:
    """A file of the archive while it is written: counts and hashes what goes in."""

    def __init__(self, archive: zipfile.ZipFile, name: str, files: dict[str, dict[str, Any]]) -> None:
        info = zipfile.ZipInfo(name, _EPOCH)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o644 << 16
        self._out = archive.open(info, "w", force_zip64=True)
        self._name, self._files = name, files
        self._hash, self.size = sha256(), 0

    def write(self, data: bytes) -> None:
        self._out.write(data)
        self._hash.update(data)
        self.size += len(data)

    def line(self, value: Any) -> None:
        self.write(msgspec.json.encode(value) + b"\n")

    def close(self) -> None:
        self._out.close()
        self._files[self._name] = {"bytes": self.size, "sha256": self._hash.hexdigest()}


def build(
    connection: sqlite3.Connection,
    log_id: str,
    wanted: Wanted,
    target: Path,
    redactor: Redactor,
    *,
    signer: Signer | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Write an archive of the log as it is now; returns its manifest.

    Raises:
        Refused: `not_found` for an unknown session, `invalid` when nothing is in the range, `cancelled`.
    """
    # The range is fixed at the beginning and rows never change, so no snapshot is held for long.
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        return _Builder(connection, log_id, wanted, archive, redactor, stopped, progress).run(signer)


class _Builder:
    def __init__(  # noqa: PLR0917
        self,
        connection: sqlite3.Connection,
        log_id: str,
        wanted: Wanted,
        archive: zipfile.ZipFile,
        redactor: Redactor,
        stopped: Callable[[], bool],
        progress: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._log_id = log_id
        self._wanted = wanted
        self._archive = archive
        self._redactor = redactor
        self._stopped = stopped
        self._progress = progress
        self._files: dict[str, dict[str, Any]] = {}
        self._named: dict[bytes, bool] = {}
        self._spans: dict[int, list[Any]] = {}
        self._boots: set[int] = set()
        self._redacted = 0
        self._kinds: dict[str, int] = {}

    def run(self, signer: Signer | None) -> dict[str, Any]:
        first: Row | None = None
        last: Row | None = None
        count = 0
        end = self._end()
        journal = _Entry(self._archive, JOURNAL, self._files)
        try:
            for row in rows_of(self._connection, self._wanted, self._stopped):
                if end is not None and row.seq > end[0]:
                    break
                first = first or row
                last = row
                count += 1
                journal.write(self._line(row))
                if count % PAGE_ROWS == 0:
                    self._progress(count)
        finally:
            journal.close()
        if first is None or last is None:
            raise Refused("invalid", "the range holds no events; there is nothing to export")
        sessions = self._sessions()
        self._lines(SESSIONS, sessions)
        self._lines(BOOTS, self._boot_rows())
        links = None if end is None else self._links(first, *end)
        reach = last.seq if end is None else end[0]
        kept = self._anchors(first.seq, reach) if self._wanted.sid is None or links is not None else []
        self._lines(ANCHORS, kept)
        blobs, withheld, gone = self._blobs()
        manifest: dict[str, Any] = {
            "format": NAME,
            "v": FORMAT,
            "loopd": __version__,
            "derivation": DERIVATION,
            "schema": self._connection.execute("PRAGMA user_version").fetchone()[0],
            "protocol_schema": _schema_digest(),
            "log": self._log_id,
            "scope": "log" if self._wanted.sid is None else "session",
            "sid": self._wanted.sid,
            "since": self._wanted.since,
            "until": self._wanted.until,
            "range": {"first": first.seq, "last": last.seq, "first_ms": first.at_ms, "last_ms": last.at_ms},
            "previous_hash": self._before(first).hex() if self._wanted.sid is None else None,
            "head": {"seq": last.seq, "hash": last.h.hex()},
            "counts": {
                "events": count,
                "sessions": len(sessions),
                "blobs": blobs,
                "anchors": len(kept),
                "redacted_events": self._redacted,
                "blobs_withheld": withheld,
                "blobs_gone": gone,
            },
            "kinds": dict(sorted(self._kinds.items())),
            "redaction": {"profile": self._redactor.profile},
            "files": self._files,
        }
        if links is not None:
            manifest["links"] = links
        if signer is not None:
            manifest["key"] = signer.key
        body = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
        self._put(MANIFEST, body)
        if signer is not None:
            signature = signer.sign_bytes(SIGNED + sha256(body).hexdigest().encode())
            proof = {
                "key": signer.key,
                "public": signer.public.hex(),
                "sig": base64.b64encode(signature).decode(),
            }
            self._put(SIGNATURE, msgspec.json.encode(proof) + b"\n")
        self._put("README.txt", README.encode())
        return manifest

    def _end(self) -> tuple[int, int | None] | None:
        """Where links end, if they are wanted.

        Raises:
            Refused: `invalid` when they would say nothing.
        """
        wanted = self._wanted
        if not wanted.links:
            return None
        if wanted.sid is None or wanted.until is not None:
            what = (
                "the whole log, which is linked already"
                if wanted.sid is None
                else "a part that ends before the session"
            )
            raise Refused(
                "invalid", f"links for {what}; expected a session up to its last event", path="$.links"
            )
        return end_of(self._connection, number_of(self._connection, wanted.sid))

    def _links(self, first: Row, end: int, tied: int | None) -> dict[str, Any]:
        assert first.sid is not None
        entry = _Entry(self._archive, LINKS, self._files)
        count = 0
        try:
            for link in foreign(self._connection, first.sid, first.seq, end, self._stopped):
                entry.line(link)
                count += 1
        finally:
            entry.close()
        previous = self._before(first).hex()
        return {"first": first.seq, "last": end, "previous_hash": previous, "foreign": count, "anchor": tied}

    # -- rows -------------------------------------------------------------------------------------

    def _line(self, row: Row) -> bytes:
        self._boots.add(row.boot)
        self._kinds[row.kind] = self._kinds.get(row.kind, 0) + 1
        if row.sid is not None:
            span = self._spans.setdefault(row.sid, [row, row])
            span[1] = row
        line: dict[str, Any] = {
            name: getattr(row, name)
            for name in (
                "seq", "sid", "ss", "epoch", "boot", "at_ms", "kind", "kv", "turn", "cause_seq", "principal"
            )
        }  # fmt: skip
        body, digest = row.body, row.body_sha
        if body is not None:
            self._name(row, body)
            changed = self._redactor.body(row.kind, body) if self._redactor.changes else None
            if changed is not None:
                digest = digest or sha256(body).digest()
                body = changed
                self._redacted += 1
                line["redacted"] = True
        if body is not None:
            line |= _embedded(body)
        if digest is not None:
            line["body_sha"] = digest.hex()
        line |= {
            "blob": None if row.blob is None else row.blob.hex(),
            "h": row.h.hex(),
            "sh": None if row.sh is None else row.sh.hex(),
        }
        return msgspec.json.encode(line) + b"\n"

    def _name(self, row: Row, body: bytes) -> None:
        """Note which blobs an event speaks of; those of `turn.started` are manifests: names and digests only."""
        if row.blob is not None:
            self._named[row.blob] = row.kind == "turn.started" or self._named.get(row.blob, False)
        for digest in _HEX.findall(body):
            self._named.setdefault(bytes.fromhex(digest.decode()), False)

    def _before(self, first: Row) -> bytes:
        if first.seq == 1:
            return chain.log_genesis(self._log_id)
        row = self._connection.execute("SELECT h FROM journal WHERE seq = ?", (first.seq - 1,)).fetchone()
        if row is None:
            row = self._connection.execute(
                "SELECT head_h FROM segment WHERE last_seq = ?", (first.seq - 1,)
            ).fetchone()
        return row[0] if row is not None else b""

    def _session_before(self, num: int, ss: int) -> bytes:
        if ss == 1:
            return chain.session_genesis(self._log_id, num)
        row = self._connection.execute(
            "SELECT sh FROM journal WHERE sid = ? AND ss = ? UNION ALL "
            "SELECT sh FROM session_link WHERE sid = ? AND last_ss = ? LIMIT 1",
            (num, ss - 1) * 2,
        ).fetchone()
        return row[0] if row is not None else b""

    # -- what goes with them ------------------------------------------------------------------------

    def _sessions(self) -> list[dict[str, Any]]:
        found = []
        for num, (first, last) in sorted(self._spans.items()):
            sid, name, status = self._connection.execute(
                "SELECT sid, name, status FROM session WHERE num = ?", (num,)
            ).fetchone()
            found.append(
                {
                    "num": num,
                    "sid": sid,
                    "name": name,
                    "status": status,
                    "first": {"seq": first.seq, "ss": first.ss},
                    "last": {"seq": last.seq, "ss": last.ss},
                    "previous_hash": self._session_before(num, first.ss).hex(),
                    "head_hash": (last.sh or b"").hex(),
                    "whole": first.ss == 1 and self._wanted.until is None,
                }
            )
        return found

    def _boot_rows(self) -> list[dict[str, Any]]:
        names = ("n", "id", "version", "epoch", "at_ms", "head", "derivation")
        rows = self._connection.execute(f"SELECT {', '.join(names)} FROM boot ORDER BY n")  # noqa: S608  (constants)
        return [dict(zip(names, row, strict=True)) for row in rows if row[0] in self._boots]

    def _anchors(self, first: int, last: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = first - 1
        while page := anchors.stored(self._connection, self._log_id, after=after, limit=1_000):
            found += [anchor for anchor in page if anchor["seq"] <= last]
            after = page[-1]["seq"]
        return found

    def _blobs(self) -> tuple[int, int, int]:
        """Write the content that was named, and what this content names in turn."""
        count = withheld = gone = 0
        waiting, seen = list(self._named), set(self._named)
        rows = {row for row, is_manifest in self._named.items() if is_manifest}
        while waiting:
            if self._stopped():
                raise Refused("cancelled", "the export was called off")
            sha = waiting.pop()
            found = self._connection.execute("SELECT codec, data FROM blob WHERE sha = ?", (sha,)).fetchone()
            if found is None:
                gone += sha in rows
                continue  # a digest of something else, or content that was deleted
            data = unpacked(*found)
            is_manifest = self._named.get(sha, False)
            if is_manifest:
                for digest in _HEX.findall(data):
                    inner = bytes.fromhex(digest.decode())
                    if inner not in seen:
                        seen.add(inner)
                        waiting.append(inner)
                        self._named[inner] = _is_base(data, digest)
            shown = self._redactor.blob(data, metadata=is_manifest)
            if shown is None:
                withheld += 1
                continue
            self._put(f"{BLOBS}{sha.hex()}", shown)
            count += 1
        return count, withheld, gone

    def _lines(self, name: str, values: Iterable[Any]) -> None:
        entry = _Entry(self._archive, name, self._files)
        for value in values:
            entry.line(value)
        entry.close()

    def _put(self, name: str, data: bytes) -> None:
        entry = _Entry(self._archive, name, self._files)
        entry.write(data)
        entry.close()


def _is_base(manifest: bytes, digest: bytes) -> bool:
    return b'"base":"' + digest + b'"' in manifest


def _embedded(body: bytes) -> dict[str, Any]:
    """A body inside its line: as it is where that is JSON, so that its very bytes can be taken out again."""
    try:
        body.decode()
        msgspec.json.decode(body)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return {"body_b64": base64.b64encode(body).decode()}
    if b"\n" in body:
        return {"body_b64": base64.b64encode(body).decode()}
    return {"body": msgspec.Raw(body)}


def _schema_digest() -> str:
    from loopd_protocol.schema import digest  # noqa: PLC0415  (builds the whole schema)

    return digest()


def sha256_of(path: Path) -> tuple[str, int]:
    """Digest and size of a file."""
    found, size = sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
            size += len(piece)
    return found.hexdigest(), size
