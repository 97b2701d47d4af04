"""The public runner and the vectors themselves."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopd.testing import vectors

FOLDER = Path(__file__).parents[1] / "vectors"
FILES = sorted(FOLDER.glob("*.json"))


def _run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loopd.testing.vectors", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.process
def test_all_vectors_hold_and_the_command_says_how_many() -> None:
    done = _run(*FILES)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{FOLDER / name}: {count} vectors hold"
        for name, count in (
            ("stop_rules.json", 15),
            ("tool_repetition.json", 40),
            ("tool_repetition_more.json", 45),
        )
    ]


@pytest.mark.process
def test_help_shows_examples_and_no_file_is_wrong_usage() -> None:
    assert "examples:" in _run("--help").stdout
    assert _run().returncode == 2


@pytest.mark.process
def test_a_mismatch_is_one_line_and_exit_code_1_and_other_files_are_still_run(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    document = json.loads((FOLDER / "tool_repetition.json").read_text())
    document[7]["expected"]["verdict"] = "terminate"
    broken.write_text(json.dumps(document))
    done = _run(broken, tmp_path / "absent.json", FOLDER / "stop_rules.json")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{broken}: check ratio-boundary-3of5-inclusive: verdict is 'inject_prompt'")
    assert "absent.json: cannot be read" in lines[1]
    assert lines[2].endswith("15 vectors hold")
    assert len(lines) == 3


def _corruptions(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each place of an expectation, with another value for it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _corruptions(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _corruptions(inner, (*path, index))
    elif isinstance(value, bool):
        yield path, not value
    elif isinstance(value, (int, float)):
        yield path, value + 1
    elif value is None:
        yield path, 2
    else:
        yield path, value + "x"
        yield path, None


EXPECTATIONS = {
    "expected", "expected_steps", "expected_turn_fingerprints", "canonical", "valid", "equal",
}  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_single_corrupted_expectation_is_a_mismatch(file: Path) -> None:
    document = json.loads(file.read_text())
    assert vectors.mismatches(document)[1] == []
    sections = {"": document} if isinstance(document, list) else document
    tried = 0
    for section, entries in sections.items():
        for entry in entries:
            for key in EXPECTATIONS & entry.keys():
                for path, other in _corruptions(entry[key], (key,)):
                    corrupt = copy.deepcopy(entry)
                    place = corrupt
                    for part in path[:-1]:
                        place = place[part]
                    place[path[-1]] = other
                    broken = [corrupt] if not section else {section: [corrupt]}
                    assert vectors.mismatches(broken)[1], (section, path, other)
                    tried += 1
    assert tried > 20


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"nonsense": []}, "unknown section 'nonsense'"),
        (5, "met int"),
        ({"sequences": {}}, "expected a list"),
        ([1], "expected an object"),
        ([{}], "'turns' is missing"),
        ([{"turns": [], "config": {}, "expected": {}}], "'repetition_ratio' is missing"),
        ([{"turns": [["a", 1]], "config": {}, "expected": {}}], "expected a list of fingerprints"),
        ([{"turns": [], "config": {"windowsize": 3}, "corrections_injected": 0, "expected": {}}], "nearest known"),
        (
            [
                {
                    "turns": [], "config": {}, "corrections_injected": 0,
                    "expected": {"repetition_ratio": 0, "verdict": "no_stagnation"},
                }
            ],
            "nothing is expected of 'cycle_length'",
        ),
        ({"sequences": [{"config": {}, "turns": [], "scope_breaks": [0], "expected_steps": []}]}, "scope_breaks"),
        ({"sequences": [{"config": {}, "turns": [], "scope_breaks": [], "expected_steps": [{}]}]}, "of 0 turns"),
        (
            {"sequences": [{"config": {}, "turns": [[]], "scope_breaks": [], "expected_steps": [{"ratio": "1/0"}]}]},
            "expected a fraction",
        ),
        ({"unresolved_tools": [{"turns": [{"asked": 1, "resolved": 2}], "limit": 5, "expected": {}}]}, "2 of 1"),
        ({"unresolved_tools": [{"turns": [], "limit": -1, "expected": {}}]}, "limit is -1"),
        ({"fingerprints": [{"calls": [{"name": "x"}], "expected_turn_fingerprints": []}]}, "no 'arguments'"),
        (
            {"fingerprints": [{"label": "a", "calls": [], "expected_turn_fingerprints": [], "same_as": "b"}]},
            "which is not here",
        ),
        (
            {
                "fingerprints": [
                    {"label": "a", "calls": [], "expected_turn_fingerprints": []},
                    {"label": "b", "calls": [], "expected_turn_fingerprints": [], "differs_from": "a"},
                ]
            },
            "does not hold",
        ),
    ],
)  # fmt: skip
def test_what_is_malformed_is_named_and_no_crash(document: Any, said: str) -> None:
    assert any(said in line for line in vectors.mismatches(document)[1])


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"sequences":[],"sequences":[]}'])
def test_a_file_that_is_not_json_is_a_mismatch(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    count, [line] = vectors.run(file)
    assert count == 0
    assert line.startswith("is not JSON")


def test_a_live_rule_that_disagreed_with_the_single_check_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = json.loads((FOLDER / "tool_repetition.json").read_text())
    monkeypatch.setattr(vectors, "_live_verdict", lambda findings: "no_stagnation")
    assert any("the live rule says" in line for line in vectors.mismatches(document)[1])
