"""Whatever is wrong with an input is said with file and line, and hides nothing else."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopd.core.settings import settings_of
from loopd.trajectory import MAX_LINE_BYTES
from loopd.transcripts.inspection import FAULTS_MAX, Report, inspect
from loopd.transcripts.logs import Fault
from tests.transcripts.making import DATA, Line, head, healthy, step, stuck, text, write

HARDENED = settings_of("hardened", {})
BIN = Path(sys.executable).parent


def judged(path: Path) -> tuple[list[Report], list[Fault]]:
    reports: list[Report] = []
    faults: list[Fault] = []
    for each in inspect(path, HARDENED):
        (reports if isinstance(each, Report) else faults).append(each)  # type: ignore[arg-type]
    return reports, faults


def ids(reports: list[Report]) -> list[str]:
    return [report.begin.id for report in reports]


def with_line(line: Line, at: int = 5) -> list[Line]:
    run = healthy("bad")
    return [*run[:at], line, *run[at:]]


SPOILED: dict[str, tuple[list[Line], str]] = {
    "not JSON": (with_line("{oops"), "line 19"),
    "no object": (with_line("[1, 2]"), "line 19"),
    "half a line": (with_line('{"t":"step","n":5,"te'), "line 19"),
    "a step again": (with_line(step(4)), "line 19"),
    "steps out of order": (with_line(step(2)), "line 19"),
    "step zero": (with_line(step(0)), "line 19"),
    "another version": ([head("bad", v=2), *healthy("bad")[1:]], "line 14"),
    "no version": ([{"t": "trajectory", "id": "bad"}, *healthy("bad")[1:]], "line 14"),
    "an unknown kind of line": (with_line({"t": "stpe", "n": 9}), "line 19"),
    "a wrong type": (with_line({"t": "step", "n": 5, "text": 7}), "line 19"),
    "a call without a name": (with_line({"t": "step", "n": 5, "calls": [{"id": "c"}]}), "line 19"),
    "an unknown trigger": (with_line({"t": "step", "n": 5, "trigger": "moon"}), "line 19"),
    "nested too deeply": (with_line('{"t":"step","n":5,"calls":[{"name":"x","args":' + "[" * 100_000 + "]" * 100_000 + "}]}"), "line 19"),
    "a lone surrogate": (with_line('{"t":"step","n":5,"text":"\\ud800"}'), "line 19"),
    "no UTF-8": (with_line('{"t":"step","n":5,"text":"\udcff"}'), "line 19"),
    "a line that is too long": (with_line('{"t":"step","n":5,"text":"' + "x" * MAX_LINE_BYTES + '"}'), "line 19"),
}  # fmt: skip


@pytest.mark.parametrize("spoiled", SPOILED)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_bad_line_costs_its_own_trajectory_only(tmp_path: Path, spoiled: str, packed: bool) -> None:
    lines, where = SPOILED[spoiled]
    data = text([*healthy("one"), *lines, *stuck("two")]).encode("utf-8", "surrogateescape")
    path = tmp_path / "runs.jsonl"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    reports, faults = judged(path)
    assert ids(reports) == ["one", "two"]
    assert [report.judgement.verdict == "ok" for report in reports] == [True, False]
    assert [fault.where for fault in faults] == [f"{path}, {where}"]
    assert faults[0].message
    assert len(faults[0].message) < 400


@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_bad_first_trajectory_does_not_hide_the_format(tmp_path: Path, spoiled: str) -> None:
    lines, _ = SPOILED[spoiled]
    data = text([*lines, *stuck("two")]).encode("utf-8", "surrogateescape")
    path = tmp_path / "runs.jsonl"
    path.write_bytes(data)
    reports, faults = judged(path)
    assert ids(reports) == ["two"]
    assert len(faults) == 1


@pytest.mark.parametrize(
    "first",
    ['{"t":"trajectory","v":1,"id":"bad","ta', "{oops", "garbage", "", '"text"', "\x00\x01", '{"other":1}', "x" * (MAX_LINE_BYTES + 2),
     '{"t":"trajectory","v":1,"id":"bad","task":"' + "x" * (MAX_LINE_BYTES + 2) + '"}'],
    ids=lambda text: text[:20] + str(len(text)),
)  # fmt: skip
def test_a_bad_first_line_does_not_hide_the_format(tmp_path: Path, first: str) -> None:
    path = write(tmp_path / "runs.jsonl", [first, *stuck("two")])
    reports, faults = judged(path)
    assert ids(reports) == ["two"]
    assert [fault.where for fault in faults] == ([f"{path}, line 1"] if first else [])


def test_a_bad_line_behind_a_whole_trajectory_does_not_cost_it(tmp_path: Path) -> None:
    whole = stuck("one")
    whole[0] = head("one", steps=len(whole) - 1)
    path = write(tmp_path / "x", whole, ["{oops"], healthy("two"))
    reports, faults = judged(path)
    assert (ids(reports), len(faults)) == (["one", "two"], 1)


def test_a_truncated_gzip_costs_the_last_trajectory_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    whole = gzip.compress(text([*healthy("one", 200), *stuck("two", 200), *healthy("three", 4_000)]).encode())
    path.write_bytes(whole[: len(whole) // 2])
    reports, faults = judged(path)
    assert ids(reports) == ["one", "two"]
    assert len(faults) == 1
    assert faults[0].fatal
    assert "line" in faults[0].where
    assert "cannot be read further: Compressed file ended" in faults[0].message


def test_a_spoiled_gzip_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    whole = bytearray(gzip.compress(text(healthy("one", 2_000)).encode()))
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    reports, faults = judged(path)
    assert reports == []
    assert faults


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty; expected"),
        (b"\n\n\n", "empty; expected"),
        (b"hello\n", "no known format"),
        (b'{"a": 1}\n', "no known format"),
        (b'{\n "a": 1\n}\n', "no known format"),
        (b'{\n "trajectory": [\n', "ends too early"),
        (b'{\n "trajectory": [\n nonsense,\n 1]}', "no JSON document"),
        (b"[1,2]\n", "no known format"),
        (b"\x28\xb5\x2f\xfd....", "zstd; expected text or gzip"),
        (b"\xfd7zXZ\x00....", "xz; expected text or gzip"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"\x1f\x8b", "cannot be read further"),
        (b"\x00" * 100, "no known format"),
        ("{}\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_a_file_of_no_known_format_is_named_with_what_was_expected(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    reports, faults = judged(path)
    assert reports == []
    assert len(faults) == 1
    assert message in faults[0].message
    assert faults[0].where.startswith(str(path))


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbf" + text(healthy("one")).encode())
    assert (ids(judged(path)[0]), judged(path)[1]) == (["one"], [])


@pytest.mark.parametrize("name", ["claude-code-2.1.jsonl", "codex-0.169.jsonl"])
def test_a_log_that_is_appended_to_loses_the_line_that_was_not_finished_and_no_more(
    tmp_path: Path, name: str
) -> None:
    whole = (DATA / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(whole + b'{"type":"assis')
    reports, faults = judged(path)
    lines = whole.count(b"\n")
    assert [fault.where for fault in faults] == [f"{path}, line {lines + 1}"]
    assert len(reports) == 1
    assert reports[0].incomplete
    assert reports[0].judgement == judged(DATA / name)[0][0].judgement


def test_a_truncated_document_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "x.traj.json"
    path.write_bytes((DATA / "mini-swe-agent-2.4-text.traj.json").read_bytes()[:-400])
    reports, faults = judged(path)
    assert reports == []
    assert [fault.message for fault in faults] == ["the document ends too early; expected '}'"]


@pytest.mark.parametrize("start", ['{"messages":[{"role":"user","content":"', '{\n"trajectory":[\n"'])
def test_an_element_of_a_document_that_is_too_large_is_refused(tmp_path: Path, start: str) -> None:
    path = tmp_path / "x.traj.json"
    path.write_text(start + "x" * (MAX_LINE_BYTES + 5_000_000) + '"}]}')
    reports, faults = judged(path)
    assert reports == []
    assert len(faults) == 1
    assert re.search(r"(one element of over|longer than) 16777216 bytes", faults[0].message)


def test_lines_that_are_too_long_are_named_where_nothing_else_is_known(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("x" * (MAX_LINE_BYTES + 2) + "\n")
    assert [fault.message for fault in judged(path)[1]] == [f"longer than {MAX_LINE_BYTES} bytes"]


def test_endless_faults_are_counted_and_not_told_one_by_one(tmp_path: Path) -> None:
    lines: list[Line] = [*stuck("one")]
    for number in range(FAULTS_MAX + 50):
        lines += [head(f"bad{number}"), "{"]
    path = write(tmp_path / "runs.jsonl", lines)
    reports, faults = judged(path)
    assert ids(reports) == ["one"]
    assert len(faults) == FAULTS_MAX + 1
    assert faults[-1].message == "50 more faults like these"


# -- anything at all ----------------------------------------------------------------------------

_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def never_raises(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    for each in inspect(path, HARDENED, shapes=True):
        if isinstance(each, Report):
            msgspec.json.encode(each.as_object())
        else:
            assert each.where
            assert each.message
            assert "Error: " not in each.message, each.message


@given(data=st.binary(max_size=400) | st.text(max_size=400).map(lambda text: text.encode("utf-8", "replace")))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_is_a_fault_and_never_an_exception(tmp_path: Path, data: bytes) -> None:
    never_raises(tmp_path / "x", data)
    never_raises(tmp_path / "x", b"\x1f\x8b" + data)
    never_raises(tmp_path / "x", b'{"t":"trajectory","v":1}\n' + data)
    never_raises(tmp_path / "x", b'{\n"messages":[' + data)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _paths(inner, (*path, index))
    return found


@pytest.mark.parametrize("sample", sorted(DATA.iterdir()), ids=lambda path: path.name)
@given(data=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_sample_with_any_value_replaced_never_raises(
    tmp_path: Path, sample: Path, data: st.DataObject
) -> None:
    whole = sample.suffix == ".json"
    objects = (
        [json.loads(sample.read_text())]
        if whole
        else [json.loads(line) for line in sample.read_text().splitlines()]
    )
    for _ in range(data.draw(st.integers(1, 4))):
        victim = data.draw(st.sampled_from(objects))
        place = data.draw(st.sampled_from(_paths(victim)))
        for key in place[:-1]:
            victim = victim[key]
        victim[place[-1]] = data.draw(_json)
        if whole:
            break
    indent = data.draw(st.sampled_from([None, 1])) if whole else None
    never_raises(tmp_path / "x", "".join(json.dumps(each, indent=indent) + "\n" for each in objects).encode())


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_trajectory_of_any_values_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    fields = ("n", "text", "calls", "usage", "trigger", "at", "state_fingerprint")
    call = st.fixed_dictionaries({"name": st.text(min_size=1, max_size=5), "args": _json}, optional={"result": st.text(max_size=9), "ok": st.none() | st.booleans()})  # fmt: skip
    lines: list[Line] = [head()]
    for n in range(1, data.draw(st.integers(1, 12))):
        calls = data.draw(st.lists(call, max_size=2))
        extra = data.draw(st.dictionaries(st.sampled_from(fields), _json, max_size=1))
        lines.append({"t": "step", "n": n, "calls": calls, **extra})
    never_raises(tmp_path / "x", text(lines).encode())


@pytest.mark.parametrize(
    "args",
    ["[" * 400 + "]" * 400, "1" * 5_000, "1e999", '{"command":"' + "a;" * 50_000 + '"}', '"\\u0000"', '{"":{"":{"":""}}}'],
    ids=["deep", "a long number", "a large number", "a long command", "nul", "empty keys"],
)  # fmt: skip
def test_strange_arguments_are_judged_or_told(tmp_path: Path, args: str) -> None:
    lines = [
        f'{{"t":"step","n":{n},"calls":[{{"name":"x","args":{args},"result":"r"}}]}}' for n in range(1, 12)
    ]
    path = write(tmp_path / "x", [head("strange"), *lines], healthy("fine"))
    reports, faults = judged(path)
    assert ids(reports)[-1] == "fine"
    assert len(reports) + len(faults) == 2


# -- memory -------------------------------------------------------------------------------------

LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc for the resident size")
LINES_KB, DOCUMENT_KB, TOO_LONG_KB = 45_000, 75_000, 100_000
"""Measured: 25 MB for lines, 57 MB for one document, 90 MB beside a line of 100 MB."""


def _long_run(out: Any, size: int) -> None:
    out.write(text([head("long")]))
    body = "what the command printed " * 1_280
    n = 0
    while size > 0:
        n += 1
        size -= out.write(text([step(n, result=f"{body}{n}")]))


def _many_runs(out: Any, size: int) -> None:
    run = text(
        [head("run"), *(step(n, result="what the command printed " * 1_280 + str(n)) for n in range(1, 200))]
    )
    while size > 0:
        size -= out.write(run)


def _document(out: Any, size: int) -> None:
    size -= out.write(
        '{"info":{"exit_status":"x"},"history":[1],"trajectory":[{"action":"a","observation":"b"}'
    )
    body = "what the command printed " * 1_280
    n = 0
    while size > 0:
        n += 1
        size -= out.write("," + json.dumps({"action": f"make part{n}", "observation": f"{body}{n}"}))
    out.write("]}")


def _sessions(out: Any, size: int) -> None:
    body = "what the command printed " * 1_280
    n = 0
    while size > 0:
        n += 1
        call = {
            "id": "c",
            "name": "bash",
            "args": {"command": f"make {n}"},
            "ok": True,
            "result": f"{body}{n}",
        }
        b = {"n": 1, "step": n, "total": n, "calls": [call]}
        size -= out.write(
            json.dumps({"seq": n, "ss": n, "sid": f"s{n % 50}", "ts": n, "k": "turn.step", "b": b}) + "\n"
        )


def _one_field(out: Any, size: int) -> None:
    out.write(text([*healthy("one"), head("bad")]))
    out.write('{"t":"step","n":1,"text":"')
    for _ in range(size // 1_000_000):
        out.write("x" * 1_000_000)
    out.write('"}\n' + text(stuck("two")))


PROBE = """
import os, sys
from loopd.cli.operator import main
code = main(sys.argv[2:])
status = open("/proc/self/status").read()
os.write(int(sys.argv[1]), f"{code} {status.partition('VmHWM:')[2].split()[0]}".encode())
"""


def peak_kb(path: Path) -> tuple[int, int, str, str]:
    """Exit code, largest resident size of `loopctl inspect`, what it printed, its errors."""
    out, inside = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE, str(inside), "inspect", str(path), "--format", "json"],
            pass_fds=[inside], capture_output=True, text=True, timeout=800, check=False,
        )  # fmt: skip
        os.close(inside)
        code, peak = os.read(out, 100).split()
    finally:
        os.close(out)
    return int(code), int(peak), done.stdout, done.stderr


@pytest.mark.process
@LINUX
@pytest.mark.parametrize(
    ("make", "most"),
    [(_many_runs, LINES_KB), (_long_run, LINES_KB), (_document, DOCUMENT_KB), (_sessions, LINES_KB)],
    ids=["runs", "one run", "document", "sessions"],
)
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, make: Callable[[Any, int], None], most: int
) -> None:
    path = tmp_path / "large"
    with path.open("w") as out:
        make(out, 40_000_000)
    code, peak, _, err = peak_kb(path)
    assert (code, err) == (0, "")
    assert peak < most
    path.unlink()


@pytest.mark.process
@LINUX
def test_100_mb_in_one_field_are_refused_in_bounded_memory_and_the_others_judged(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("w") as out:
        _one_field(out, 100_000_000)
    code, peak, printed, err = peak_kb(path)
    assert code == 1
    assert peak < TOO_LONG_KB
    assert [json.loads(line)["id"] for line in printed.splitlines()] == ["one", "two"]
    assert err == f"loopctl: {path}, line 15: longer than {MAX_LINE_BYTES} bytes\n"
    path.unlink()


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(900)
@LINUX
def test_a_gigabyte_takes_no_more_memory_than_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("w") as out:
        _many_runs(out, 1_000_000_000)
    code, peak, _, _ = peak_kb(path)
    assert code == 0
    assert peak < LINES_KB
    path.unlink()
