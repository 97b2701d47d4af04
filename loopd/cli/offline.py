"""`verify --data DIR`: the same proof from the files alone, for a daemon that is gone or not trusted."""

from __future__ import annotations

from pathlib import Path

from loopd.cli.exits import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

JOURNAL = "journal.sqlite"
SHA256_HEX = 64


def journal_of(where: str) -> Path:
    """The journal's file of a data folder, or the file itself.

    Raises:
        Failure: `not_found`.
    """
    path = Path(where)
    if path.is_dir():
        path /= JOURNAL
    if not path.is_file():
        raise Failure("not_found", f"no journal at {str(path)!r}; expected a data folder of a daemon")
    return path


def proof_of(
    where: str,
    *,
    sid: str | None,
    suspended_since: int | None,
    anchor: str | None = None,
    anchors: tuple[Any, ...] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Verify the journal in a data folder (or a journal's file) without writing to it.

    Args:
        where: the folder or file.
        sid: only this session, by id or name.
        suspended_since: also prove the suspension that was answered with this `seq`.
        anchor: `SEQ:HASH` of an earlier proof's head, which must still be in the log.
        anchors: signed heads that were kept elsewhere.
        progress: told between pages.

    Raises:
        Failure: `not_found` for no journal or no such session, `corrupt` for a file that cannot be read as one.
    """
    from loopd_protocol.errors import Refused

    if anchor is not None:
        number, _, digest = anchor.partition(":")
        if not (number.isascii() and number.isdigit() and len(digest) == SHA256_HEX):
            raise Failure(
                "usage", f"--anchor {anchor!r}; expected SEQ:HASH, as `head` and `head_hash` of a proof"
            )
    path = journal_of(where)
    import anyio

    try:
        proof = anyio.run(_verify, path, sid, suspended_since, anchors, progress)
    except Refused as refused:
        raise Failure(refused.code, refused.message, path=refused.path) from None
    if anchor is not None and (finding := _against(path, anchor)) is not None:
        proof = {**proof, "ok": False, "findings": [*proof["findings"], finding]}
    return proof


def _against(path: Path, anchor: str) -> dict[str, Any] | None:
    """What is wrong with the end of an earlier proof, or None when the log still contains it.

    The chain alone cannot tell that its end is missing, or that all of it was written anew.
    """
    import contextlib

    from loopd.store.opening import connect_reader

    number, _, digest = anchor.partition(":")
    seq = int(number)
    with contextlib.closing(
        connect_reader(path, alone=not path.with_name(f"{path.name}-wal").exists())
    ) as journal:
        row = journal.execute("SELECT h FROM journal WHERE seq = ?", (seq,)).fetchone()
    if row is not None and row[0].hex() == digest.lower():
        return None
    what = (
        f"seq {seq} is missing"
        if row is None
        else f"seq {seq} has hash {row[0].hex()}; the anchor has {digest}"
    )
    return {"check": "anchor", "what": what, "seq": seq}


async def _verify(
    path: Path,
    ref: str | None,
    suspended_since: int | None,
    anchors: tuple[Any, ...] | None,
    progress: Callable[[str, int, int], None] | None,
) -> dict[str, Any]:
    from loopd.core.evolution import evolve
    from loopd.store.anchors import public_keys
    from loopd.store.sqlite import SqliteStore
    from loopd_protocol.errors import Refused

    async with await SqliteStore.open(path, boot="verify", readonly=True) as store:
        store.keys = public_keys(path.parent)
        sid = None
        if ref is not None:
            sid = await store.find_session(ref) or ref
            if await store.load_session(sid) is None:
                raise Refused("not_found", f"no session {ref!r} in this journal")
        proof = await store.verify(
            sid=sid, suspended_since=suspended_since, evolve=evolve, given=anchors, progress=progress
        )
        return {**proof, "file": str(path)}
