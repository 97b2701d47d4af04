"""The trajectory reader: what it takes, and what it says about the rest."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.trajectory import MAX_LINE_BYTES, Head, Step, read
from loopd_protocol.errors import Refused

HEAD = {"t": "trajectory", "v": 1, "id": "x"}


def put(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def steps(path: Path) -> list[Step]:
    return [record.item for record in read(path) if isinstance(record.item, Step)]


def refusal(path: Path) -> str:
    with pytest.raises(Refused) as caught:
        list(read(path))
    assert caught.value.code == "invalid"
    assert repr(os.fspath(path)) in caught.value.message
    return caught.value.message


def test_a_step_keeps_everything_it_says(tmp_path: Path) -> None:
    digest = "a" * 64
    call = {"id": "c1", "name": "bash", "args": {"command": "ls"}, "ok": True, "result": "cut…"}
    path = put(
        tmp_path / "a.jsonl",
        {
            **HEAD,
            "source": "s",
            "task": "t",
            "outcome": "resolved",
            "label": "healthy",
            "steps": 1,
            "license": "MIT",
        },
        {
            "t": "step",
            "n": 1,
            "at": "2026-01-01T00:00:00Z",
            "trigger": "cron",
            "text": "hello",
            "calls": [{**call, "result_sha256": digest, "result_bytes": 512}],
            "usage": {"input_tokens": 3, "output_tokens": 4},
            "note": "unknown fields are skipped",
        },
    )
    head, step = (record.item for record in read(path))
    assert isinstance(head, Head)
    assert (head.id, head.label, head.steps) == ("x", "healthy", 1)
    assert isinstance(step, Step)
    assert (step.n, step.trigger, step.text, step.at) == (1, "cron", "hello", "2026-01-01T00:00:00Z")
    only = step.calls[0]
    assert (only.name, only.args, only.ok, only.result) == ("bash", {"command": "ls"}, True, "cut…")
    assert (only.result_sha256, only.result_bytes, only.tool_class) == (digest, 512, "exec")
    assert step.usage is not None
    assert (step.usage.input_tokens, step.usage.output_tokens, step.usage.measured) == (3, 4, True)


def test_a_missing_result_stays_unknown_and_a_given_one_gets_its_digest(tmp_path: Path) -> None:
    path = put(
        tmp_path / "a.jsonl",
        HEAD,
        {"t": "step", "calls": [{"name": "a"}, {"name": "b", "result": "é"}, {"name": "c", "result": ""}]},
    )
    missing, given_, empty = steps(path)[0].calls
    assert (missing.ok, missing.result, missing.result_sha256, missing.result_bytes) == (
        None,
        None,
        None,
        None,
    )
    assert (given_.result_sha256, given_.result_bytes) == (hashlib.sha256("é".encode()).hexdigest(), 2)
    assert (empty.result, empty.result_bytes) == ("", 0)
    assert [call.id for call in steps(path)[0].calls] == ["c1", "c2", "c3"]


def test_packed_and_plain_files_read_the_same_whatever_they_are_called(tmp_path: Path) -> None:
    plain = put(tmp_path / "a.jsonl", HEAD, {"t": "step", "text": "one"}, {"t": "step", "text": "two"})
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    disguised = tmp_path / "c.jsonl"
    disguised.write_bytes(packed.read_bytes())
    assert list(read(plain)) == list(read(packed)) == list(read(disguised))


def test_several_trajectories_may_follow_each_other(tmp_path: Path) -> None:
    path = put(
        tmp_path / "a.jsonl", HEAD, {"t": "step"}, {"t": "step"}, "", {**HEAD, "id": "y"}, {"t": "step"}
    )
    seen = [(r.line, r.item.id if isinstance(r.item, Head) else r.item.n) for r in read(path)]
    assert seen == [(1, "x"), (2, 1), (3, 2), (5, "y"), (6, 1)]


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        ([], None, "holds no trajectory"),
        ([{"t": "step", "n": 1}], 1, '{"t":"trajectory","v":1,…} first'),
        (["not a line of JSON"], 1, "JSON is malformed"),
        ([{"hello": "world"}], 1, "missing required field `t`"),
        ([{"t": "trajectory"}], 1, "missing required field `v`"),
        ([{"t": "trajectory", "v": 2}], 1, "version 2; expected 1"),
        ([HEAD, {"t": "stop"}], 2, "Invalid value 'stop'"),
        ([HEAD, {"t": "step"}, {"t": "step", "n": "3"}], 3, "Expected `int | null`, got `str` - at `$.n`"),
        ([HEAD, {"t": "step", "n": 0}], 2, "$.n"),
        ([HEAD, {"t": "step", "text": 5}], 2, "$.text"),
        ([HEAD, {"t": "step", "trigger": "system"}], 2, "$.trigger"),
        ([HEAD, {"t": "step", "calls": [{}]}], 2, "missing required field `name` - at `$.calls[0]`"),
        ([HEAD, {"t": "step", "calls": [{"name": "a", "result_sha256": "xyz"}]}], 2, "result_sha256"),
        ([HEAD, "[" * 100_000], 2, ""),
        ([HEAD, "[]"], 2, "Expected `object`, got `array`"),
    ],
)
def test_what_is_no_trajectory_is_refused_with_its_line(
    tmp_path: Path, lines: list[Any], line: int | None, words: str
) -> None:
    message = refusal(put(tmp_path / "a.jsonl", *lines))
    assert words in message
    assert "expected" in message
    if line is not None:
        assert f"line {line}:" in message


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps(HEAD).encode() + b'\n{"t":"step","text":"\xff\xfe"}\n')
    assert "line 2:" in refusal(path)


def test_a_damaged_archive_is_refused_with_its_line(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in [HEAD, {"t": "step"}] * 500))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    assert "cannot be unpacked" in refusal(path)


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "nul"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("a\0b" if kind == "nul" else kind)
    if kind == "folder":
        path.mkdir()
    if kind == "fifo":
        os.mkfifo(path)
    assert "expected a" in refusal(path)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(json.dumps(HEAD).encode() + b"\n")
        for _ in range(5):
            stream.write(b" " * MAX_LINE_BYTES)
    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"longer than {MAX_LINE_BYTES} bytes" in message
    assert peak < 4 * MAX_LINE_BYTES


@given(
    st.lists(
        st.fixed_dictionaries(
            {"text": st.text(max_size=20)},
            optional={"trigger": st.sampled_from(["human", "continuation", "cron"]), "ok": st.booleans()},
        ),
        max_size=8,
    )
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, written: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("t") / "a.jsonl"
    put(path, HEAD, *({"t": "step", **step} for step in written))
    found = steps(path)
    assert [(s.text, s.trigger) for s in found] == [(w["text"], w.get("trigger")) for w in written]
    records = list(read(path))
    data = path.read_bytes()
    for record in records:
        assert data[record.offset : record.offset + 5] == b'{"t":'
