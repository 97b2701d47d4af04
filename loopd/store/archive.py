"""Archives that `loopd.store.export` wrote, opened.

An archive comes from elsewhere, perhaps from somebody who means harm: its names, sizes, shapes and numbers are checked
before anything is made of them. What it says of itself in `shapes` is checked there.
"""

from __future__ import annotations

import base64
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from loopd.store import export
from loopd.store.archive_shapes import SHAPES, Manifest
from loopd.store.rows import Row
from loopd_protocol.bounds import Label
from loopd_protocol.errors import Refused

UNPACKED_MAX = 64 << 30
UNPACKED_ALWAYS = 64 << 20
RATIO_MAX = 100
"""Real archives unpack to some ten times their size: hashes do not compress. A bomb unpacks to a thousand times."""
LINE_MAX = 64 << 20
BLOB_MAX = 64 << 20
BROKEN = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, KeyError, OSError, EOFError, NotImplementedError, RuntimeError,
)  # fmt: skip
"""What a damaged zip may raise; `RecursionError`, which JSON that is too deep raises, is one of the last."""
SMALL_MAX = 64 << 20
_COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_BLOB_NAME = re.compile(r"blobs/[0-9a-f]{64}")
_NAMES = frozenset(
    {
        export.MANIFEST, export.SIGNATURE, export.JOURNAL, export.SESSIONS, export.BOOTS, export.ANCHORS,
        export.LINKS, "README.txt",
    }
)  # fmt: skip


class Line(msgspec.Struct, kw_only=True):
    """A row of the journal as an archive has it."""

    seq: int
    sid: int | None
    ss: int
    epoch: int
    boot: int
    at_ms: int
    kind: Label
    kv: int
    turn: int | None
    cause_seq: int | None
    principal: Label
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

    Args:
        called: what messages call it, when its path is nobody's business.

    Attributes:
        manifest: what it says of itself.

    Raises:
        Refused: `invalid` when the file is no export of loopd, or of a newer format.
    """

    def __init__(self, path: Path, *, called: str | None = None) -> None:
        self.path = path
        self._reading: list[IO[bytes]] = []
        name = called or repr(str(path))
        try:
            self._zip = zipfile.ZipFile(path)
        except (*BROKEN, ValueError) as error:
            raise Refused("invalid", f"{name} is no export of loopd: {error}") from error
        try:
            self._check(name)
        except BaseException:
            self._zip.close()
            raise

    def _check(self, name: str) -> None:
        try:
            infos = self._zip.infolist()
            names = [info.filename for info in infos]
            strange = [each for each in names if each not in _NAMES and not _BLOB_NAME.fullmatch(each)]
            if strange or len(set(names)) != len(names):
                raise Refused("invalid", f"{name} holds {strange[:3] or 'a name twice'}; expected an export")
            if any(info.compress_type not in _COMPRESSIONS for info in infos):
                raise Refused(
                    "invalid", f"{name} is compressed in another way than exports are; expected deflate"
                )
            unpacked, most = sum(info.file_size for info in infos), _most(self.path.stat().st_size)
            if unpacked > most:
                raise Refused("invalid", f"{name} unpacks to {unpacked} bytes; at most {most} are expected")
            self.manifest_bytes = self._small(export.MANIFEST)
            self.manifest: dict[str, Any] = msgspec.json.decode(self.manifest_bytes, type=dict[str, Any])
        except (*BROKEN, msgspec.MsgspecError, ValueError) as error:
            raise Refused("invalid", f"{name} is no export of loopd: {error}") from error
        if self.manifest.get("format") != export.NAME or self.manifest.get("v") != export.FORMAT:
            found = f"{self.manifest.get('format')!r} {self.manifest.get('v')!r}"
            raise Refused("invalid", f"{name} is {found}; expected {export.NAME!r} {export.FORMAT}")
        try:
            msgspec.convert(self.manifest, Manifest)
        except msgspec.MsgspecError as error:
            raise Refused("invalid", f"{name}, {export.MANIFEST}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._reading:  # of lines that nobody read to the end
            file.close()
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
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise Refused("corrupt", f"{export.JOURNAL}, line {number}: {error}") from error

    def lines(self, name: str) -> Iterator[bytes]:
        """Lines of a file."""
        try:
            with self._zip.open(name) as file:
                self._reading.append(file)
                while line := file.readline(LINE_MAX + 1):
                    if len(line) > LINE_MAX:
                        raise Refused("invalid", f"{name} has a line of over {LINE_MAX} bytes")
                    yield line
        except BROKEN as error:
            raise Refused("corrupt", f"{name} cannot be read: {error}") from error

    def values(self, name: str) -> list[dict[str, Any]]:
        """A small file of JSON lines, of the shape that is expected of it.

        Raises:
            Refused: `corrupt`, naming the line.
        """
        found: list[dict[str, Any]] = []
        shape = SHAPES[name]
        for number, line in enumerate(self._small(name).splitlines(), 1):
            try:
                value = msgspec.json.decode(line, type=dict[str, Any])
                msgspec.convert(value, shape)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise Refused("corrupt", f"{name}, line {number}: {error}") from error
            found.append(value)
        return found

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return name in self._zip.namelist()

    def blob_names(self) -> list[str]:
        """Digests (hex) of the content in it."""
        return [
            name.removeprefix(export.BLOBS) for name in self._zip.namelist() if name.startswith(export.BLOBS)
        ]

    def blob(self, sha: str) -> bytes:
        """Content by its name.

        Raises:
            Refused: `corrupt` when it is larger than any content is.
        """
        return self._small(f"{export.BLOBS}{sha}", BLOB_MAX, "corrupt")

    def digest_of(self, name: str) -> tuple[str, int]:
        """SHA-256 and size of a file in it."""
        found, size = sha256(), 0
        with self._zip.open(name) as file:
            while piece := file.read(1 << 20):
                found.update(piece)
                size += len(piece)
        return found.hexdigest(), size

    def _small(self, name: str, most: int = SMALL_MAX, code: str = "invalid") -> bytes:
        size = self._zip.getinfo(name).file_size
        if size > most:
            raise Refused(code, f"{name} has {size} bytes; at most {most} are expected")
        return self._zip.read(name)

    def signature(self) -> dict[str, Any] | None:
        """What signs the manifest, if anything does."""
        try:
            return msgspec.json.decode(self._small(export.SIGNATURE), type=dict[str, Any])
        except (*BROKEN, msgspec.MsgspecError, ValueError):
            return None


def _most(size: int) -> int:
    return min(UNPACKED_MAX, max(UNPACKED_ALWAYS, RATIO_MAX * size))
