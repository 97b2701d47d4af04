"""Error signatures and tools that do not exist."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.stops.signatures import SIGNATURE_LINES, error_signature
from loopd.core.stops.unresolved import unresolved_streak, unresolved_tools


def _same(one: str, other: str, **given: Any) -> bool:
    return error_signature("c", 1, one, **given) == error_signature("c", 1, other, **given)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("obj at 0x7f12ab", "obj at 0xdead01"),
        ("2026-10-01T10:00:00Z boom", "2026-10-01T10:05:42Z boom"),
        ("[10:00:00] boom", "[11:12:13] boom"),
        ("\x1b[31mboom\x1b[0m", "boom"),
        ("failed after 3.2s", "failed after 41 s"),
        ("timeout of 100 ms", "timeout of 200 ms"),
        ("pid 12 died", "pid 4711 died"),
        ("process 12 died", "process 13 died"),
        ("no file /tmp/a1/x", "no file /tmp/b2/y"),
        ("boom\n\n", "boom"),
        ("  boom", "boom  "),
        ("AssertionError: <Foo at 0x1> != <Foo at 0x2>", "AssertionError: <Foo at 0x3> != <Foo at 0x4>"),
        ("2026-10-01 10:00:00 AssertionError: 1 != 2", "2026-10-02 11:00:00 AssertionError: 1 != 2"),
        ("boom\n" * SIGNATURE_LINES + "a", "boom\n" * SIGNATURE_LINES + "b"),
    ],
)
def test_what_differs_from_run_to_run_does_not_count(one: str, other: str) -> None:
    assert _same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("AssertionError: 1 != 2", "AssertionError: 1 != 3"),
        ("assert 5 ms == 6 ms", "assert 5 ms == 7 ms"),
        ("Expected: 10:00:00", "Expected: 11:00:00"),
        ("E assert '2026-10-01' == x", "E assert '2026-10-02' == x"),
        ("line 12: boom", "line 13: boom"),
        ("expected deadbeefdeadbeef0", "expected feedfacefeedface1"),
        ("boom\n" * (SIGNATURE_LINES - 1) + "a", "boom\n" * (SIGNATURE_LINES - 1) + "b"),
        ("boom", "bang"),
    ],
)
def test_what_was_asserted_does_count(one: str, other: str) -> None:
    assert not _same(one, other)


def test_command_and_exit_code_count() -> None:
    assert error_signature("a", 1, "x") != error_signature("b", 1, "x")
    assert error_signature("a", 1, "x") != error_signature("a", 2, "x")
    assert error_signature("a", None, "x") != error_signature("a", 0, "x")
    assert error_signature(" a ", 1, "x") == error_signature("a", 1, "x")


def test_the_tail_of_stdout_speaks_when_stderr_is_blank_and_only_then() -> None:
    def signature(stderr: str, stdout: str) -> str:
        return error_signature("pytest", 1, stderr, stdout)

    assert signature("", "FAILED a") != signature("", "FAILED b")
    assert signature(" \n", "FAILED a") == signature("", "FAILED a")
    assert signature("x", "FAILED a") == signature("x", "FAILED b")
    noise = "\n".join(f"line {n}" for n in range(SIGNATURE_LINES))
    assert signature("", f"first\n{noise}") == signature("", f"other\n{noise}")
    assert signature("", f"{noise}\nlast") != signature("", f"{noise}\nother")
    assert signature("boom", "") != signature("", "boom")


@given(st.text(max_size=200), st.integers(), st.text(max_size=400), st.text(max_size=400))
def test_signatures_never_raise(command: str, code: int, stderr: str, stdout: str) -> None:
    assert len(error_signature(command, code, stderr, stdout)) == 16


@pytest.mark.parametrize(("asked", "resolved"), [(1, 2), (0, 1), (-1, 0), (1, -1)])
def test_counts_that_contradict_each_other_are_refused(asked: int, resolved: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to"):
        unresolved_streak(0, asked=asked, resolved=resolved)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        unresolved_tools([], -1)


@given(
    turns=st.lists(
        st.integers(0, 3).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=20
    ),
    limit=st.integers(0, 4),
)
def test_the_streak_is_the_longest_unresolved_end_of_the_history(
    turns: list[tuple[int, int]], limit: int
) -> None:
    unresolved = [asked > 0 and resolved == 0 for asked, resolved in turns]
    streak = next((n for n, hit in enumerate(reversed(unresolved)) if not hit), len(unresolved))
    met = unresolved_tools(turns, limit)
    assert met.streak == streak
    assert (met.verdict == "stop") == (limit > 0 and streak >= limit)
