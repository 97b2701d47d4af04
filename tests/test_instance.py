"""One daemon for each data folder, whatever happens to the lock's file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from loopd.instance import LOCK_NAME, InstanceLock
from loopd_protocol.errors import Refused

TAKE = """
import sys
from pathlib import Path
from loopd.instance import InstanceLock
from loopd_protocol.errors import Refused
try:
    with InstanceLock(Path(sys.argv[1])):
        print("taken")
except Refused as refused:
    print(refused.code, refused.message)
"""


def by_another_process(data: Path, **more: object) -> str:
    made = subprocess.run(
        [sys.executable, "-c", TAKE, str(data)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        **more,  # type: ignore[call-overload]
    )
    assert made.returncode == 0, made.stderr
    return str(made.stdout.strip())


def test_a_folder_that_is_held_is_refused_and_its_owner_named(tmp_path: Path) -> None:
    with InstanceLock(tmp_path):
        said = by_another_process(tmp_path)
        assert said.startswith("conflict")
        assert f"pid {os.getpid()}" in said
    assert by_another_process(tmp_path) == "taken"


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_folder_stays_held_when_the_file_of_its_lock_is_gone(tmp_path: Path, how: str) -> None:
    with InstanceLock(tmp_path):
        (tmp_path / LOCK_NAME).unlink()
        if how == "replaced":
            (tmp_path / LOCK_NAME).touch()
        assert by_another_process(tmp_path).startswith("conflict")
    assert by_another_process(tmp_path) == "taken"


def test_a_lock_is_taken_on_a_disk_that_takes_no_byte(tmp_path: Path) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    # Only that the pid is not in it: the daemon has to start, for it frees its ballast.
    assert by_another_process(tmp_path, preexec_fn=full) == "taken"


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(Refused) as caught, InstanceLock(tmp_path / "data"):
        pass
    assert caught.value.code == "storage_readonly"
