r"""Anchors: signed heads of the log, kept in the database and told outside.

The chain proves that what is there is what was written; it cannot tell that its end is missing, or that all
of it was written anew. An anchor that left the machine can: the log must still contain its hash. Signed with
Ed25519, so whoever holds the public key can check one and only the daemon can make one (with a shared secret,
the auditor could)::

    signed = "loopd anchor 1\n" ‖ log ‖ "\n" ‖ seq ‖ "\n" ‖ hash in hex ‖ "\n" ‖ at_ms ‖ "\n"
"""

from __future__ import annotations

import base64
import binascii
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loopd.store.request import Findings
from loopd_protocol.errors import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "anchor.key"
PUBLIC_FOLDER = "anchor-keys"
KEY_ID_CHARS = 16
PAGE = 1_000
LINE_CHARS_MAX = 100_000


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """The head of log `log` was `seq` with hash `h` (hex) at `at_ms`; `sig` is base64."""

    log: str
    seq: int
    h: str
    at_ms: int
    key: str
    sig: str

    def signed(self) -> bytes:
        """The bytes under the signature."""
        return signed_bytes(self.log, self.seq, self.h, self.at_ms)


def signed_bytes(log: str, seq: int, h: str, at_ms: int) -> bytes:
    """What a signature covers."""
    return f"loopd anchor 1\n{log}\n{seq}\n{h}\n{at_ms}\n".encode()


def key_id(public: bytes) -> str:
    """Name of a public key: the beginning of its digest."""
    return sha256(public).hexdigest()[:KEY_ID_CHARS]


class Signer:
    """Holds the private key of one data folder.

    Attributes:
        key: name of the key; `public`: its 32 raw bytes.
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()
        self.key = key_id(self.public)

    @classmethod
    def of_folder(cls, folder: Path) -> Signer:
        """The key of a data folder; made when there is none.

        Raises:
            Refused: `corrupt` when the file holds no Ed25519 key, `storage_readonly` when it cannot be written.
        """
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  (20 ms at start only)
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

        path = folder / KEY_FILE
        try:
            if path.exists():
                loaded = serialization.load_pem_private_key(path.read_bytes(), password=None)
                if not isinstance(loaded, Ed25519PrivateKey):
                    raise Refused("corrupt", f"{str(path)!r} holds no Ed25519 key; expected what loopd wrote")
                signer = cls(loaded)
            else:
                signer = cls(Ed25519PrivateKey.generate())
                signer._keep(path)
            signer._publish(folder / PUBLIC_FOLDER)
        except (OSError, ValueError) as error:
            code = "storage_readonly" if isinstance(error, OSError) else "corrupt"
            raise Refused(code, f"the key of the anchors, {str(path)!r}: {error}") from error
        return signer

    def _keep(self, path: Path) -> None:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        pem = self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(pem)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)

    def _publish(self, folder: Path) -> None:
        path = folder / f"{self.key}.pub"
        if path.exists():
            return
        folder.mkdir(mode=0o755, exist_ok=True)
        path.write_text(self.public.hex() + "\n", encoding="ascii")

    def sign(self, log: str, seq: int, h: bytes, at_ms: int) -> Anchor:
        """Sign a head."""
        signature = self._private.sign(signed_bytes(log, seq, h.hex(), at_ms))
        return Anchor(
            log=log, seq=seq, h=h.hex(), at_ms=at_ms, key=self.key, sig=base64.b64encode(signature).decode()
        )

    def sign_bytes(self, data: bytes) -> bytes:
        """Sign something else of ours; callers begin it with words of its own."""
        return self._private.sign(data)


def public_keys(folder: Path) -> dict[str, bytes]:
    """All public keys of a data folder, by name; what is no key is left out."""
    found: dict[str, bytes] = {}
    if (folder / PUBLIC_FOLDER).is_dir():
        for path in sorted((folder / PUBLIC_FOLDER).glob("*.pub")):
            try:
                raw = bytes.fromhex(path.read_text("ascii").strip())
            except (OSError, ValueError):
                continue
            if len(raw) == 32 and key_id(raw) == path.stem:
                found[path.stem] = raw
    return found


def signature_holds(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether a signature is that of the key on these bytes."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


# -- in the database ------------------------------------------------------------------------------


def add(connection: sqlite3.Connection, sign: Callable[[], Anchor | None]) -> Anchor | None:
    """Store an anchor of the head, on the writer's connection; None when the head has one already."""
    anchor = sign()
    if anchor is None or anchor.seq == 0:
        return None
    cursor = connection.execute(
        "INSERT INTO anchor (seq, h, at_ms, key_id, signature) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (anchor.seq, bytes.fromhex(anchor.h), anchor.at_ms, anchor.key, base64.b64decode(anchor.sig)),
    )
    return anchor if cursor.rowcount else None


def stored(connection: sqlite3.Connection, log_id: str, *, after: int, limit: int) -> list[dict[str, Any]]:
    """Anchors behind `after`, in order of `seq`, as they are handed out."""
    if not _has_table(connection):
        return []
    rows = connection.execute(
        "SELECT seq, h, at_ms, key_id, signature FROM anchor WHERE seq > ? ORDER BY seq LIMIT ?",
        (after, limit),
    )
    return [msgspec.to_builtins(_anchor(log_id, row)) for row in rows]


def newest(connection: sqlite3.Connection) -> int:
    """`seq` of the newest anchor, 0 for none."""
    row = connection.execute("SELECT coalesce(max(seq), 0) FROM anchor").fetchone()
    return int(row[0])


def _anchor(log_id: str, row: tuple[Any, ...]) -> Anchor:
    seq, h, at_ms, key, signature = row
    return Anchor(
        log=log_id, seq=seq, h=h.hex(), at_ms=at_ms, key=key, sig=base64.b64encode(signature).decode()
    )


def _has_table(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'anchor'")
    return found.fetchone() is not None


# -- checking ---------------------------------------------------------------------------------------


def check(
    connection: sqlite3.Connection,
    log_id: str,
    keys: Mapping[str, bytes],
    findings: Findings,
    *,
    given: Iterable[Anchor] | None = None,
) -> dict[str, Any]:
    """Compare the stored anchors, or those that somebody kept elsewhere, with the log.

    An anchor commits to everything up to it. So where one agrees and the next does not, what lies between was written
    anew, and the finding says so.

    Returns:
        `{"checked", "first", "newest", "agreed", "deleted", "keys", "unsigned"}`: `agreed` is the `seq` of the last anchor
        that the log contains as it is, `deleted` counts those whose events went with their month, and `unsigned`
        those whose public key is not known here, so that only their hash was compared.
    """
    source: Iterable[Anchor] = (
        _stored_anchors(connection, log_id) if given is None else sorted(given, key=lambda anchor: anchor.seq)
    )
    checked = unsigned = deleted = agreed = 0
    first = last = None
    used: set[str] = set()
    for anchor in source:
        checked += 1
        first = anchor.seq if first is None else min(first, anchor.seq)
        last = anchor.seq if last is None else max(last, anchor.seq)
        used.add(anchor.key)
        public = keys.get(anchor.key)
        if public is None:
            unsigned += 1
            if given is None and keys:
                what = f"the anchor at seq {anchor.seq} is signed by key {anchor.key!r}, which is not one of this daemon"
                findings.add("anchor", what, seq=anchor.seq)
        elif not signature_fits(anchor, public):
            findings.add(
                "anchor", f"the signature of the anchor at seq {anchor.seq} is wrong", seq=anchor.seq
            )
            continue
        found = _against_log(connection, log_id, anchor, findings, agreed)
        deleted += found is None
        agreed = anchor.seq if found else agreed
    return {
        "checked": checked,
        "first": first,
        "newest": last,
        "agreed": agreed or None,
        "deleted": deleted,
        "keys": sorted(used),
        "unsigned": unsigned,
    }


def not_trusted(given: Iterable[Anchor], trusted: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """Findings on anchors that none of these keys has signed: a log cannot vouch for its own keys."""
    for anchor in given:
        public = trusted.get(anchor.key)
        if public is None:
            what = f"the anchor at seq {anchor.seq} is signed by key {anchor.key!r}, which is not trusted"
        elif not signature_fits(anchor, public):
            what = f"the signature of the anchor at seq {anchor.seq} is wrong"
        else:
            continue
        yield {"check": "anchor", "what": what, "seq": anchor.seq}


def signature_fits(anchor: Anchor, public: bytes) -> bool:
    """Whether an anchor is signed by this key."""
    try:
        signature = base64.b64decode(anchor.sig, validate=True)
    except (binascii.Error, ValueError):
        return False
    return signature_holds(public, signature, anchor.signed())


def _against_log(
    connection: sqlite3.Connection, log_id: str, anchor: Anchor, findings: Findings, agreed: int
) -> bool | None:
    """Whether the log still contains what was anchored; None when it was deleted with its month."""
    if anchor.log != log_id:
        findings.add("anchor", f"the anchor is of log {anchor.log!r}; this is {log_id!r}", seq=anchor.seq)
        return False
    row = connection.execute("SELECT h FROM journal WHERE seq = ?", (anchor.seq,)).fetchone()
    if row is None:
        row = _sealed(connection, anchor.seq)
    if row is None:
        head = connection.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone()[0]
        if anchor.seq < _first(connection):
            return None  # deleted with a whole segment, and no end of one: nothing to compare
        ends = f"; the log ends with {head}: its end is missing" if anchor.seq > head else ""
        findings.add("anchor", f"seq {anchor.seq} was anchored and is missing{ends}", seq=anchor.seq)
        return False
    if row[0].hex() != anchor.h.lower():
        what = written_anew(anchor, row[0].hex(), agreed)
        findings.add("anchor", what, seq=anchor.seq, after=agreed)
        return False
    return True


def written_anew(anchor: Anchor, found: str, agreed: int) -> str:
    """What it means that an event has another hash than its anchor, when `agreed` is the last anchor that fits."""
    since = f"behind seq {agreed}, the last anchor that agrees," if agreed else "from its beginning on,"
    return (
        f"seq {anchor.seq} has hash {found}; the anchor of {stamp(anchor.at_ms)} has {anchor.h}: "
        f"the log was written anew {since} at or before seq {anchor.seq}"
    )


def stamp(at_ms: int) -> str:
    """A moment as people and machines read it (UTC)."""
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _first(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT coalesce(min(seq), 0) FROM journal").fetchone()[0])


def _sealed(connection: sqlite3.Connection, seq: int) -> tuple[bytes] | None:
    """The hash at the end of a segment whose rows were deleted."""
    row = connection.execute(
        "SELECT head_h FROM segment WHERE last_seq = ? AND deleted_ms IS NOT NULL", (seq,)
    ).fetchone()
    return None if row is None else (row[0],)


def _stored_anchors(connection: sqlite3.Connection, log_id: str) -> Iterator[Anchor]:
    if not _has_table(connection):
        return
    after = -1
    while True:
        rows = connection.execute(
            "SELECT seq, h, at_ms, key_id, signature FROM anchor WHERE seq > ? ORDER BY seq LIMIT ?",
            (after, PAGE),
        ).fetchall()
        for row in rows:
            yield _anchor(log_id, row)
        if len(rows) < PAGE:
            return
        after = rows[-1][0]


def parsed(lines: Iterable[str]) -> Iterator[Anchor]:
    """Anchors from a file, one JSON object a line.

    `anchor export` writes them as they are; a webhook or a stream tells of them in an event (`b`), the daemon's log lines
    have them under `anchor`. What speaks of something else is passed over.

    Raises:
        Refused: `invalid` for a line that speaks of an anchor and is none.
    """
    for number, line in enumerate(lines, 1):
        begin = line.find("{")
        if begin < 0 or '"sig"' not in line:
            continue
        try:
            found = msgspec.json.decode(line[begin : begin + LINE_CHARS_MAX].strip())
            for name in ("anchor", "b"):
                if isinstance(found, dict) and isinstance(found.get(name), dict):
                    found = found[name]
            yield msgspec.convert(found, Anchor)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Refused("invalid", f"line {number} is no anchor: {error}") from error
