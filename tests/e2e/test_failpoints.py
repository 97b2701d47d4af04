"""Fail-points: a daemon that is told where to die dies there, and nobody else can be told."""

from __future__ import annotations

import signal

import pytest

from loopd import failpoints
from loopd.config import ConfigRefused, load
from loopd_protocol.errors import Refused
from tests.e2e.harness import DaemonDied, House, working

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "word", ["", "commit.done", "commit.done:explode", "nowhere.at:kill", "commit.done:kill@0"]
)
def test_a_point_that_is_none_is_refused_with_the_list(word: str) -> None:
    if not word:
        assert failpoints.parse(word) == {}
        return
    with pytest.raises(Refused, match="expected NAME"):
        failpoints.parse(word)


def test_points_are_refused_without_the_test_flag() -> None:
    environ = {"LOOPD_DATA": "d", "LOOPD_TESTING_FAILPOINTS": "commit.done:kill"}
    with pytest.raises(ConfigRefused, match=r"testing\.enabled = true"):
        load(environ=environ)
    with pytest.raises(ConfigRefused, match=r"testing\.enabled = true"):
        load(environ={"LOOPD_DATA": "d", "LOOPD_TESTING_CLOCK_OFFSET_FILE": "f"})
    assert load(environ={**environ, "LOOPD_TESTING_ENABLED": "true"}).testing.failpoints


def test_a_daemon_without_the_flag_does_not_start(house: House) -> None:
    daemon = house.daemon(env={"LOOPD_TESTING_FAILPOINTS": "commit.done:kill"})
    with pytest.raises(DaemonDied) as died:
        daemon.start()
    assert died.value.code == 2


def test_a_daemon_dies_where_it_is_told_and_the_next_one_has_what_was_durable(house: House) -> None:
    told = {
        "LOOPD_TESTING_ENABLED": "true",
        "LOOPD_TESTING_FAILPOINTS": "commit.done/envelope.accepted:kill@2",
    }
    daemon = house.daemon(env=told).start()
    sid = daemon.scripted(house.script(working()))
    daemon.call("send", sid, text="one")
    assert daemon.refusal("send", sid, text="two").code in {"timeout", "unavailable"}
    assert daemon.wait() == -signal.SIGKILL
    daemon.env = {key: value for key, value in daemon.env.items() if key not in told}
    daemon.start()
    texts = [event["b"]["text"] for event in daemon.events(sid, "envelope.accepted")]
    assert texts == ["one", "two"], "the second was durable before it was acknowledged"
    daemon.verified()
