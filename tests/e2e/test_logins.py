"""Logins of the page, over restarts of a real daemon."""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.harness import House

pytestmark = pytest.mark.process


def test_a_daemon_that_was_killed_still_knows_who_logged_out(house: House) -> None:
    daemon = house.daemon("page", http=True).start()
    token = daemon.call("token.new", scopes=["read"])["token"]
    with httpx.Client(base_url=daemon.ready["http"]) as page:
        kept = page.post("/v1/login", json={"token": token})
        page.cookies.clear()
        out = page.post("/v1/login", json={"token": token})
        cookie = {"cookie": out.headers["set-cookie"].partition(";")[0]}
        page.cookies.clear()
        left = page.post("/v1/logout", headers={**cookie, "x-csrf-token": out.json()["csrf"]})
        assert left.json() == {"out": True}
    daemon.kill()
    daemon.start()
    with httpx.Client(base_url=daemon.ready["http"]) as page:
        assert page.get("/v1/me", headers=cookie).status_code == 401
        still = {"cookie": kept.headers["set-cookie"].partition(";")[0]}
        assert page.get("/v1/me", headers=still).status_code == 200
