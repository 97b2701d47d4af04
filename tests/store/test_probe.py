"""Looking whether the storage takes writes again must meet the disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from loopd.store import opening


def test_a_probe_writes_to_the_disk_and_leaves_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.sqlite")
    connection = opening.connect(path)
    try:
        ledger, _ = opening.prepare(connection, boot="b", now_ms=1, max_bytes=None)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = list(connection.iterdump())
        ledger.probe(4_096)
        # Frames in the log: it would have met a full disk or an error of the device.
        assert connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1] > 0
        assert list(connection.iterdump()) == before
        connection.execute("PRAGMA query_only = ON")
        with pytest.raises(sqlite3.OperationalError):
            ledger.probe(4_096)
    finally:
        connection.close()
