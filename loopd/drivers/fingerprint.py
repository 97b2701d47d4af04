"""State fingerprint of a workspace: did anything change that the agent can change?

Content-sensitive and cheap: every path that a tool wrote or that git reports as changed is hashed,
and again only when its size, mtime or inode moved; the digests are combined by XOR. Where there is no
git, the whole (small) tree is looked at. Anything that cannot be known is None, never "no change".

git's listing is renewed when a shell command may have changed files, but never so often that it takes
more than 2 % of the time; in between the state is unknown. After two listings of more than 150 ms
git is given up for the session, and so it is in a repository with filters (`clean`, `process`) of its own: git would run
them in the daemon's name, outside of any tool call.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import subprocess
import time
import weakref
from pathlib import Path

import anyio
import anyio.to_thread

from loopd.drivers.host import Monotonic
from loopd.drivers.run_as import RunAs, spawn_as

SLOW_S = 0.15
SHARE = 50
PATHS_MAX = 5_000
TREE_MAX = 2_000
HASH_BYTES = 8 * 1024 * 1024
"""A larger file counts by size and mtime alone."""
KEPT_MIN = 64
_SKIPPED = frozenset(
    {".git", ".hg", "node_modules", ".venv", "__pycache__", ".cache", ".mypy_cache", ".ruff_cache"}
)


_Stamp = tuple[int, int, int, int]


class Digests:
    """What the files of one workspace were when they were last looked at: stamp and digest of each path.

    Sessions that share a workspace share them: with 2,000 files they take about 1 MB. They go with the last
    sensor of the workspace, and those of paths that are no longer listed go when they are the greater part.
    """

    def __init__(self) -> None:
        self.known: dict[str, tuple[_Stamp, int]] = {}

    def keep_only(self, paths: set[str]) -> None:
        """Forget the others, if it is worth it: a build may make thousands of files and delete them again."""
        if len(self.known) > 2 * len(paths) + KEPT_MIN:
            self.known = {path: seen for path, seen in list(self.known.items()) if path in paths}


_shared: weakref.WeakValueDictionary[tuple[str, str | None], Digests] = weakref.WeakValueDictionary()


class WorkspaceSensor:
    """Watches one workspace. `wrote` and `ran_shell` tell it what the tools did."""

    def __init__(
        self, root: Path, monotonic: Monotonic = time.monotonic, *, run_as: RunAs | None = None
    ) -> None:
        self._root = root
        self._run_as = run_as
        self._monotonic = monotonic
        self._written: set[str] = set()
        owner = (os.fspath(root), None if run_as is None else run_as.name)
        self._seen = _shared.setdefault(owner, Digests())
        self._listed: list[str] | None = None
        self._head = ""
        self._stale = True
        self._slow = 0
        self._next_s = 0.0
        self._given_up = False

    def wrote(self, real: Path) -> None:
        """A tool replaced this file."""
        if len(self._written) < PATHS_MAX:
            self._written.add(os.fspath(real))
        else:
            self._given_up = True

    def ran_shell(self) -> None:
        """A command ran: any file may have changed."""
        self._stale = True

    async def read(self) -> str | None:
        """The fingerprint now (64 hex digits), or None for unknown. Never raises but for cancellation."""
        if self._given_up:
            return None
        try:
            return await anyio.to_thread.run_sync(
                self._read if self._run_as is None else functools.partial(self._run_as.within, self._read)
            )
        except (OSError, subprocess.SubprocessError, ValueError):
            return None

    def _read(self) -> str | None:
        paths: list[str] | None
        paths = self._git_paths() if (self._root / ".git").exists() else self._tree()
        if paths is None:
            return None
        combined = int.from_bytes(hashlib.sha256(self._head.encode()).digest(), "big")
        every = {*paths, *self._written}
        for path in every:
            combined ^= self._digest(path)
        self._seen.keep_only(every)
        return f"{combined:064x}"

    def _git_paths(self) -> list[str] | None:
        if not self._stale and self._listed is not None:
            return self._listed
        if self._monotonic() < self._next_s:
            return None
        started = self._monotonic()
        filters = self._git("config", "--name-only", "--get-regexp", r"^filter\.").returncode
        if filters != 1:  # 1: there are none
            # `status` would run their commands, and the agent can write the repository's configuration.
            self._given_up = filters == 0
            return None
        done = self._git(
            "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--no-renames",
            "--ignore-submodules=dirty",
        )  # fmt: skip
        took = self._monotonic() - started
        self._next_s = started + took + SHARE * took
        if took > SLOW_S:
            self._slow += 1
            self._given_up = self._slow >= 2
        if done.returncode != 0:
            return None
        listed: list[str] = []
        for entry in done.stdout.split(b"\0"):
            line = os.fsdecode(entry)
            if line.startswith("# branch.oid "):
                self._head = line
            elif line[:2] in {"1 ", "u "}:
                listed.append(os.path.join(self._root, line.split(" ", 8 if line[0] == "1" else 10)[-1]))
            elif line[:2] == "? ":
                listed.append(os.path.join(self._root, line[2:]))
        if len(listed) > PATHS_MAX:
            return None
        self._listed, self._stale = listed, False
        return listed

    def _git(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Run git so that no setting of the repository, which belongs to the agent, runs or fetches anything."""
        return subprocess.run(
            ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *words],
            cwd=self._root,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "LC_ALL": "C",
                 "GIT_CEILING_DIRECTORIES": os.fspath(self._root.parent), "GIT_CONFIG_NOSYSTEM": "1",
                 "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2,
            check=False,
            **spawn_as(self._run_as),
        )  # fmt: skip

    def _tree(self) -> list[str] | None:
        found: list[str] = []
        for folder, folders, files in os.walk(self._root):
            folders[:] = [name for name in folders if name not in _SKIPPED]
            found.extend(os.path.join(folder, name) for name in files)
            if len(found) > TREE_MAX:
                return None
        return found

    def _digest(self, path: str) -> int:
        """Of path and content; a missing file counts like any other state."""
        try:
            found = os.lstat(path)
        except OSError:
            self._seen.known.pop(path, None)
            return _number(path, b"missing")
        key = (found.st_size, found.st_mtime_ns, found.st_ino, found.st_mode)
        seen = self._seen.known.get(path)
        if seen is not None and seen[0] == key:
            return seen[1]
        if stat.S_ISLNK(found.st_mode):
            content = b"link " + os.fsencode(os.readlink(path))
        elif not stat.S_ISREG(found.st_mode):
            content = b"special"
        elif found.st_size > HASH_BYTES:
            content = b"large %d %d" % (found.st_size, found.st_mtime_ns)
        else:
            with open(path, "rb") as stream:
                content = (
                    b"file %o " % (found.st_mode & 0o111) + hashlib.sha256(stream.read(HASH_BYTES)).digest()
                )
        digest = _number(path, content)
        self._seen.known[path] = (key, digest)
        return digest


def _number(path: str, content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(os.fsencode(path) + b"\0" + content).digest(), "big")
