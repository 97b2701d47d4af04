"""The web page in a real Chromium: first useful paint with 500 sessions, and whether it keeps up for minutes.

    python -m tests.bench.bench_page [--quick] [--seconds N]

Needs what `make test-page` installs; says so and prints nothing else without it. Useful is the paint in which
the fleet's rows stand with their reasons. Then five sessions make some 200 events a second; each second the page
says which event it heard last, and how large its heap is after a collection. The peer of the paint is an empty
page of the same server in the same browser.
"""

from __future__ import annotations

import statistics
import sys
import time

from tests.bench.figures import report
from tests.browser.conftest import CHROMIUM, Page
from tests.e2e.harness import NO_RULES, Daemon, House, working

QUICK = "--quick" in sys.argv
SECONDS = int(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else 20 if QUICK else 300
SESSIONS = 500
ROUNDS = 3 if QUICK else 7
BUSY = 13
GAP_MS = 150
"""Thirteen sessions with a turn of three events about every 160 ms."""
PAINTED = """() => new Promise((done) => {
  const look = () => document.querySelectorAll("table.sessions tbody tr").length >= %d
    ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 5);
  look();
})"""


def main() -> None:
    """Measure and print."""
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415
    except ImportError:
        sys.stderr.write("bench_page: playwright is not installed; `make test-page` does it\n")
        return
    if CHROMIUM is None:
        sys.stderr.write("bench_page: no chromium; Debian: apt-get install chromium\n")
        return
    house = House()
    try:
        with sync_playwright() as running:
            browser = running.chromium.launch(
                executable_path=CHROMIUM,
                args=["--no-sandbox", "--enable-precise-memory-info", "--js-flags=--expose-gc"],
            )
            daemon = house.daemon(http=True, config="[limits]\nconcurrent_turns = 64\n").start()
            script = house.script(working())
            for n in range(SESSIONS):
                daemon.scripted(script, name=f"s{n}")
            page = Page(browser, daemon, viewport={"width": 1280, "height": 900}).log_in()
            paint(page)
            page.complaints.clear()  # a browser asks for a favicon beside a bare picture
            for n in range(BUSY):
                daemon.scripted(
                    script, name=f"busy{n}", goal="go on", set=NO_RULES | {"continuation.min_gap_ms": GAP_MS}
                )
            keeps_up(page, daemon)
            page.close()
            browser.close()
    finally:
        house.close()


def paint(page: Page) -> None:
    """First useful paint with all sessions."""
    took, empty = [], []
    for _ in range(ROUNDS):
        page.tab.goto(page.daemon.ready["http"] + "/page/icon.svg")
        began = time.perf_counter()
        page.tab.goto(page.daemon.ready["http"] + "/page/icon.svg")
        empty.append((time.perf_counter() - began) * 1_000)
        page.tab.goto(page.daemon.ready["http"] + "/")
        took.append(float(page.tab.evaluate(PAINTED % SESSIONS)))
    report("first useful paint with 500 sessions", took, unit="ms", goal=1_000, better="less")
    report("an empty page of the same server", empty, unit="ms")


def keeps_up(page: Page, daemon: Daemon) -> None:
    """Heap and delay of the page under a stream of events."""
    tab = page.tab
    tab.evaluate(
        """() => { window.heard = 0; new MutationObserver(() => { window.drawn = performance.now(); })
        .observe(document.querySelector(".feed"), { childList: true }); }"""
    )
    head = daemon.head()
    began = time.monotonic()
    heaps: list[float] = []
    behind: list[float] = []
    while time.monotonic() - began < SECONDS:
        tab.wait_for_timeout(1_000)
        heaps.append(
            float(tab.evaluate("() => { gc(); return performance.memory.usedJSHeapSize / 1048576; }"))
        )
        behind.append(float(tab.evaluate("() => performance.now() - (window.drawn ?? 0)")))
    rate = (daemon.head() - head) / (time.monotonic() - began)
    third = max(1, len(heaps) // 3)
    first, last = statistics.median(heaps[third : 2 * third]), statistics.median(heaps[-third:])
    report("events a second while the page was watched", [rate], unit="events/s", goal=200, better="more")
    report("time since the page drew its newest events", behind, unit="ms", goal=2_000, better="less")
    report("heap at the end to the heap in the middle", [last / first], unit="×", goal=1.05, better="less")
    complaints = [one for one in page.complaints if "401" not in one]
    assert complaints == [], complaints


if __name__ == "__main__":
    main()
