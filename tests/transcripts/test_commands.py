"""`loopctl inspect` and `loopctl backtest` as people and scripts run them; no daemon unless it says so."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopd.cli.bar import Bar, size
from loopd.core.settings import DEFAULT_PRESET
from tests.cli.conftest import run
from tests.e2e.harness import Daemon, House
from tests.transcripts.making import DATA, head, healthy, step, stuck, write

BIN = Path(sys.executable).parent
FIELDS = {"id", "steps", "findings", "first_soft", "first_hard", "verdict", "tokens_after_first_soft"}
FINDING = {"rule", "level", "step", "loop_id", "evidence"}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write(
        tmp_path / "runs.jsonl.gz",
        healthy("good", label="healthy"),
        stuck("bad", label="stuck"),
        healthy("won", outcome="resolved"),
    )


def lines(said: Any) -> list[dict[str, Any]]:
    assert said.err == ""
    return [json.loads(line) for line in said.out.splitlines()]


def loopctl(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "loopctl"), *words], capture_output=True, text=True, timeout=60, check=False, **more
    )


# -- inspect --------------------------------------------------------------------------------------


def test_json_has_one_object_for_each_log_with_the_promised_fields(runs: Path) -> None:
    said = run("inspect", str(runs), "--format", "json", "--preset", "hardened")
    assert said.code == 0
    good, bad, won = lines(said)
    assert set(bad) >= FIELDS
    assert all(set(finding) >= FINDING for finding in bad["findings"])
    assert (good["id"], good["steps"], good["findings"], good["verdict"]) == ("good", 12, [], "ok")
    assert (good["first_soft"], good["first_hard"], good["tokens_after_first_soft"]) == (None, None, None)
    assert (bad["id"], bad["steps"], bad["verdict"]) == ("bad", 30, "terminate")
    assert bad["first_soft"] == 8
    assert bad["tokens_after_first_soft"] == 100 * (30 - 8)
    assert bad["first_soft"] <= bad["first_hard"] <= 17
    assert bad["findings"][0]["rule"] == "exact_repeat"
    assert bad["findings"][0]["level"] in {"soft", "hard"}
    assert won["outcome"] == "resolved"


@pytest.mark.parametrize("words", [("-o", "json"), ("-o", "ndjson"), ("--format", "json")])
def test_every_way_to_ask_for_json_gives_the_same_lines(runs: Path, words: tuple[str, str]) -> None:
    assert run("inspect", str(runs), *words).out == run("inspect", str(runs), "--format", "json").out


def test_the_same_input_gives_the_same_bytes(runs: Path) -> None:
    said = [loopctl("inspect", str(runs), "--format", form).stdout for form in ("json", "md", "table") * 2]
    assert said[:3] == said[3:]
    assert all(said)


def test_a_table_shows_what_fired_and_what_it_saw(runs: Path) -> None:
    said = run("inspect", str(runs), "--preset", "hardened")
    assert said.code == 0
    table = said.out.splitlines()
    assert table[0].split() == ["LOG", "STEPS", "VERDICT", "SOFT", "HARD", "TOKENS", "AFTER", "RULES", "WHAT"]
    assert table[1].split()[:5] == ["bad", "30", "terminate", "8", "11"]
    assert "cat notes.txt" in said.out
    assert table[-1] == "3 logs, 54 steps: 1 terminate, 2 ok"
    assert "good" not in said.out
    assert "good" in run("inspect", str(runs), "--all").out


def test_a_log_without_findings_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "x", healthy("good"))
    assert run("inspect", str(path)).out == "1 log, 12 steps: nothing found\n"


def test_markdown_of_a_hostile_name_is_text(tmp_path: Path) -> None:
    name = "a|b](javascript:alert(1)) <script> `x` *y*\nz"
    path = write(tmp_path / "x", stuck(name))
    said = run("inspect", str(path), "--format", "md", "--preset", "hardened")
    assert said.code == 0
    row = next(line for line in said.out.splitlines() if "javascript" in line)
    assert r"a\|b\]\(javascript:alert\(1\)\) \&lt;script\> \`x\` \*y\* z" in row
    assert "<script>" not in said.out


def test_a_hostile_name_sends_nothing_to_the_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "x", stuck("\x1b]0;owned\x07\u202e"))
    said = run("inspect", str(path))
    assert "\x1b" not in said.out
    assert "\u202e" not in said.out


@pytest.mark.parametrize(
    ("files", "words", "code"),
    [
        (("good",), (), 0),
        (("stuck",), (), 0),
        (("good",), ("--fail-on", "soft"), 0),
        (("stuck",), ("--fail-on", "soft"), 3),
        (("stuck",), ("--fail-on", "hard"), 3),
        (("once",), ("--fail-on", "soft"), 3),
        (("once",), ("--fail-on", "hard"), 0),
        (("good", "missing"), (), 1),
        (("missing", "stuck"), ("--fail-on", "soft"), 1),
        (("good", "stuck"), ("--fail-on", "soft"), 3),
    ],
)
def test_exit_codes(tmp_path: Path, files: tuple[str, ...], words: tuple[str, ...], code: int) -> None:
    write(tmp_path / "good", healthy())
    write(tmp_path / "stuck", stuck())
    write(tmp_path / "once", stuck(steps=9))
    said = loopctl("inspect", *(str(tmp_path / file) for file in files), "--preset", "hardened", *words)
    assert said.returncode == code
    assert (said.stderr == "") == (code != 1)


def test_an_unreadable_file_is_named_and_the_others_are_judged(tmp_path: Path, runs: Path) -> None:
    missing = tmp_path / "missing"
    said = run("inspect", str(missing), str(runs), str(tmp_path), "--format", "json")
    assert said.code == 1
    assert [json.loads(line)["id"] for line in said.out.splitlines()] == ["good", "bad", "won"]
    first, second = said.err.splitlines()
    assert first == f"loopctl: {missing}: cannot be opened: No such file or directory; expected a file"
    assert second == f"loopctl: {tmp_path}: cannot be opened: Is a directory; expected a file"


def test_faults_are_objects_when_json_was_asked_for_with_o(tmp_path: Path) -> None:
    said = run("inspect", str(tmp_path / "missing"), "-o", "json")
    assert json.loads(said.err)["error"]["code"] == "unreadable"


def test_standard_input_and_pipes_are_read(runs: Path) -> None:
    expected = json.loads(run("inspect", str(runs), "--format", "json").out.splitlines()[1])
    with runs.open("rb") as packed:
        said = loopctl("inspect", "-", "--format", "json", stdin=packed)
    assert said.returncode == 0
    assert json.loads(said.stdout.splitlines()[1]) == {**expected, "file": "-"}
    command = f"gzip -dc {runs} | {BIN / 'loopctl'} inspect /dev/stdin --format json"
    piped = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(piped.stdout.splitlines()[1])["findings"] == expected["findings"]


def test_a_reader_that_has_seen_enough_ends_it_quietly(tmp_path: Path) -> None:
    path = write(tmp_path / "x", *(healthy(f"run{n}") for n in range(400)))
    command = f"{BIN / 'loopctl'} inspect {path} --format json | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "rules.exact_repeat.sotf=3"), "the nearest known one is 'rules.exact_repeat.soft'"),
        (("--set", "rules.exact_repeat.soft=-1"), "rules.exact_repeat.soft is -1; expected an integer from"),
        (("--preset", "soft"), "invalid choice: 'soft'"),
        (("--format", "xml"), "invalid choice: 'xml'"),
        (("--html", "/nonexistent/folder/x.html"), "cannot be written: No such file or directory"),
    ],
)
def test_a_mistake_is_said_before_anything_is_read(runs: Path, words: tuple[str, str], message: str) -> None:
    said = run("inspect", str(runs), *words)
    assert (said.code, said.out) == (2, "")
    assert message in said.err


def test_settings_and_presets_change_what_fires(runs: Path) -> None:
    def first_soft(*words: str) -> int | None:
        found: int | None = lines(run("inspect", str(runs), "--format", "json", *words))[1]["first_soft"]
        return found

    hardened = first_soft("--preset", "hardened")
    assert hardened == 8
    later = first_soft("--preset", "hardened", "--set", "rules.exact_repeat.soft_identical=4")
    assert later == 9
    assert first_soft("--preset", DEFAULT_PRESET) == first_soft()


def test_someone_who_watches_is_asked_instead(runs: Path) -> None:
    alone = lines(run("inspect", str(runs), "--format", "json", "--preset", "hardened"))[1]
    watched = lines(run("inspect", str(runs), "--format", "json", "--preset", "hardened", "--attended"))[1]
    assert alone["verdict"] == "terminate"
    assert watched["verdict"] != "terminate"


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    path = write(tmp_path / "x", *(healthy(f"run{n}", 100) for n in range(30)))
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    code = "import sys, loopd.cli.bar as bar; bar.PATIENCE_S = 0; from loopd.cli.operator import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "inspect", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, text=True, env=env) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 65_536):
                seen += part
        except OSError:  # Linux: the other end was closed
            pass
        assert process.stdout is not None
        assert process.stdout.read() == "30 logs, 3000 steps: nothing found\n"
    os.close(ours)
    assert "█" in seen.decode()
    assert "/s" in seen.decode()
    assert seen.endswith(b"\r\x1b[2K")
    assert loopctl("inspect", str(path)).stderr == ""


def test_the_words_of_the_bar() -> None:
    bar = Bar(2_000_000)
    bar.advance(500_000)
    bar.log()
    assert bar.line(2.0) == "██████░░░░░░░░░░░░░░░░░░  25 %  500 KB  250 KB/s  1 logs  6 s left"
    assert Bar(None).line(2.0) == "0 B  0 B/s  0 logs"
    assert [size(n) for n in (0, 999, 1_000, 123_456, 9_900_000_000)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "123 KB",
        "9.9 GB",
    ]


def test_no_verb_that_needs_a_daemon_imports_what_reads_logs() -> None:
    code = (
        "import sys; from loopd.cli.operator import main\n"
        "main(['status', '--socket', '/nonexistent', '-o', 'json'])\n"
        "found = [name for name in sys.modules if 'transcripts' in name or name.startswith(('loopd.core', 'rich'))]\n"
        "assert not found, found"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("sample", sorted(DATA.iterdir()), ids=lambda path: path.name)
def test_samples_of_real_agents_are_judged_from_the_command_line(sample: Path) -> None:
    (line,) = lines(run("inspect", str(sample), "--format", "json", "--preset", "hardened"))
    assert line["steps"] >= 4
    # every sample but the short one repeats a failing command six times
    assert (line["first_soft"] is not None) == ("agent.jsonl" not in sample.name)


# -- backtest -------------------------------------------------------------------------------------


def test_a_backtest_says_what_would_have_been_saved_and_who_would_have_been_hit(runs: Path) -> None:
    words = ("--base-preset", "hardened", "--base-set", "rules.exact_repeat.enabled=false")
    strict = ("--set", "rules.exact_repeat.enabled=true", "--set", "rules.same_result.soft=2")
    said = run("backtest", str(runs), "--format", "json", *words, *strict)
    *logs, last = lines(said)
    bad = next(log for log in logs if log["id"] == "bad")
    assert [log["kind"] for log in logs] == ["healthy", "stuck", "healthy"]
    assert bad["then"]["fired"] is True
    assert bad["then"]["first_soft"] == 8
    assert bad["base"]["first_soft"] > 8
    assert bad["then"]["steps_saved"] == 30 - bad["then"]["first_hard"]
    assert bad["then"]["tokens_saved"] == 100 * bad["then"]["steps_saved"]
    assert bad["change"] in {"earlier", "stopped"}
    summary = last["summary"]
    assert (summary["logs"], summary["healthy"], summary["stuck"]) == (3, 2, 1)
    assert summary["then"]["stuck_found"] == 1
    assert summary["then"]["healthy_stopped"] == 0
    assert summary["then"]["steps_saved"] == bad["then"]["steps_saved"]


def test_a_threshold_that_hits_healthy_runs_is_counted(tmp_path: Path) -> None:
    poll = [head("polls", label="healthy"), *(step(n, "cat out", "same") for n in range(1, 4))]
    rest = [step(n, result=f"built part {n}") for n in range(4, 12)]
    path = write(tmp_path / "x", [*poll, *rest])
    said = run("backtest", str(path), "--base-preset", "hardened", "--set", "rules.exact_repeat.soft_identical=2", "--format", "json")  # fmt: skip
    log, last = lines(said)
    assert (log["base"]["first_soft"], log["then"]["first_soft"]) == (3, 2)
    assert (last["summary"]["base"]["healthy_nudged"], last["summary"]["then"]["healthy_nudged"]) == (1, 1)


def test_what_is_cut_off_a_healthy_run_is_not_counted_as_saved(tmp_path: Path) -> None:
    path = write(tmp_path / "x", stuck(outcome="success", label="unlabelled"))
    log, last = lines(run("backtest", str(path), "--base-preset", "hardened", "--format", "json"))
    assert (log["kind"], log["then"]["steps_saved"] > 0) == ("healthy", True)
    assert (last["summary"]["then"]["steps_saved"], last["summary"]["then"]["healthy_stopped"]) == (0, 1)


@pytest.mark.parametrize("form", ["table", "md"])
def test_a_backtest_for_people(runs: Path, form: str) -> None:
    said = run("backtest", str(runs), "--base-preset", "published", "--preset", "hardened", "--format", form)
    assert said.code == 0
    assert "bad" in said.out
    assert "healthy ones stopped" in said.out
    assert "0 of 2" in said.out
    assert "preset published" in said.out


def test_equal_settings_change_nothing(runs: Path) -> None:
    *logs, last = lines(run("backtest", str(runs), "--format", "json"))
    assert {log["change"] for log in logs} == {"same"}
    assert last["summary"]["changes"] == {"same": 3}


@pytest.mark.parametrize(
    ("words", "message"), [((), "expected FILE… or --session SID…"), (("x", "--session", "y"), "one of them")]
)
def test_a_backtest_needs_files_or_sessions(words: tuple[str, ...], message: str) -> None:
    said = run("backtest", *words)
    assert said.code == 2
    assert message in said.err


def test_a_backtest_of_a_broken_file_still_sums_up(tmp_path: Path, runs: Path) -> None:
    broken = write(tmp_path / "broken", ["{oops"])
    said = run("backtest", str(broken), str(runs), "--format", "json")
    assert said.code == 1
    assert json.loads(said.out.splitlines()[-1])["summary"]["logs"] == 3


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[House, Daemon]]:
    house = House()
    try:
        yield house, house.daemon().start()
    finally:
        house.close()


@pytest.mark.process
def test_a_recorded_session_is_judged_against_its_own_settings_and_others(
    stage: tuple[House, Daemon], tmp_path: Path
) -> None:
    house, daemon = stage
    socket = ("--socket", daemon.socket)
    script = house.script(["16/100. Not complete. No action."], "same.jsonl")
    sets = ("--set", "continuation.min_gap_ms=0", "--set", "rules.repeated_text.threshold=9")
    made = run("new", "--driver", "scripted", "--script", str(script), "--name", "looper", "--goal", "finish", "--preset", "published", *sets, *socket)  # fmt: skip
    assert made.code == 0, made.err
    assert run("wait", "looper", "--until", "closed", "--timeout", "30s", *socket).code == 0
    said = run(
        "backtest",
        "--session",
        "looper",
        "--set",
        "rules.repeated_text.threshold=4",
        "--format",
        "json",
        *socket,
    )
    log, last = lines(said)
    assert log["steps"] == 9
    assert (log["base"]["first_hard"], log["then"]["first_hard"]) == (9, 4)
    assert log["then"]["steps_saved"] == 5
    assert log["change"] == "earlier"
    assert last["summary"]["then"]["steps_saved"] == 5

    # the log that people save says the same
    saved = (
        house.folder / "events.ndjson"
        if hasattr(house, "folder")
        else Path(script).with_name("events.ndjson")
    )
    tail = run("tail", "looper", "-n", "1000", "-o", "ndjson", *socket)
    saved.write_text(tail.out)
    (line,) = lines(run("inspect", str(saved), "--preset", "published", "--set", "rules.repeated_text.threshold=9", "--format", "json"))  # fmt: skip
    assert (line["source"], line["steps"], line["first_hard"]) == ("loopd", 9, 9)
    assert line["task"] == "finish"


@pytest.mark.process
def test_what_the_daemon_did_is_what_its_log_is_judged_to(
    stage: tuple[House, Daemon], tmp_path: Path
) -> None:
    house, daemon = stage
    socket = ("--socket", daemon.socket)
    same = "I have finished everything that you asked me to do for now, nothing else is left."
    script = house.script(
        ["Working on part one now, all is fine here today.", *[same] * 40], "paraphrase.jsonl"
    )
    sets = ("--set", "continuation.min_gap_ms=0", "--set", "continuation.backoff_s=[]")
    made = run("new", "--driver", "scripted", "--script", str(script), "--name", "hard", "--goal", "finish", "--preset", "hardened", *sets, *socket)  # fmt: skip
    assert made.code == 0, made.err
    assert run("wait", "hard", "--until", "closed", "--timeout", "30s", *socket).code == 0
    saved = tmp_path / "events.ndjson"
    saved.write_text(run("tail", "hard", "-n", "1000", "-o", "ndjson", *socket).out)
    events = [json.loads(line) for line in saved.read_text().splitlines()]
    live = [
        (e["b"]["rule"], e["b"]["verdict"], e["b"]["loop_id"])
        for e in events
        if e["k"] == "degeneration.detected"
    ]
    (line,) = lines(run("inspect", str(saved), "--preset", "hardened", "--format", "json"))
    assert [(f["rule"], f["verdict"], f["loop_id"]) for f in line["findings"]] == live
    assert [verdict for _, verdict, _ in live] == ["nudge", "close"]


@pytest.mark.process
def test_a_session_that_does_not_exist_is_not_found(stage: tuple[House, Daemon]) -> None:
    assert run("backtest", "--session", "nobody", "--socket", stage[1].socket).code == 3
