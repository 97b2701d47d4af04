"""Imported archives: each is kept as it came, beside a read-only database made from it.

imports/<archive>.zip      the evidence: `verify` of an imported session reads this
imports/<archive>.sqlite   its rows, blobs and projections, to be read like a journal
imports/<archive>.json     which sessions it holds and what they are called here

A session is imported once its `json` is in the folder: what that stands on is on the disk before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from loopd.store.anchors import Anchor
from loopd.store.archive import Archive
from loopd.store.archive_base import importable, into_database
from loopd.store.archive_check import verify
from loopd.store.export import sha256_of
from loopd.store.sqlite import SqliteStore
from loopd_protocol.errors import Refused
from loopd_protocol.forensic_commands import AnchorRecord

OPEN_MAX = 4
ARCHIVE_CHARS = 32


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """One imported session.

    Attributes:
        sid, name: what it is called here.
        log, of, num: its own log, its id there, and its number.
        archive: SHA-256 of the archive it came in.
        redaction: profile by which content was replaced when it was exported.
    """

    sid: str
    name: str
    log: str
    of: str
    num: int
    status: str
    first_seq: int
    last_seq: int
    events: int
    head_hash: str
    redaction: str
    archive: str
    at_ms: int
    by: str


class Shelf:
    """All imported sessions of one data folder.

    Args:
        folder: where they are kept; made with the first one.
        keys: public keys that archives may be signed with and are trusted.
    """

    def __init__(self, folder: Path, keys: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._keys = keys
        self.entries: dict[str, Imported] = {}
        self._open: OrderedDict[str, SqliteStore] = OrderedDict()
        self._changing = anyio.Lock()

    def load(self) -> None:
        """Look what is there; what cannot be read is left out."""
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                for entry in msgspec.json.decode(path.read_bytes(), type=list[Imported]):
                    self.entries[entry.sid] = entry

    def find(self, ref: str) -> Imported | None:
        """By its id or its name here."""
        found = self.entries.get(ref)
        return found or next((entry for entry in self.entries.values() if entry.name == ref), None)

    async def store_of(self, entry: Imported) -> SqliteStore:
        """The database of an entry, open for reading."""
        key = entry.archive[:ARCHIVE_CHARS]
        if key not in self._open:
            self._open[key] = await SqliteStore.open(
                self._folder / f"{key}.sqlite", boot="import", readonly=True
            )
            while len(self._open) > OPEN_MAX:
                _, oldest = self._open.popitem(last=False)
                await oldest.aclose()
        self._open.move_to_end(key)
        return self._open[key]

    async def verify(
        self,
        entry: Imported,
        *,
        suspended_since: int | None = None,
        given: Sequence[AnchorRecord] | None = None,
    ) -> dict[str, Any]:
        """Verify the archive that an entry came in, as it lies there."""
        kept = (
            None if given is None else tuple(msgspec.convert(msgspec.to_builtins(a), Anchor) for a in given)
        )
        path = self._folder / f"{entry.archive[:ARCHIVE_CHARS]}.zip"

        def work() -> dict[str, Any]:
            found, _ = sha256_of(path)
            with Archive(path, called="the archive") as archive:
                proof = verify(archive, keys=self._keys, given=kept, suspended_since=suspended_since)
            proof["archive"] = f"sha256:{entry.archive}"
            if found != entry.archive:
                what = f"the archive has digest {found}; imported was {entry.archive}"
                proof["findings"].append({"check": "archive", "what": what})
                proof["ok"] = False
            return {**proof, "sid": entry.sid}

        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except OSError as error:
            raise Refused("corrupt", f"the archive of {entry.name!r} cannot be read: {error}") from error

    async def check_in(
        self, path: Path, *, by: str, now_ms: int, taken: Callable[[str], bool]
    ) -> tuple[list[Imported], bool]:
        """Verify an archive and add its sessions; the file is moved away.

        One at a time: names are chosen from what is here, and the same archive may come twice at once.

        Returns:
            The sessions, and whether they were all there already.

        Raises:
            Refused: `corrupt` with the first finding, `invalid` for what is no whole session.
        """
        async with self._changing:
            made, dup = await anyio.to_thread.run_sync(self._check_in, path, by, now_ms, taken)
            for entry in made:
                self.entries[entry.sid] = entry
        return made, dup

    def _check_in(
        self, path: Path, by: str, now_ms: int, taken: Callable[[str], bool]
    ) -> tuple[list[Imported], bool]:
        digest, _ = sha256_of(path)
        with Archive(path, called="the archive") as archive:
            proof = verify(archive, keys=self._keys)
            if not proof["ok"]:
                first = proof["findings"][0]
                more = f" ({len(proof['findings'])} findings)" if len(proof["findings"]) > 1 else ""
                raise Refused(
                    "corrupt", f"the archive does not verify: {first['check']}: {first['what']}{more}"
                )
            said = importable(archive)
            known = [self._known(archive, each) for each in said]
            if said and all(known):
                return [entry for entry in known if entry is not None], True
            fresh = [each for each, entry in zip(said, known, strict=True) if entry is None]
            entries = self._named(archive, fresh, digest, by, now_ms, taken)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            _force(self._folder.parent)
            key = digest[:ARCHIVE_CHARS]
            database = self._folder / f"{key}.sqlite"
            temporary = database.with_suffix(".making")
            temporary.unlink(missing_ok=True)
            into_database(archive, temporary, {entry.num: (entry.sid, entry.name) for entry in entries})
            temporary.chmod(0o600)
            _force(temporary)
            os.replace(temporary, database)
        evidence = self._folder / f"{key}.zip"
        shutil.move(path, evidence)
        _force(evidence)
        _force(self._folder)
        self._write(key, entries)
        return entries, False  # those that were here before stay as they are

    def _known(self, archive: Archive, said: Mapping[str, Any]) -> Imported | None:
        profile = str((archive.manifest.get("redaction") or {}).get("profile"))
        return self.entries.get(_sid(archive.log, said, profile))

    def _named(  # noqa: PLR0917
        self,
        archive: Archive,
        said: list[dict[str, Any]],
        digest: str,
        by: str,
        now_ms: int,
        taken: Callable[[str], bool],
    ) -> list[Imported]:
        profile = str((archive.manifest.get("redaction") or {}).get("profile"))
        counts: dict[int, int] = {}
        for row in archive.rows():
            if row.sid is not None:
                counts[row.sid] = counts.get(row.sid, 0) + 1
        names = {entry.name for entry in self.entries.values()}
        entries = []
        for each in said:
            name, number = str(each["name"])[:48], 1
            while name in names or taken(name):
                number += 1
                name = f"{str(each['name'])[:48]}-{number}"
            names.add(name)
            entries.append(
                Imported(
                    sid=_sid(archive.log, each, profile),
                    name=name,
                    log=archive.log,
                    of=str(each["sid"]),
                    num=int(each["num"]),
                    status=str(each["status"]),
                    first_seq=int(each["first"]["seq"]),
                    last_seq=int(each["last"]["seq"]),
                    events=counts.get(int(each["num"]), 0),
                    head_hash=str(each["head_hash"]),
                    redaction=profile,
                    archive=digest,
                    at_ms=now_ms,
                    by=by,
                )
            )
        return entries

    def _write(self, key: str, entries: list[Imported]) -> None:
        path = self._folder / f"{key}.json"
        temporary = path.with_suffix(".tmp")
        temporary.touch(mode=0o600)
        temporary.write_bytes(msgspec.json.encode(entries))
        _force(temporary)
        os.replace(temporary, path)
        _force(self._folder)

    async def drop(self, entry: Imported) -> None:
        """Forget an entry, and its files with the last session of its archive."""
        async with self._changing:
            key = entry.archive[:ARCHIVE_CHARS]
            left = [
                other
                for other in self.entries.values()
                if other.archive == entry.archive and other.sid != entry.sid
            ]
            if left:
                self._write(key, left)
            else:
                (self._folder / f"{key}.json").unlink(missing_ok=True)
            self.entries.pop(entry.sid, None)  # from here on nobody opens it
            if left:
                return
            store = self._open.pop(key, None)
            if store is not None:
                await store.aclose()
            for suffix in (".sqlite", ".zip"):
                (self._folder / f"{key}{suffix}").unlink(missing_ok=True)

    async def aclose(self) -> None:
        """Close the databases."""
        while self._open:
            _, store = self._open.popitem()
            await store.aclose()


def _sid(log: str, said: Mapping[str, Any], profile: str) -> str:
    """The same session up to the same event, exported by the same profile, has the same id here."""
    parts = "\n".join((log, str(said["sid"]), str(said["head_hash"]), profile))
    return f"imp_{sha256(parts.encode()).hexdigest()[:12]}"


def _force(path: Path) -> None:
    """A file, or which files there are in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
