"""A real browser on a real daemon. `make test-page` installs what these tests need and runs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Daemon, House

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loopd-page"
AXE = CACHE / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCOPES = ["read", "read.content", "send", "control", "create", "cron", "approve", "admin"]
HARMLESS = ("favicon",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of it needs something big; say what is missing."""
    missing = [] if CHROMIUM else ["chromium (Debian: apt-get install chromium)"]
    try:
        import playwright  # noqa: F401, PLC0415
    except ImportError:
        missing.append("playwright")
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}: make test-page"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def served(house: House) -> Daemon:
    """A daemon with HTTP."""
    return house.daemon(http=True).start()


@pytest.fixture
def house() -> Iterator[House]:
    """A folder in which daemons live; all are ended with the test."""
    house = House()
    try:
        yield house
    finally:
        house.close()


class Page:
    """A tab, with everything that it complained about."""

    def __init__(self, browser: Any, daemon: Daemon, **context: Any) -> None:
        self.daemon = daemon
        self.context = browser.new_context(**context)
        self.complaints: list[str] = []
        self.tab = self.context.new_page()
        self.tab.on("console", self._heard)
        self.tab.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        self.tab.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _heard(self, message: Any) -> None:
        if message.type in {"error", "warning"} and not any(word in message.text for word in HARMLESS):
            self.complaints.append(f"{message.type}: {message.text}")

    def log_in(self, scopes: list[str] | None = None) -> Page:
        """Open the page and give it a token; returns with the fleet on it."""
        token = self.daemon.call("token.new", scopes=scopes or SCOPES, note="page")["token"]
        self.tab.goto(self.daemon.ready["http"] + "/")
        self.tab.get_by_label("Token").fill(token)
        self.complaints.clear()  # the browser itself reports the 401 that says: nobody is logged in
        self.tab.get_by_role("button", name="Log in").click()
        self.tab.locator("#health", has_text="ready").wait_for()
        return self

    def go(self, place: str) -> None:
        """A view by its address."""
        self.tab.goto(f"{self.daemon.ready['http']}/#{place}")

    def see(self, text: str, within: str = "body") -> Any:
        """Wait until a text is on the page."""
        found = self.tab.locator(within, has_text=text).first
        found.wait_for()
        return found

    def close(self) -> None:
        """Close the tab."""
        self.context.close()


@pytest.fixture
def page(browser: Any, served: Daemon) -> Iterator[Page]:
    """A tab that is logged in."""
    page = Page(browser, served, viewport={"width": 1280, "height": 900})
    try:
        yield page.log_in()
        assert page.complaints == []
    finally:
        page.close()
