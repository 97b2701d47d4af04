"""Files, shell and fingerprint of a workspace: what stays inside, what is left behind."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from loopd.drivers.fingerprint import WorkspaceSensor
from loopd.drivers.shell import KEEP_BYTES, OUTPUT_BYTES, Ran, end_leftovers, environment, run_shell
from loopd.drivers.tools import Toolbox
from loopd.drivers.workspace import READ_BYTES, Denied, Workspace
from loopd.testing.driver_suite import RecordingHost
from loopd_protocol.events import ToolCall
from tests.drivers.processes import Pipe

pytestmark = pytest.mark.anyio


async def run(workspace: Path, name: str, **args: Any) -> ToolCall:
    box = Toolbox("ses_tools", str(workspace))
    with anyio.fail_after(20):
        done, ends = await box.run(ToolCall(id="c", name=name, args=args), RecordingHost())
    assert ends is False
    return done


# -- files ------------------------------------------------------------------------------------


async def test_a_file_is_written_read_and_edited(tmp_path: Path) -> None:
    wrote = await run(tmp_path, "write_file", path="deep/er/a.txt", content="one\ntwo\nthree\n")
    assert (wrote.ok, wrote.tool_class) == (True, "edit")
    assert (tmp_path / "deep/er/a.txt").read_text() == "one\ntwo\nthree\n"
    part = await run(tmp_path, "read_file", path="deep/er/a.txt", offset="2", limit=1)
    assert (part.ok, part.result, part.tool_class) == (True, "two\n", "read")
    edited = await run(tmp_path, "edit_file", path="deep/er/a.txt", old="two", new="2")
    assert edited.ok is True
    assert (tmp_path / "deep/er/a.txt").read_text() == "one\n2\nthree\n"


async def test_an_edit_needs_its_text_exactly_once_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x x")
    twice = await run(tmp_path, "edit_file", path="a", old="x", new="y")
    assert (twice.ok, twice.error_class) == (False, "tool")
    assert "occurs 2 times" in str(twice.result)
    none = await run(tmp_path, "edit_file", path="a", old="z", new="y")
    assert "does not occur" in str(none.result)
    assert (tmp_path / "a").read_text() == "x x"
    both = await run(tmp_path, "edit_file", path="a", old="x", new="y", replace_all=True)
    assert both.ok is True
    assert (tmp_path / "a").read_text() == "y y"


async def test_replacing_a_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("old")
    (tmp_path / "run.sh").chmod(0o750)
    await run(tmp_path, "write_file", path="run.sh", content="new")
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o750
    assert os.listdir(tmp_path) == ["run.sh"]


@pytest.fixture
def caged(tmp_path: Path) -> Path:
    """A workspace with a secret beside it and all the ways out."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "dir").symlink_to(tmp_path / "outside")
    (inside / "up").symlink_to("..")
    (inside / "loop").symlink_to("loop")
    return inside


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "/etc/passwd",
        "link",
        "up/secret",
        "dir/new",
        "a/../../secret",
        "./../secret",
        "~/x/../../../secret",
    ],
)
@pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file"])
async def test_no_path_leads_out_of_the_workspace(caged: Path, name: str, path: str) -> None:
    args = {"write_file": {"content": "x"}, "edit_file": {"old": "secret", "new": "x"}}.get(name, {})
    done = await run(caged, name, path=path, **args)
    assert (done.ok, done.error_class) == (False, "denied")
    assert "leads out of the workspace" in str(done.result)
    assert (caged.parent / "secret").read_text() == "secret"
    assert list((caged.parent / "outside").iterdir()) == []


async def test_a_workspace_whose_name_begins_alike_is_outside(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws-other").mkdir()
    (tmp_path / "ws-other" / "f").write_text("x")
    with pytest.raises(Denied):
        Workspace(str(tmp_path / "ws")).read("../ws-other/f")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing", "No such file"),
        (".", "regular file"),
        ("fifo", "regular file"),
        ("loop", ""),
        ("big", "bytes"),
        ("a\0b", "path"),
    ],
)
async def test_what_cannot_be_read_is_said_and_never_waited_for(caged: Path, path: str, words: str) -> None:
    os.mkfifo(caged / "fifo")
    (caged / "big").write_bytes(bytes(READ_BYTES + 1))
    done = await run(caged, "read_file", path=path)
    assert done.ok is False
    assert words in str(done.result)


@pytest.mark.parametrize("path", [".", "fifo", "folder"])
async def test_only_regular_files_are_replaced(caged: Path, path: str) -> None:
    os.mkfifo(caged / "fifo")
    (caged / "folder").mkdir()
    done = await run(caged, "write_file", path=path, content="x")
    assert (done.ok, done.error_class) == (False, "denied")


async def test_a_long_result_is_cut_for_the_model_and_its_digest_is_of_the_whole(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(2_000)) * 5
    (tmp_path / "a").write_text(text)
    done = await run(tmp_path, "read_file", path="a", limit=100_000)
    assert done.result_sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert done.result_bytes == len(text)
    assert done.result is not None
    assert len(done.result) < 2 * KEEP_BYTES + 200
    assert "characters left out" in done.result


# -- shell ------------------------------------------------------------------------------------


async def shell(tmp_path: Path, command: str, timeout_s: float = 20) -> Ran:
    with anyio.fail_after(30):
        return await run_shell(
            command, cwd=str(tmp_path), env=environment("ses_x", os.environ), timeout_s=timeout_s
        )


@pytest.mark.process
async def test_a_command_runs_in_the_workspace_and_gives_output_and_code(tmp_path: Path) -> None:
    done = await run(tmp_path, "shell", command="pwd; echo err >&2; exit 7")
    assert done.result == f"{tmp_path}\nerr\n\n[exit code 7]"
    assert (done.ok, done.exit_code, done.error_class) == (False, 7, "tool")
    silent = await run(tmp_path, "shell", command="true")
    assert (silent.ok, silent.result, silent.result_bytes) == (True, "[exit code 0]", 0)


@pytest.mark.process
async def test_the_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "LOOPD_SOCKET", "AWS_SECRET_ACCESS_KEY", "FOO"):
        monkeypatch.setenv(name, "leaked")
    monkeypatch.setenv("LC_TIME", "C")
    ran = await shell(tmp_path, "env")
    assert b"leaked" not in ran.head
    names = {line.split("=")[0] for line in ran.head.decode().splitlines()}
    assert {"PATH", "LC_TIME", "LOOPD_SESSION", "LOOPD_CALL"} <= names


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [
        "trap '' TERM; (trap '' TERM; sleep 300) & echo $! > pid; sleep 300",
        "setsid sh -c 'echo $$ > pid; exec sleep 300' & sleep 300",
        "env -i sh -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 300; done' & sleep 300",
    ],
    ids=["deaf to TERM", "in a group of its own", "deaf and without the mark"],
)
async def test_a_command_that_takes_too_long_is_ended_with_all_its_processes(
    tmp_path: Path, command: str
) -> None:
    pipe, started, ran = Pipe(tmp_path / "pid"), anyio.current_time(), []

    async def run_it() -> None:
        ran.append(await shell(tmp_path, command, timeout_s=1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_it)
        sleeper = await pipe.process()
    await sleeper.gone()
    assert anyio.current_time() - started < 5
    assert (ran[0].ended, ran[0].exit_code) == ("timeout", None)


@pytest.mark.process
async def test_a_command_leads_a_session_of_its_own_so_that_signals_to_the_daemon_do_not_reach_it(
    tmp_path: Path,
) -> None:
    ran = await shell(tmp_path, "echo $$; cut -d' ' -f5,6 /proc/$$/stat")
    leader, group, session = ran.head.split()
    assert leader == group == session


@pytest.mark.process
async def test_what_leaves_its_group_ends_with_the_command_too(tmp_path: Path) -> None:
    pipe, go = Pipe(tmp_path / "pid"), tmp_path / "go"
    os.mkfifo(go)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shell, tmp_path, "setsid sh -c 'echo $$ > pid; exec sleep 300' & cat go")
        sleeper = await pipe.process()
        await anyio.to_thread.run_sync(go.write_text, "go")
    await sleeper.gone()


@pytest.mark.process
async def test_a_background_process_that_holds_the_output_is_not_waited_for(tmp_path: Path) -> None:
    started = anyio.current_time()
    ran = await shell(tmp_path, "sleep 300 & echo started")
    assert anyio.current_time() - started < 5
    assert (ran.head, ran.exit_code) == (b"started\n", 0)


@pytest.mark.process
async def test_a_flood_of_output_is_ended_and_bounded(tmp_path: Path) -> None:
    ran = await shell(tmp_path, "yes", timeout_s=60)
    assert ran.ended == "output"
    assert OUTPUT_BYTES < ran.size < OUTPUT_BYTES + 2**20
    assert len(ran.head) == len(ran.tail) == KEEP_BYTES


@pytest.mark.process
async def test_the_digest_is_of_the_whole_output(tmp_path: Path) -> None:
    ran = await shell(tmp_path, "seq 1 50000")
    whole = "".join(f"{n}\n" for n in range(1, 50_001)).encode()
    assert (ran.sha256, ran.size) == (hashlib.sha256(whole).hexdigest(), len(whole))
    assert whole.startswith(ran.head)
    assert whole.endswith(ran.tail)


@pytest.mark.process
async def test_a_signal_is_an_exit_code(tmp_path: Path) -> None:
    done = await run(tmp_path, "shell", command="kill -9 $$")
    assert (done.ok, done.exit_code) == (False, -9)


@pytest.mark.process
async def test_what_a_dead_daemon_left_running_is_ended_by_session_and_nothing_else(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path / "pid")
    script = (
        "import anyio, os, sys; from loopd.drivers.shell import environment, run_shell\n"
        "anyio.run(lambda: run_shell('sleep 300 & echo $$ > pid; wait', cwd=sys.argv[1],"
        " env=environment('ses_left_over', os.environ), timeout_s=600))"
    )
    daemon = await anyio.open_process([sys.executable, "-c", script, str(tmp_path)])
    leftover = await pipe.process()
    daemon.kill()
    await daemon.wait()
    assert end_leftovers(["ses_other"]) == 0
    assert end_leftovers([]) == 0
    assert end_leftovers(["ses_other", "ses_left_over"]) == 2
    await leftover.gone()


# -- fingerprint ------------------------------------------------------------------------------


def git(folder: Path, *args: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *args],
        cwd=folder,
        check=True,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )


class Ticking:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["git", "plain"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "a").write_text("1")
    if request.param == "git":
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "a")
        git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


async def test_content_decides_and_going_back_is_the_old_state(watched: Path) -> None:
    clock = Ticking()
    sensor = WorkspaceSensor(watched, clock)

    async def look() -> str:
        clock.now += 100
        sensor.ran_shell()
        found = await sensor.read()
        assert found is not None
        return found

    first = await look()
    (watched / "a").touch()
    assert await look() == first
    (watched / "a").write_text("2")
    second = await look()
    (watched / "b").write_text("new")
    third = await look()
    assert len({first, second, third}) == 3
    (watched / "b").unlink()
    assert await look() == second
    (watched / "a").write_text("1")
    assert await look() == first


async def test_a_commit_is_a_change_though_the_tree_is_clean_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "first")
    before = await WorkspaceSensor(tmp_path).read()
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "second")
    assert await WorkspaceSensor(tmp_path).read() != before


async def test_between_two_listings_a_shell_command_makes_the_state_unknown(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    clock = Ticking()
    sensor = WorkspaceSensor(tmp_path, clock)
    known = await sensor.read()
    assert known is not None
    assert await sensor.read() == known
    sensor.ran_shell()
    clock.now -= 1  # the listing took no time on this clock, so the next one would be due at once
    assert await sensor.read() is None
    clock.now += 2
    assert await sensor.read() == known


async def test_a_written_file_counts_even_where_git_ignores_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("*.log\n")
    sensor = WorkspaceSensor(tmp_path, Ticking())
    before = await sensor.read()
    (tmp_path / "a.log").write_text("x")
    assert await sensor.read() == before
    sensor.wrote(tmp_path / "a.log")
    assert await sensor.read() not in {before, None}


async def test_sessions_of_one_workspace_share_what_they_know_of_it(tmp_path: Path) -> None:
    for n in range(200):
        (tmp_path / str(n)).write_text(str(n))
    first, second = WorkspaceSensor(tmp_path), WorkspaceSensor(tmp_path)
    assert await first.read() == await second.read()
    assert first._seen is second._seen
    assert len(first._seen.known) == 200
    (tmp_path / "7").write_text("other")
    assert await first.read() == await second.read()


async def test_files_that_come_and_go_are_not_remembered(tmp_path: Path) -> None:
    sensor = WorkspaceSensor(tmp_path)
    empty = await sensor.read()
    for build in range(5):
        for n in range(100):
            (tmp_path / f"{build}.{n}").touch()
        assert await sensor.read() != empty
        for n in range(100):
            (tmp_path / f"{build}.{n}").unlink()
    assert await sensor.read() == empty
    assert len(sensor._seen.known) <= 64


async def test_a_sensor_that_fails_says_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere")
    assert await WorkspaceSensor(tmp_path).read() is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert await WorkspaceSensor(tmp_path).read() is None


async def test_a_tree_that_is_too_large_to_look_at_is_unknown(tmp_path: Path) -> None:
    for n in range(2_001):
        (tmp_path / str(n)).touch()
    assert await WorkspaceSensor(tmp_path).read() is None


async def test_hooks_and_monitors_of_a_workspace_do_not_run_in_the_daemon(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(trap))
    assert await WorkspaceSensor(tmp_path).read() is not None
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["x", "a=b", "a.b"])
@pytest.mark.parametrize("setting", ["clean", "process"])
async def test_filters_of_a_workspace_do_not_run_in_the_daemon(
    tmp_path: Path, setting: str, name: str
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / ".gitattributes").write_text(f"* filter={name}\n")
    git(tmp_path, "config", f"filter.{name}.{setting}", f"touch {tmp_path}/sprung; cat")
    (tmp_path / "a").write_text("b")
    sensor = WorkspaceSensor(tmp_path)
    assert await sensor.read() is None
    assert not (tmp_path / "sprung").exists()


async def test_a_workspace_cannot_make_the_daemon_fetch(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "master")
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "first")
    for known in (tmp_path / ".git" / "objects").glob("??/*"):
        if known.name not in (tmp_path / ".git" / "refs" / "heads" / "master").read_text():
            known.unlink()  # all but the commit: its tree has to be fetched
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": f"ext::touch {tmp_path}/sprung",
        "remote.origin.promisor": "true",
        "protocol.ext.allow": "always",
    }.items():
        git(tmp_path, "config", key, value)
    await WorkspaceSensor(tmp_path).read()
    assert not (tmp_path / "sprung").exists()
