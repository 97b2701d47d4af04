"""An attacker with write access to a data folder, who knows the format and has no key: rewrites what happened.

Everything is computed anew that can be: both chains from the changed row on, the events that tell of anchors and the stored
anchors, under a key of their own that is published beside the daemon's.
"""

from __future__ import annotations

import base64
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from loopd.store import chain
from loopd.store.anchors import KEY_FILE, Signer
from loopd.store.rows import ROW_COLUMNS, Row


def rewrite(data: Path, change: Callable[[Row], Row]) -> int:
    """Change rows of a stopped daemon's journal and rechain it; returns the first `seq` that changed.

    Args:
        change: a row → what it is to be.
    """
    (data / KEY_FILE).unlink(missing_ok=True)
    signer = Signer.of_folder(data)  # the attacker's own, published beside the others
    with contextlib.closing(sqlite3.connect(data / "journal.sqlite", isolation_level=None)) as db:
        (log,) = db.execute("SELECT log_id FROM meta").fetchone()
        rows = [
            Row(*values)
            for values in db.execute(f"SELECT {', '.join(ROW_COLUMNS)} FROM journal ORDER BY seq")
        ]
        db.execute("BEGIN")
        db.execute("DELETE FROM anchor")
        previous = chain.log_genesis(log)
        heads: dict[int, bytes] = {}
        hashes: dict[int, bytes] = {}
        first = 0
        for row in rows:
            new = _retold(row, hashes, signer) if row.kind == "anchor.signed" else change(row)
            if new != row and not first:
                first = row.seq
            h = chain.link(previous, new.digest())
            sh = row.sh
            if row.sid is not None:
                before = heads.get(row.sid) or chain.session_genesis(log, row.sid)
                sh = heads[row.sid] = chain.link(before, new.digest())
            db.execute(
                "UPDATE journal SET body = ?, principal = ?, h = ?, sh = ? WHERE seq = ?",
                (new.body, new.principal, h, sh, row.seq),
            )
            previous = hashes[row.seq] = h
            if row.kind == "anchor.signed":
                said = msgspec.json.decode(new.body or b"")
                db.execute(
                    "INSERT INTO anchor (seq, h, at_ms, key_id, signature) VALUES (?, ?, ?, ?, ?)",
                    (
                        said["seq"],
                        bytes.fromhex(said["h"]),
                        said["at_ms"],
                        said["key"],
                        base64.b64decode(said["sig"]),
                    ),
                )
        db.execute("COMMIT")
    return first


def _retold(row: Row, hashes: dict[int, bytes], signer: Signer) -> Row:
    said = msgspec.json.decode(row.body or b"")
    if hashes[said["seq"]].hex() == said["h"]:
        return row  # from before: the daemon's own signature still fits
    anchor = signer.sign(said["log"], said["seq"], hashes[said["seq"]], said["at_ms"])
    return msgspec.structs.replace(row, body=msgspec.json.encode({**said, **msgspec.to_builtins(anchor)}))
