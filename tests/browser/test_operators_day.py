"""The operator's day, in a browser."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.conftest import AXE, Page
from tests.e2e.harness import FILLER, Daemon, House, working

FAST = {"continuation.min_gap_ms": 30}


def test_sees_it_degenerate_opens_the_evidence_suspends_proves_sends_and_scrubs_back(
    house: House, served: Daemon, page: Page
) -> None:
    tab = page.tab
    page.see("No sessions yet")
    stuck = served.scripted(house.script([FILLER]), name="stuck", goal="score 100", set=FAST)
    served.scripted(
        house.script(working(), "ok.jsonl"),
        name="patient",
        goal="write",
        set={"continuation.min_gap_ms": 400},
    )
    # It degenerates while it is watched, and then stands first, with why and until when.
    row = tab.locator("table.sessions tbody tr", has_text="stuck")
    row.locator("td", has_text="Degeneration").wait_for()
    assert "(in " in row.locator("time-left").inner_text()
    assert tab.locator("table.sessions tbody tr").first.inner_text().count("stuck") == 1
    # The evidence, side by side.
    row.get_by_role("link", name="stuck").click()
    page.see("score 100", ".facts")
    tab.locator(".feed a", has_text="repeated_text").first.click()
    page.see("Evidence")
    assert tab.locator(".beside .step").count() == 4
    assert tab.locator(".beside .step", has_text=FILLER).count() == 4
    tab.get_by_role("link", name="session", exact=True).click()
    # Suspend it with a reason, by key; read the proof.
    tab.get_by_role("button", name="Suspend").wait_for()
    tab.keyboard.press("s")
    tab.get_by_role("dialog").get_by_role("textbox").fill("cost review")
    tab.get_by_role("dialog").get_by_role("button", name="Suspend").click()
    page.see("proof from seq", "#notes")
    page.see("UserSuspend by token:", ".facts")
    assert [
        h["reason"] for h in served.call("session.get", stuck)["holds"] if h["kind"] == "UserSuspend"
    ] == ["cost review"]
    tab.get_by_role("button", name="Prove it").click()
    page.see("Proven on the journal", "dialog")
    tab.get_by_role("dialog").get_by_role("button", name="Close").click()
    # Lift it, send a message, watch it go on.
    tab.get_by_role("button", name="Unsuspend").click()
    page.see("is not suspended any more", "#notes")
    before = served.call("session.get", stuck)["turns"]
    tab.get_by_role("button", name="Message").click()
    tab.get_by_role("dialog").get_by_role("textbox").fill("look at the log")
    tab.get_by_role("dialog").get_by_role("button", name="Send").click()
    page.see("durable as env_", "#notes")
    served.until(stuck, "turn.started", lambda body: body["n"] > before)
    page.see("“look at the log”", ".feed")
    # Scrub back to before anything was wrong, and to now again.
    tab.get_by_label("Moment that is shown").fill("3")
    page.see("This is the past")
    tab.locator(".facts", has_text="So far").wait_for()
    tab.locator(".facts dd", has_text=re.compile(r"^[01] turns")).wait_for()
    assert "Degeneration" not in tab.locator(".facts").inner_text()
    tab.get_by_role("button", name="Back to now").click()
    tab.get_by_role("button", name="Suspend").wait_for()
    # A turn: what the model saw, and how that differs from another one.
    tab.goto(f"{served.ready['http']}/#/s/{stuck}/t/3")
    page.see("What the model saw")
    tab.get_by_role("button", name="Compare").click()
    page.see("only turn 2 saw")


def test_a_restart_of_the_daemon_is_survived_and_nothing_is_missed(
    house: House, served: Daemon, page: Page
) -> None:
    port = served.ready["http"].rpartition(":")[2]
    first = served.scripted(house.script(working()), name="first", goal="go on", set=FAST)
    served.until(first, "turn.completed", count=3)
    page.go(f"/s/{first}")
    page.see("go on", ".facts")
    served.kill()
    page.see("not connected", "#health")
    served.http = False
    served.argv = ["--http", f"127.0.0.1:{port}"]
    served.start()
    page.see("ready", "#health")
    last = served.until(first, "turn.completed", count=6)["b"]["n"]
    page.see(f"{last} completed", ".feed")
    numbers = [event["b"]["n"] for event in served.events(first, "turn.started")]
    assert numbers == sorted(set(numbers))
    shown = page.tab.locator(".timeline svg .turn").count()
    assert shown >= last
    page.complaints = [c for c in page.complaints if "ERR_CONNECTION" not in c and "WebSocket" not in c]


def test_what_agents_write_is_text_and_nothing_else(house: House, served: Daemon, page: Page) -> None:
    evil = '<img src=x onerror="alert(1)"><script>alert(2)</script>\u202e<b>bold</b>\x1b[31m'
    call = {"name": "<i>x</i>", "args": {"a": evil}, "ok": False, "result": evil}
    sid = served.scripted(
        house.script([{"text": evil, "calls": [call]}]), name="evil", goal=evil, labels={"a": "<u>b</u>"}
    )
    served.until(sid, "turn.completed")
    for place in ("/", f"/s/{sid}", f"/s/{sid}/t/1"):
        page.go(place)
        page.tab.wait_for_load_state("networkidle")
        assert page.tab.locator("main img, main script, main b:text-is('bold'), main i, main u").count() == 0
    page.see("<img src=x")
    page.see("\\u202e")
    assert page.complaints == []


def test_who_may_only_read_sees_no_controls_and_no_words(house: House, served: Daemon, browser: Any) -> None:
    sid = served.scripted(house.script(["a secret plan"]), name="hidden", goal="the goal")
    served.until(sid, "turn.completed")
    page = Page(browser, served).log_in(["read"])
    try:
        page.go(f"/s/{sid}")
        page.see("hidden", "h1")
        page.tab.wait_for_load_state("networkidle")
        assert page.tab.get_by_role("button", name="Suspend").count() == 0
        assert "a secret plan" not in page.tab.locator("body").inner_text()
    finally:
        page.close()


def test_a_wrong_token_is_refused_in_words(served: Daemon, browser: Any) -> None:
    served.call("token.new", scopes=["read"])
    page = Page(browser, served)
    try:
        page.tab.goto(served.ready["http"] + "/")
        page.tab.get_by_label("Token").fill("lpd_no_good")
        page.tab.get_by_role("button", name="Log in").click()
        page.see("unauthenticated", ".login")
    finally:
        page.close()


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: make test-page")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_view_breaks_the_rules_of_accessibility(
    house: House, served: Daemon, browser: Any, scheme: str, width: int
) -> None:
    stuck = served.scripted(house.script([FILLER]), name="stuck", goal="score 100", set=FAST)
    finding = served.until(stuck, "degeneration.detected")["seq"]
    held = served.scripted(house.script(working()), name="held", goal="x", labels={"team": "web"})
    served.call("suspend", held, reason="review")
    page = Page(
        browser, served, viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
    ).log_in()
    try:
        for place in ("/", f"/s/{stuck}", f"/s/{held}", f"/s/{stuck}/t/3", f"/s/{stuck}/f/{finding}"):
            page.go(place)
            page.tab.wait_for_load_state("networkidle")
            page.tab.evaluate(AXE.read_text())
            found = page.tab.evaluate("axe.run(document)")["violations"]
            assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], place
            wide = page.tab.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, f"{place} scrolls sideways by {wide} px at {width} px"
    finally:
        page.close()
