"""What is ended by its mark is gone when the ending returns."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from loopd.drivers.marks import end_marked, marked

BURN = "while True: pass"
WAIT = "import sys; print(flush=True); sys.stdin.read()"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]


@contextmanager
def running(code: str, mark: str, *, idle: bool, cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one processor; an idle one gets it only when nobody else wants it."""

    def settle() -> None:
        os.sched_setaffinity(0, {cpu})
        if idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "MARK_OF_TEST": mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=settle,  # noqa: PLW1509  (no threads are started behind it)
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_gets_no_processor_is_gone_when_its_ending_returns() -> None:
    mark = secrets.token_hex(8)
    wanted = f"MARK_OF_TEST={mark}".encode()
    cpu = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        victims = [stack.enter_context(running(WAIT, mark, idle=True, cpu=cpu)) for _ in range(3)]
        for each in victims:
            assert each.stdout is not None
            assert each.stdout.readline() == b"\n"
        for _ in range(2):
            stack.enter_context(running(BURN, "another", idle=False, cpu=cpu))
        assert set(marked(lambda variables: wanted in variables)) == {each.pid for each in victims}
        ended = end_marked(lambda variables: wanted in variables)
        assert ended == {each.pid for each in victims}
        assert marked(lambda variables: wanted in variables) == []
