"""Logins of the page: what ends one, and what remembers that it ended."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from loopd.server.http import cookies as module
from loopd.server.http.cookies import COOKIE_MS, COOKIES, Cookies
from loopd_protocol.errors import Refused

NOW = 1_800_000_000_000


def stands(cookies: Cookies, cookie: str, now_ms: int = NOW) -> bool:
    try:
        return cookies.kid(cookie, now_ms) == "kid"
    except Refused:
        return False


def test_a_logout_outlives_a_restart_and_other_logins_too(tmp_path: Path) -> None:
    path = tmp_path / "cookie.key"
    cookies = Cookies(path)
    mine, other = (cookies.issue("kid", NOW + COOKIE_MS) for _ in range(2))
    cookies.forget(mine, NOW)
    for again in (cookies, Cookies(path)):
        assert (stands(again, mine), stands(again, other)) == (False, True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert mine.encode() not in path.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["cookie.key"]


def test_a_key_of_before_stands_and_half_a_key_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "cookie.key"
    path.write_bytes(b"k" * 32)
    cookie = Cookies(path).issue("kid", NOW + COOKIE_MS)
    assert stands(Cookies(path), cookie)
    for broken in (b"k" * 31, b"k" * 32 + b"no line of ours\n", b"k" * 32 + b"\xff\xfe\n", b""):
        path.write_bytes(broken)
        cookies = Cookies(path)
        assert not stands(cookies, cookie), "what ended is not known, so nothing stands"
        assert stands(Cookies(path), cookies.issue("kid", NOW + COOKIE_MS))


def test_too_many_logouts_end_every_login_and_forget_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COOKIES", 5)
    path = tmp_path / "cookie.key"
    cookies = Cookies(path)
    made = [cookies.issue("kid", NOW + COOKIE_MS) for _ in range(6)]
    stays = cookies.issue("kid", NOW + COOKIE_MS)
    for count, cookie in enumerate(made, 1):
        cookies.forget(cookie, NOW)
        for again in (cookies, Cookies(path)):
            assert not any(stands(again, ended) for ended in made[:count])
            assert stands(again, stays) is (count <= 5)
    fresh = cookies.issue("kid", NOW + COOKIE_MS)
    assert stands(Cookies(path), fresh)


def test_what_has_ended_by_itself_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COOKIES", 2)
    cookies = Cookies(tmp_path / "cookie.key")
    stays = cookies.issue("kid", NOW + 10 * COOKIE_MS)
    for n in range(6):
        now = NOW + n * COOKIE_MS
        cookies.forget(cookies.issue("kid", now + COOKIE_MS), now)
        assert stands(cookies, stays, now)
    assert (tmp_path / "cookie.key").read_bytes()[module.KEY_BYTES :].count(b"\n") == 1


def test_what_is_no_login_takes_no_place(tmp_path: Path) -> None:
    path = tmp_path / "cookie.key"
    cookies = Cookies(path)
    before = path.read_bytes()
    ended = cookies.issue("kid", NOW)
    for word in ("", "x", "....", "é", ended, Cookies().issue("kid", NOW + COOKIE_MS)):
        cookies.forget(word, NOW)
    mine = cookies.issue("kid", NOW + COOKIE_MS)
    assert path.read_bytes() == before
    for _ in range(3):
        cookies.forget(mine, NOW)
    assert path.read_bytes()[module.KEY_BYTES :].count(b"\n") == 1


def test_a_logout_that_cannot_be_kept_is_refused_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cookie.key"
    cookies = Cookies(path)
    mine = cookies.issue("kid", NOW + COOKIE_MS)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(Refused) as caught:
            cookies.forget(mine, NOW)
    assert (caught.value.code, path.read_bytes()) == ("storage_full", before)
    assert stands(cookies, mine)
    cookies.forget(mine, NOW)
    assert not stands(Cookies(path), mine)


def test_as_many_logouts_as_are_kept_are_one_small_file() -> None:
    assert COOKIES * 100 < 1 << 20
