"""Settings that change while a session lives: checked, recorded, and in force from the next turn on."""

from __future__ import annotations

from typing import Any

import pytest

from loopd.core.inputs import Advanced, CutRequested, GoalChangeRequested
from loopd.core.policy_inputs import ConfigSetRequested
from loopd.core.settings import config_revision, settings_for
from loopd_protocol import events as ev
from loopd_protocol import policy_events as pe
from loopd_protocol.errors import Refused
from loopd_protocol.policy import PolicyRule
from tests.core.world import World

DENY = PolicyRule(effect="deny", tool_class="net")


def configure(made: World, **given: Any) -> Advanced:
    return made.apply(ConfigSetRequested(by="uid:1", **given))


def test_between_turns_it_holds_at_once() -> None:
    made = World({"turn.max_steps": 5})
    configure(made, set={"turn.max_steps": 2, "stop.profile": "yolo"}, reason="be brief")
    assert made.session.overrides == {"turn.max_steps": 2, "stop.profile": "yolo"}
    (changed,) = made.of(pe.ConfigChanged)
    assert (changed.changed, changed.effective) == (("stop.profile", "turn.max_steps"), "now")
    assert changed.revision == config_revision(settings_for("published", made.session.overrides))
    made.refold_everything()


@pytest.mark.parametrize("end", ["completed", "cut", "crash"])
def test_during_a_turn_it_holds_from_the_next_one_on(end: str) -> None:
    made = World({"turn.max_steps": 5})
    made.send()
    configure(made, set={"turn.max_steps": 1})
    configure(made, set={"approvals.wait_s": 7})
    assert made.session.overrides == {"turn.max_steps": 5}
    assert not made.step(text="one", calls=(ev.ToolCall(id="c", name="ls", ok=True),)).stop
    if end == "completed":
        made.finish()
    elif end == "cut":
        made.apply(CutRequested(cause="deadline"))
    else:
        made.crash()
        made.apply(CutRequested(cause="crash"))
    assert made.session.overrides == {"turn.max_steps": 1, "approvals.wait_s": 7}
    made.send()
    assert made.step(text="two", calls=(ev.ToolCall(id="c", name="ls", ok=True),)).stop
    made.refold_everything()


def test_rules_about_tool_calls_hold_at_once_also_during_a_turn() -> None:
    made = World(policy=(PolicyRule(effect="allow"),))
    made.send()
    configure(made, policy=(DENY,))
    assert made.session.permits.rules == (DENY,)
    configure(made, policy=())
    assert made.session.permits.rules == ()
    made.refold_everything()


def test_unset_goes_back_to_the_preset_and_the_goal_of_the_next_turn_is_told_by_the_new_text() -> None:
    made = World({"continuation.text": "again: {goal}", "continuation.min_gap_ms": 0}, goal="win")
    configure(made, set={"continuation.text": "go on: {goal}"}, unset=("continuation.min_gap_ms",))
    made.apply(GoalChangeRequested(by="uid:1", status="active", text="win more"))
    made.tick_through(made.now + 2_000)
    (started,) = made.of(ev.TurnStarted)
    assert started.prompt == "go on: win more"


def test_what_changes_nothing_leaves_no_event() -> None:
    made = World({"turn.max_steps": 5})
    before = made.session.ss
    configure(made, set={"turn.max_steps": 5}, unset=("stop.profile",), policy=())
    assert made.session.ss == before


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"set": {"turn.max_stepz": 1}}, "unknown_field"),
        ({"set": {"turn.max_steps": 0}}, "invalid"),
        ({"unset": ("nothing.like_it",)}, "unknown_field"),
        ({"policy": (PolicyRule(effect="deny", tool_class="edit", command="x"),)}, "invalid"),
    ],
)
def test_what_cannot_hold_is_refused_whole(given: dict[str, Any], code: str) -> None:
    made = World({"turn.max_steps": 5})
    with pytest.raises(Refused) as refused:
        configure(made, **{"set": {"approvals.wait_s": 9}, **given} if "set" not in given else given)
    assert refused.value.code == code
    assert made.session.overrides == {"turn.max_steps": 5}
