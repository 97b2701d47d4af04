"""A soak calls flat what is flat, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.flatness import FLAT, SLACK, Look, judged, look, quarter, told

RUN_S = 1_200.0
EVERY_S = 5.0


def looks(
    resident: Callable[[float], float], *, tasks: Callable[[float], float] = lambda _: 50
) -> list[Look]:
    """Looks at one process for a whole run; both figures are functions of the time."""
    return [
        Look(
            life=1,
            at_s=at_s,
            age_s=at_s,
            resident_kib=round(resident(at_s)),
            anonymous_kib=round(resident(at_s) / 2),
            fds=60,
            threads=12,
            tasks=round(tasks(at_s)),
        )
        for at_s in (EVERY_S * n for n in range(1, int(RUN_S / EVERY_S)))
    ]


def test_what_fills_up_in_the_first_quarter_is_flat() -> None:
    found = judged(looks(lambda s: 60_000 + 60_000 * min(1, s / 300)), RUN_S)
    assert all(each.flat for each in found.values())
    assert set(found) == {"resident_kib", "anonymous_kib", *SLACK}


@given(st.floats(0.06, 0.5), st.booleans())
def test_a_tenth_more_over_the_run_is_not_flat(share: float, falls: bool) -> None:
    grown = share * 2 * (-1 if falls else 1)  # over the whole run; half of it lies between the quarters
    found = judged(looks(lambda s: 100_000 * (1 + grown * (s - 450) / RUN_S)), RUN_S)
    assert not found["resident_kib"].flat
    assert found["resident_kib"].growth == pytest.approx(grown / 2, abs=0.01)


@given(st.floats(-0.99, 0.99))
def test_what_stays_within_the_bound_is_flat(share: float) -> None:
    found = judged(looks(lambda s: 100_000 * (1 + FLAT * share * (s > RUN_S / 2))), RUN_S)
    assert found["resident_kib"].flat


def test_one_task_more_every_two_minutes_is_found_beside_turns_that_come_and_go() -> None:
    swings = looks(lambda _: 1, tasks=lambda s: 50 + s * 7 % 13)
    assert judged(swings, RUN_S)["tasks"].flat
    leaks = looks(lambda _: 1, tasks=lambda s: 50 + s * 7 % 13 + s / 120)
    assert not judged(leaks, RUN_S)["tasks"].flat


def test_fewer_tasks_are_no_growth() -> None:
    assert judged(looks(lambda _: 1, tasks=lambda s: 500 - s / 4), RUN_S)["tasks"].flat


def test_lives_are_compared_at_the_same_ages() -> None:
    fills = looks(lambda s: 50_000 + 1_000 * (s % 60))
    for each in fills:
        each.age_s = each.at_s % 60
    (ripe,) = {
        each.before for name, each in judged(fills, RUN_S, ripe_s=55).items() if name == "resident_kib"
    }
    assert ripe == 105_000


def test_nothing_is_said_of_a_run_that_was_hardly_looked_at() -> None:
    assert judged(looks(lambda _: 1)[::60], RUN_S) == {}


def test_every_look_is_in_one_quarter() -> None:
    every = looks(lambda _: 1)
    assert sorted(each.at_s for n in range(4) for each in quarter(every, n, RUN_S)) == [e.at_s for e in every]


def test_the_lines_say_which_figure_grew() -> None:
    lines = told(judged(looks(lambda s: 102_400 * (1 + s / RUN_S)), RUN_S))
    (line,) = [line for line in lines if line.startswith("resident")]
    assert "137.3 →    187.3 MiB" in line
    assert "NOT FLAT" in line


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
def test_a_look_is_what_the_kernel_says_and_a_dead_process_cannot_be_looked_at() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = look(process.pid, life=3, at_s=7, age_s=2)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OSError, match=str(process.pid)):
            look(process.pid, life=3, at_s=8, age_s=3)
    assert (found.life, found.threads) == (3, 1)
    assert 3 <= found.fds <= 8
    assert 1_000 < found.anonymous_kib < found.resident_kib < 200_000


def test_what_is_only_shown_is_said_not_to_be_judged() -> None:
    lines = told(judged(looks(lambda s: 100_000 * (1 + s / RUN_S)), RUN_S))
    assert [line.split()[0] for line in lines if "not judged" in line] == ["anonymous"]
    assert [line.split()[0] for line in lines if "NOT FLAT" in line] == ["resident"]
