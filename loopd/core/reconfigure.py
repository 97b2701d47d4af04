"""Settings of a session that change while it lives: for its next turn, checked first, recorded whole. Pure.

The rules of the running turn stay as they were when it began, so that what was found in it can be
explained by one set of settings. Rules about tool calls hold from now on: they are about safety.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopd.core import policy
from loopd.core.policy_inputs import ConfigSetRequested
from loopd.core.settings import config_revision, setting_keys, settings_of
from loopd.core.state import Session
from loopd_protocol.errors import Refused
from loopd_protocol.policy_events import ConfigChanged

if TYPE_CHECKING:
    from loopd.core.decision import Decision


def overrides_of(session: Session) -> dict[str, Any]:
    """The overrides that hold from the next turn on."""
    return session.overrides if session.next_overrides is None else session.next_overrides


def change(decision: Decision, given: ConfigSetRequested) -> None:
    """Check and record a change; one that changes nothing leaves no event.

    Raises:
        Refused: `unknown_field` or `invalid`, as for `session.create`.
    """
    session = decision.session
    before = overrides_of(session)
    for key in given.unset:
        if key not in before and key not in setting_keys():
            raise Refused("unknown_field", f"unknown setting {key!r}; expected a dotted key", path="$.unset")
    after = {key: value for key, value in before.items() if key not in given.unset} | dict(given.set)
    settings = settings_of(session.preset, after)
    if given.policy is not None:
        policy.check(given.policy)
    changed = tuple(sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)))
    new_policy = given.policy if given.policy != session.permits.rules else None
    if not changed and new_policy is None:
        return
    decision.emit(
        ConfigChanged(
            settings=after,
            changed=changed,
            revision=config_revision(settings),
            effective="now" if session.turn is None else "next_turn",
            policy=new_policy,
            by=given.by,
            reason=given.reason,
        )
    )
