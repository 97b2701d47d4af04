"""What a typed line means."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.cli.screen import slash
from loopd_protocol.commands import COMMAND_TYPES, AnyCommand

NOW = 1_795_300_000_000


@pytest.mark.parametrize(
    ("typed", "kind", "fields"),
    [
        ("/suspend cost review", "suspend", {"reason": "cost review"}),
        ("/unsuspend", "unsuspend", {}),
        ("/interrupt", "interrupt", {}),
        ("/interrupt 30m", "interrupt", {"for_ms": 1_800_000}),
        ("/send /etc is a folder", "send", {"text": "/etc is a folder"}),
        ("look at chapter 3 first", "send", {"text": "look at chapter 3 first"}),
        ("/goal map every module", "goal.set", {"text": "map every module"}),
        ("/goal pause", "goal.pause", {}),
        ("/goal infeasible no access", "goal.infeasible", {"reason": "no access"}),
        ("/gate open", "gate.open", {}),
        ("/gate open degeneration", "gate.open", {"kind": "Degeneration"}),
        ("/gate extend usersuspend 2h", "gate.extend", {"kind": "UserSuspend", "until_ms": NOW + 7_200_000}),
        ("/end no longer needed", "session.end", {"reason": "no longer needed"}),
        ("/freeze outage", "daemon.freeze", {"reason": "outage"}),
        ("/unfreeze", "daemon.unfreeze", {}),
    ],
)
def test_a_line_becomes_the_command_that_it_names(typed: str, kind: str, fields: dict[str, object]) -> None:
    command = slash.parse(typed, "ses_1", NOW).command
    assert command is not None
    decoded = msgspec.convert(command, AnyCommand)
    assert decoded.type == kind
    for name, value in fields.items():
        assert getattr(decoded, name) == value
    if not kind.startswith("daemon."):
        assert getattr(decoded, "sid") == "ses_1"  # noqa: B009


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("/suspnd", "did you mean /suspend?"),
        ("/xyzzy", "/help lists them"),
        ("/send", "expected /send TEXT"),
        ("/goal", "expected /goal TEXT"),
        ("/goal pause now", "takes nothing more"),
        ("/gate", "expected /gate open"),
        ("/gate open sesame", "'sesame' is no hold"),
        ("/gate extend Degeneration yesterday", "no moment"),
        ("/interrupt soon", "no duration"),
        ("/end", "expected /end REASON"),
    ],
)
def test_a_line_that_means_nothing_says_what_was_expected(typed: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        slash.parse(typed, "ses_1", NOW)
    assert words in str(refused.value)


@pytest.mark.parametrize("typed", ["hello", "/suspend", "/send x", "/goal x", "/gate open", "/end x"])
def test_without_a_chosen_session_nothing_is_sent(typed: str) -> None:
    with pytest.raises(ValueError, match="no session is chosen"):
        slash.parse(typed, None, NOW)


@pytest.mark.parametrize("typed", ["/end x", "/gate open", "/goal infeasible", "/goal clear", "/freeze"])
def test_what_cannot_be_taken_back_is_asked_again(typed: str) -> None:
    assert slash.parse(typed, "ses_1", NOW).grave


@given(st.text())
def test_any_line_is_a_known_command_or_a_clear_refusal(typed: str) -> None:
    try:
        line = slash.parse(typed, "ses_1", NOW)
    except ValueError:
        return
    assert line.local or (line.command is not None and line.command["t"] in COMMAND_TYPES)
