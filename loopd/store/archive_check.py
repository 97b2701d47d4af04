"""Verification of an archive: nothing is needed but the file, and the public keys that are trusted."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from loopd import __version__
from loopd.store import anchors, chain, export
from loopd.store.anchors import Anchor
from loopd.store.archive import BROKEN, Archive
from loopd.store.archive_links import Links
from loopd.store.invariants import SessionInvariants
from loopd.store.request import Findings
from loopd.store.rows import Row
from loopd.store.suspension import proof_of
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused


def verify(
    archive: Archive,
    *,
    keys: Mapping[str, bytes] | None = None,
    given: tuple[Anchor, ...] | None = None,
    suspended_since: int | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Verify an archive alone; a proof object like that of `loopd.store.verify`, with `archive` and `signature`.

    Args:
        archive: what to verify.
        keys: public keys that are trusted, by name; without them the archive's own key only shows that it was not
            changed since somebody signed it.
        given: anchors that somebody kept elsewhere.
        suspended_since: also prove the suspension that was answered with this `seq`, as far as the archive goes.
        progress: told now and then.
    """
    findings = Findings()
    manifest = archive.manifest
    check = _Check(archive, findings, progress)
    check.files()
    signature = _signature(archive, dict(keys or {}), findings)
    kept = [msgspec.convert(value, Anchor) for value in _values(archive, export.ANCHORS, findings)]
    check.run({anchor.seq for anchor in (*kept, *(given or ()))})
    blobs = check.blobs()
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
    if check.links is not None:
        result["links"] = check.tied()
    if suspended_since is not None:
        result["proof"] = _suspension(archive, check, suspended_since, findings)
    result["invariants"] = findings.invariants()
    result["findings"] = findings.listed
    if findings.total > len(findings.listed):
        result["findings_total"] = findings.total
    result["ok"] = findings.total == 0
    return result


def _suspension(archive: Archive, check: _Check, since: int, findings: Findings) -> dict[str, Any]:
    """The proof of a suspension; its head is the end of what the archive speaks of, not that of the log.

    Raises:
        Refused: `invalid` when the archive holds several sessions, or begins behind the suspension.
    """
    if len(check.sessions) != 1:
        raise Refused(
            "invalid", f"the archive holds {len(check.sessions)} sessions; a suspension is proven of one"
        )
    (session,) = archive.values(export.SESSIONS)
    if session["first"]["seq"] > since:
        raise Refused(
            "invalid",
            f"the archive begins with seq {session['first']['seq']}; the suspension is of seq {since}",
        )
    head = session["last"]["seq"]
    if check.links is not None and not check.links.broken:
        head = check.links.last  # up to there the session has no others
    rows = (row for row in archive.rows() if row.sid == session["num"])
    return proof_of(rows, since, head, findings, sid=str(session["sid"]))


def _values(archive: Archive, name: str, findings: Findings) -> list[dict[str, Any]]:
    try:
        return archive.values(name)
    except Refused as refused:
        findings.add("file", refused.message, file=name)
        return []
    except BROKEN as error:
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
    except (KeyError, TypeError, ValueError, binascii.Error):
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
        self.agreed: set[int] = set()
        self.links: Links | None = None
        self._anchored: set[int] = set()
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

    def run(self, anchored: set[int]) -> None:
        """All rows: chains, contiguity, invariants, heads, counts; the hashes of anchored events are remembered."""
        manifest, findings = self._archive.manifest, self._findings
        self._anchored = anchored
        whole_log = manifest.get("scope") == "log"
        previous = bytes.fromhex(manifest.get("previous_hash") or "") if whole_log else b""
        expected = int((manifest.get("range") or {}).get("first") or 0)
        total = int((manifest.get("counts") or {}).get("events") or 0)
        for said in _values(self._archive, export.SESSIONS, findings):
            if said["num"] in self.sessions:
                findings.add("file", f"session number {said['num']} is listed twice", file=export.SESSIONS)
            self.sessions[said["num"]] = _Session(self._archive.log, said, findings)
        _values(self._archive, export.BOOTS, findings)
        if manifest.get("links") is not None:
            lines = self._archive.lines(export.LINKS) if self._archive.has(export.LINKS) else iter(())
            self.links = Links(manifest["links"], lines, set(self.sessions), anchored, self._unlinked)
        elif self._archive.has(export.LINKS):
            findings.add("links", "there are links that the manifest does not speak of", file=export.LINKS)
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
                if self.links is not None:
                    self.links.see(row)
                self.last = row
                if self.events % 4_096 == 0:
                    self._progress("events", self.events, total)
            if self.links is not None:
                self.links.finish()
                self.hashes |= self.links.hashes
        except Refused as refused:
            findings.add("file", refused.message, file=export.JOURNAL)
        self._ends(total)

    def _row(self, row: Row, where: dict[str, Any]) -> None:
        if row.blob is not None:
            self._named.add(row.blob)
        if row.body_sha is not None and row.body is not None and not self._redacts and row.oddities():
            self._findings.add("row", "a body was replaced in an archive without redaction", **where)
        if row.seq in self._anchored:
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
            except Refused as refused:
                self._findings.add("blob", refused.message)
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
        """Anchors against the rows that are there, and against what links say of the others."""
        unsigned = compared = agreed = 0
        for anchor in sorted(kept, key=lambda anchor: anchor.seq):
            public = keys.get(anchor.key)
            if public is None:
                unsigned += 1
            elif not anchors.signature_fits(anchor, public):
                self._findings.add(
                    "anchor", f"the signature of the anchor at seq {anchor.seq} is wrong", seq=anchor.seq
                )
                continue
            found = self.hashes.get(anchor.seq)
            if anchor.log != self._archive.log:
                self._findings.add("anchor", f"the anchor is of log {anchor.log!r}", seq=anchor.seq)
            elif found is not None:
                compared += 1
                if found == anchor.h.lower():
                    agreed = anchor.seq
                    self.agreed.add(anchor.seq)
                else:
                    what = anchors.written_anew(anchor, found, agreed)
                    self._findings.add("anchor", what, seq=anchor.seq, after=agreed)
        return {"checked": len(kept), "compared": compared, "agreed": agreed or None, "unsigned": unsigned}

    def _unlinked(self, what: str, seq: int) -> None:
        self._findings.add("links", what, seq=seq)

    def tied(self) -> dict[str, Any]:
        """What the links came to: `tied_to` is the last anchor that agrees with them, if any does."""
        assert self.links is not None
        links = self.links
        within = [seq for seq in self.agreed if links.first <= seq <= links.last and not links.broken]
        return {
            "first": links.first,
            "last": links.last,
            "foreign": links.count,
            "tied_to": max(within, default=None),
        }


class _Session:
    """The chain and the invariants of one session of an archive."""

    def __init__(self, log: str, said: dict[str, Any], findings: Findings) -> None:
        self._last_ss = int(said["last"]["ss"])
        self._head = str(said["head_hash"])
        self._findings = findings
        self._sid, self._num = str(said["sid"]), int(said["num"])
        self._ss = int(said["first"]["ss"]) - 1
        self._previous = bytes.fromhex(said["previous_hash"])
        self._invariants = SessionInvariants(self._sid, findings.add, findings.looked)
        if self._ss == 0 and self._previous != chain.session_genesis(log, self._num):
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
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            findings.add("body", f"{row.kind!r} cannot be decoded: {error}", **where)
            self._invariants.unseen(row.kind, row.turn, row.boot)
            return
        if isinstance(event, ev.SessionCreated) and row.ss == 1:
            told, listed = (event.sid, event.num), (self._sid, self._num)
            if told != listed:
                findings.add(
                    "session", f"the session is listed as {listed}; its first event says {told}", **where
                )
        self._invariants.see(row.seq, row.ss, row.boot, event)

    def finish(self) -> None:
        if self._ss != self._last_ss or self._previous.hex() != self._head:
            what = f"session {self._sid} ends with ss {self._ss}; the archive says {self._last_ss}"
            self._findings.add("head", what, sid=self._sid)
