"""What `loopctl recover` shows at three in the morning: every number with its names, and what to do."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import run
from tests.cli.test_uncertain import Frame, peer

BOOT: dict[str, Any] = {
    "boot": 7,
    "at_ms": 1_700_000_000_000,
    "clean": False,
    "took_ms": 800,
    "down_ms": 16_000,
    "boots_recent": 3,
    "sessions": 120,
    "ended": 4,
    "interrupted_count": 103,
    "interrupted": {"ses_1": 12, "ses_gone": 3},
    "uncertain_count": 1,
    "uncertain": {"1.12.1.c1": "ses_1"},
    "repeatable_count": 2,
    "crash_loops": ["ses_2"],
    "overdue": 40,
    "spread_ms": 5_000,
    "refused": {"ses_3": "the stored state contradicts the journal"},
    "scheduled_wait_until_ms": 1_700_000_300_000,
    "leftovers": 1,
    "calls_count": 2,
    "calls": {"ses_1": 2},
}
NAMES = {"ses_1": "mailer", "ses_2": "looper", "ses_3": "edited"}


def answered(frame: Frame) -> Frame:
    command = frame["c"]
    if command["t"] == "recovery.get":
        return {"t": "ok", "id": frame["id"], "seq": 9, "r": {"boots": [BOOT]}}
    sid = command["sid"]
    if sid not in NAMES:
        return {"t": "err", "id": frame["id"], "code": "not_found", "msg": f"no session {sid!r}"}
    return {"t": "ok", "id": frame["id"], "seq": 9, "r": {"sid": sid, "name": NAMES[sid]}}


def test_all_that_a_boot_found_is_named_with_what_can_be_done() -> None:
    with peer(answered) as (path, _):
        said = run("recover", "--socket", path)
    assert said.code == 0, said.err
    for words in (
        "boot 7 at ",
        "after a crash, down for 16s",
        "120 live, 4 ended",
        "interrupted turns  103",
        "model calls cut    2, what they cost is not known",
        "cut, repeatable    2",
        "overdue deadlines  40, spread over 5s",
        "starts in 15 min   3",
        "cron waits         waited until ",
        "processes ended    1",
        "interrupted: turn 12 of mailer",
        "interrupted: turn 3 of ses_gone",
        "… and 101 more",
        "uncertain: 1.12.1.c1 of mailer (loopctl effect list)",
        "model calls cut: 2 of mailer",
        "held, the daemon keeps dying in it: looper (loopctl why looper)",
        "left alone: edited: the stored state contradicts the journal (loopctl verify edited)",
    ):
        assert words in said.out, words


def test_json_has_it_as_it_was_recorded() -> None:
    with peer(answered) as (path, _):
        said = run("recover", "-o", "json", "--socket", path)
    assert json.loads(said.out)["boots"] == [BOOT]
