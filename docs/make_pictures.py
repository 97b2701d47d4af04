"""Make the pictures of the page and of the terminal screen again: `make pictures`.

A daemon of its own plays recorded agents: one that answers the same for ever, one that works, one that a person
suspended, one that was ended. Then a real Chromium and Textual itself take the pictures.
Needs what `make test-page` installs.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from loopd.cli.link import Link
from loopd.cli.screen.app import Top
from loopd.cli.screen.feed import Feed
from loopd.demo.stage import Stage

HERE = Path(__file__).parent / "pictures"
FILLER = "16/100. Not complete. No action."
SCOPES = ["read", "read.content", "send", "control", "admin", "approve"]
FONTS = re.compile(r"@font-face\s*\{[^}]*\}\s*")
"""Textual's pictures name fonts to be loaded from elsewhere; the reader's own serves as well."""

SIZES = {"wide": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 780}}


def script(path: Path, texts: list[str], *, works: bool) -> str:
    """Write a trajectory; returns its path."""
    lines: list[dict[str, Any]] = [{"t": "trajectory", "v": 1, "id": path.stem}]
    for n, text in enumerate(texts, 1):
        call = {
            "id": f"c{n}",
            "name": "write_file",
            "args": {"path": f"chapter{n}.md"},
            "ok": True,
            "result": f"wrote {n}",
        }
        usage = {"input_tokens": 2_400 + 60 * n, "output_tokens": 13 if not works else 180}
        lines.append(
            {
                "t": "step",
                "n": n,
                "trigger": "continuation",
                "text": text,
                "calls": [call] if works else [],
                "usage": usage,
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def play(stage: Stage) -> str:
    """Make the sessions; returns the stuck one, once it was caught."""
    filler = script(stage.data / "filler.jsonl", [FILLER], works=False)
    writing = script(
        stage.data / "writing.jsonl", [f"Chapter {n} is written." for n in range(1, 200)], works=True
    )

    def create(name: str, path: str, goal: str, **more: Any) -> str:
        driver = {"kind": "scripted", "script": path}
        return str(
            stage.client.call({"t": "session.create", "driver": driver, "name": name, "goal": goal, **more})[
                "sid"
            ]
        )

    stuck = create(
        "benchmark",
        filler,
        "raise the score to 100/100",
        preset="published",
        set={"continuation.min_gap_ms": 400},
    )
    writer = create(
        "handbook",
        writing,
        "write the handbook",
        set={"continuation.min_gap_ms": 900},
        labels={"team": "docs"},
    )
    held = create("migration", writing, "migrate the tables", labels={"team": "web"})
    stage.client.call({"t": "suspend", "sid": held, "reason": "cost review, back on Monday"})
    stage.client.call(
        {"t": "cron.put", "sid": writer, "job": "nightly", "expr": "0 3 * * *", "text": "check the build"}
    )
    over = create("translation", writing, "translate it")
    stage.client.call({"t": "session.end", "sid": over, "reason": "no longer needed"})
    stage.sid = stuck
    stage.expect("the gate closes", lambda _: None, lambda seen: any(e["k"] == "gate.changed" for e in seen))
    stage.sid = ""
    return stuck


def page_pictures(stage: Stage, url: str, stuck: str) -> None:
    """Fleet, session, finding, turn; wide and light, on a phone and dark."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    token = stage.client.call({"t": "token.new", "scopes": SCOPES, "note": "pictures"})["token"]
    finding = next(
        e
        for e in stage.client.call({"t": "history.page", "sid": stuck, "limit": 1_000})["events"]
        if e["k"] == "degeneration.detected"
    )
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for kind, scheme in (("wide", "light"), ("phone", "dark")):
            tab = browser.new_context(viewport=SIZES[kind], color_scheme=scheme).new_page()
            tab.goto(url)
            tab.get_by_label("Token").fill(token)
            tab.get_by_role("button", name="Log in").click()
            for name, place in (
                ("fleet", ""),
                ("session", f"s/{stuck}"),
                ("finding", f"s/{stuck}/f/{finding['seq']}"),
                ("turn", f"s/{stuck}/t/3"),
            ):
                tab.goto(f"{url}/#/{place}")
                tab.locator("h1").first.wait_for()
                tab.wait_for_load_state("networkidle")
                tab.wait_for_timeout(1_500)  # some events to see
                tab.screenshot(path=HERE / f"page-{name}-{kind}.png")
        browser.close()


async def screen_pictures(stage: Stage, stuck: str) -> None:
    """The terminal screen: fleet and session, at 100 × 24."""
    link = Link(str(stage.data / "control.sock"), None, 30.0)
    for name, session in (("fleet", None), ("session", stuck)):
        feed = Feed(link)
        app = Top(feed, session)
        async with app.run_test(size=(100, 24)) as pilot:
            await pilot.pause(2.5)
            picture = app.export_screenshot(title=f"loopctl top {'benchmark' if session else ''}".strip())
            (HERE / f"screen-{name}.svg").write_text(FONTS.sub("", picture))
        feed.close()


def main() -> int:
    """Make all pictures."""
    HERE.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="lp"))
    try:
        with Stage(folder, colours=False) as stage:
            url = str(stage.client.call({"t": "daemon.status"})["http"])
            stuck = play(stage)
            page_pictures(stage, url, stuck)
            asyncio.run(screen_pictures(stage, stuck))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for file in sorted(HERE.iterdir()):
        print(f"{file.relative_to(HERE.parent.parent)}  {file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
