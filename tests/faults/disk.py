"""Disks that fail: the preloaded shim, and damage done to copies of a database."""

from __future__ import annotations

import functools
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
WAL_HEADER, FRAME_HEADER = 32, 24


@functools.cache
def shim() -> Path | None:
    """The compiled shim, or None where there is no C compiler or no LD_PRELOAD."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not Path("/proc/self/fd").exists():
        return None
    out = (
        Path(tempfile.gettempdir())
        / f"loopd-fault-shim-{os.getuid()}-{int((HERE / 'shim.c').stat().st_mtime)}.so"
    )
    if not out.exists():
        made = out.with_suffix(f".{os.getpid()}")
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / "shim.c"), "-ldl"]
        if subprocess.run(command, capture_output=True, check=False, timeout=60).returncode != 0:
            return None
        os.replace(made, out)
    return out


def copied(folder: Path, to: Path) -> Path:
    """A copy of database and write-ahead log; the copy of the database is returned."""
    to.mkdir(parents=True, exist_ok=True)
    for suffix in ("", "-wal"):
        source = folder / f"journal.sqlite{suffix}"
        target = to / f"journal.sqlite{suffix}"
        target.unlink(missing_ok=True)
        if source.exists():
            shutil.copyfile(source, target)
    (to / "journal.sqlite-shm").unlink(missing_ok=True)
    return to / "journal.sqlite"


def folded(path: Path) -> None:
    """Fold the log of a copy back, so that damage meets the database itself."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def cut_wal(path: Path, dice: random.Random, *, whole_frames: bool) -> str:
    """Cut the tail of the write-ahead log off, as an fsync that lied would; returns what was done."""
    wal = path.with_name(path.name + "-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size <= WAL_HEADER:
        return "no log to cut"
    if whole_frames:
        page = struct.unpack(">I", wal.read_bytes()[8:12])[0]
        frames = (size - WAL_HEADER) // (FRAME_HEADER + page)
        at = WAL_HEADER + dice.randrange(frames + 1) * (FRAME_HEADER + page)
    else:
        at = dice.randrange(size)
    cut_wal_at(path, at)
    return f"log of {size} bytes cut at {at}"


def cut_wal_at(path: Path, size: int) -> None:
    """Cut the write-ahead log of a database to its first `size` bytes; 0: there is none."""
    wal = path.with_name(path.name + "-wal")
    if size:
        os.truncate(wal, size)
    else:
        wal.unlink(missing_ok=True)


def flip(path: Path, dice: random.Random, *, bits: int) -> str:
    """Flip bits of a file, not in its first 100 bytes; returns where."""
    data = bytearray(path.read_bytes())
    if len(data) <= 100:
        return "nothing to flip"
    places = [dice.randrange(100, len(data)) for _ in range(bits)]
    for place in places:
        data[place] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return f"{path.name}: bits of {places}"


def cut_database(path: Path, dice: random.Random) -> str:
    """Cut the database itself."""
    size = path.stat().st_size
    at = dice.randrange(100, size)
    os.truncate(path, at)
    return f"database of {size} bytes cut at {at}"
