"""The page of `inspect --html`: one file that loads nothing, in which whatever agents wrote is text."""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loopd.core.settings import settings_of
from loopd.transcripts import page as pages
from loopd.transcripts.inspection import Report, inspect
from loopd.transcripts.page import Page
from tests.cli.conftest import run
from tests.transcripts.making import DATA, Line, head, healthy, step, stuck, write

HARDENED = settings_of("hardened", {})
EVIL = (
    "<script>document.title='owned'</script>\"'><img src=x onerror=\"document.title='owned'\"></title></svg>"
)
VOID = {"meta", "link", "br", "img", "input", "hr"}
CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)  # fmt: skip


class Reader(HTMLParser):
    """Elements, attributes and text; what is opened must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID and self.get_starttag_text()[-2:] != "/>":  # type: ignore[index]
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


def evil() -> list[Line]:
    run_: list[Line] = [head(EVIL, task=EVIL, source=EVIL, outcome=EVIL, label=EVIL)]
    for n in range(1, 25):
        line = step(n, EVIL if n > 4 else "", EVIL if n > 4 else f"built {n}", usage={"input_tokens": 10 * n})
        line["text"] = EVIL
        line["calls"][0]["name"] = EVIL[:60]
        if n in {1, 12}:
            line["trigger"] = "human" if n == 1 else "cron"
        run_.append(line)
    return run_


def written(tmp_path: Path, *runs: list[Line]) -> str:
    path = write(tmp_path / "runs.jsonl", *runs)
    out = tmp_path / "out.html"
    said = run("inspect", str(path), "--preset", "hardened", "--html", str(out))
    assert (said.code, said.err) == (0, "")
    return out.read_text()


def test_the_page_says_what_fired_where_and_why(tmp_path: Path) -> None:
    html = written(tmp_path, stuck("looper", label="stuck", task="build it"), healthy("fine"))
    read = Reader(html)
    for words in (
        "looper",
        "fine",
        "build it",
        "exact_repeat",
        "terminate",
        "label stuck",
        "cat notes.txt",
        "preset hardened",
    ):
        assert words in read.words
    assert read.tags.count("section") == 2
    assert html.count('class="call"') == 30 + 12 + 1  # one a step, one in the legend
    assert html.count("step 17, 100 tokens") == 1
    marks = html.count('<circle class="soft"') + html.count('<path class="hard"') - 2
    report = next(each for each in inspect(tmp_path / "runs.jsonl", HARDENED) if isinstance(each, Report))
    assert marks == len({finding.step for finding in report.judgement.findings})
    rung = re.search(r'<path class="rung" d="([^"]+)"', html)
    assert rung is not None
    assert rung[1].count("V") == len(report.judgement.rungs)


def test_nothing_is_loaded_and_nothing_can_run(tmp_path: Path) -> None:
    read = Reader(written(tmp_path, evil(), stuck(), healthy()))
    assert not {"script", "link", "iframe", "img", "object", "embed", "base", "form"} & set(read.tags)
    for name, value in read.attributes:
        assert not name.startswith("on")
        assert name != "src"
        assert name != "href" or re.fullmatch(r"#log-\d+", value or "")
    policy = [
        value for name, value in read.attributes if name == "content" and "default-src" in (value or "")
    ]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_what_agents_wrote_is_text(tmp_path: Path) -> None:
    html = written(tmp_path, evil())
    assert "<script" not in html
    assert "<img" not in html
    assert html.count("&lt;script&gt;") >= 5
    assert EVIL[:30] in Reader(html).words


def test_the_name_of_a_log_that_is_not_drawn_is_text_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "QUIET_MAX", 0)
    assert "<script" not in written(tmp_path, healthy(EVIL), stuck())


def test_a_failed_call_another_turn_and_a_step_of_words_look_different(tmp_path: Path) -> None:
    run_: list[Line] = [head("x")]
    failing = step(2, result="no")
    failing["calls"][0]["ok"] = False
    run_ += [step(1, trigger="human"), failing, {"t": "step", "n": 3, "text": "thinking", "trigger": "cron"}]
    html = written(tmp_path, run_)
    assert "step 2, 1 of 1 calls failed" in html
    assert re.search(r'<rect class="fail" x="[\d.]+" y="\d+" width="[\d.]+"', html)
    assert "step 3, a turn begun by cron\nthinking" in html
    assert [html.count(f'<path class="{who}"') for who in ("human", "turn")] == [2, 2]


def test_the_page_is_as_other_files_are_and_replaces_the_old_one_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    out.write_text("old")
    page = Page(str(out), "x")
    assert out.read_text() == "old"
    page.write()
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~mask
    assert "What loopd would have done" in out.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
    Page(str(out), "x").discard()
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


def test_equal_input_gives_an_equal_page(tmp_path: Path) -> None:
    assert written(tmp_path, stuck(), healthy()) == written(tmp_path, stuck(), healthy())


def test_a_page_of_many_logs_stays_small_and_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "CELLS_MAX", 100)
    monkeypatch.setattr(pages, "QUIET_MAX", 2)
    monkeypatch.setattr(pages, "ROWS_MAX", 30)
    html = written(tmp_path, *(healthy(f"fine{n}", 5) for n in range(40)), stuck("one"), stuck("two", 90))
    read = Reader(html)
    assert "12 more logs are not listed." in read.words
    assert "28 logs without findings" in read.words
    assert "26 logs without findings are not drawn." in read.words
    assert "Not drawn: there are too many steps in all." in read.words
    assert read.tags.count("section") == 4


def test_a_long_log_is_drawn_up_to_a_point(tmp_path: Path) -> None:
    html = written(tmp_path, stuck("long", 6_000))
    assert "Drawn up to step 5,000." in html
    width = re.search(r'aria-label="[^"]*" width="(\d+)"', html)
    assert width is not None
    assert int(width[1]) == 2 * 5_000 + 64 + 12


@pytest.mark.parametrize("sample", sorted(DATA.iterdir()), ids=lambda path: path.name)
def test_samples_of_real_agents_can_be_drawn(tmp_path: Path, sample: Path) -> None:
    out = tmp_path / "out.html"
    assert run("inspect", str(sample), "--html", str(out)).code == 0
    assert Reader(out.read_text()).tags.count("section") == 1


# -- a real browser -------------------------------------------------------------------------------


def browse(tmp_path: Path, html: str, *words: str) -> str:
    assert CHROMIUM is not None
    path = tmp_path / "page.html"
    path.write_text(html)
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--window-size=1280,1600",
    ]
    done = subprocess.run(
        [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", *words, path.as_uri()],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    return done.stdout


def pixels(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.real
@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_a_real_browser_shows_it_and_runs_nothing(tmp_path: Path) -> None:
    html = written(tmp_path, evil(), stuck("looper"))
    dom = browse(tmp_path, html, "--dump-dom")
    assert "<title>loopd inspect</title>" in dom  # the agent's script would have changed it
    assert "owned" in dom
    assert "<script" not in dom
    assert "<img" not in dom
    assert dom.count("<section") == 2
    assert dom.count('<rect class="call"') == 24 + 30 + 1
    assert dom.count('<path class="rung"') == 2
    read = Reader(dom)
    assert "looper" in read.words
    assert EVIL[:30] in read.words


@pytest.mark.real
@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_a_real_browser_paints_it_light_and_dark(tmp_path: Path) -> None:
    html = written(tmp_path, stuck("looper"), healthy())
    shots = []
    for name, words in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
        out = tmp_path / f"{name}.png"
        browse(tmp_path, html, f"--screenshot={out}", *words)
        shots.append(out.read_bytes())
    assert [pixels(shot) for shot in shots] == [(1280, 1600)] * 2
    assert len(shots[0]) > 20_000  # an empty page of this size has 8 KB
    assert shots[0] != shots[1]
