"""Records: identities of calls, digests of results, and what is masked."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.masks import EDGE_CHARS, mask, masked_digest
from loopd.core.records import call_label, call_record, canonical, fingerprint, step_record, text_digest
from loopd.core.tools import CLASSES, REGISTRY, command_of, tool_class
from loopd_protocol.events import ToolCall, TurnStep, Usage
from loopd_protocol.sources import Trigger

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(args=JSON)
def test_canonical_arguments_are_json_that_reads_back_the_same(args: Any) -> None:
    assert json.loads(canonical(args)) == args
    assert canonical(args).isascii()


@given(args=st.dictionaries(st.text(max_size=4), JSON, max_size=5))
def test_the_order_of_keys_does_not_matter(args: dict[str, Any]) -> None:
    assert fingerprint("t", dict(reversed(args.items()))) == fingerprint("t", args)


def test_a_fingerprint_is_the_name_and_sixteen_digits_of_the_canonical_arguments() -> None:
    assert canonical({"b": [1, 2.0, True, None], "a": "é"}) == b'{"a":"\\u00e9","b":[1,2.0,true,null]}'
    whole = hashlib.sha256(b'{"x":1}').hexdigest()
    assert fingerprint("mcp:t", {"x": 1}) == f"mcp:t:{whole[:16]}"
    assert fingerprint("t", {"n": 1}) != fingerprint("t", {"n": 1.0}) != fingerprint("t", {"n": "1"})


def test_arguments_that_json_cannot_say_do_not_raise() -> None:
    assert canonical({"x": {1}, "y": b"z"})
    assert canonical({"lone": "\ud800"}).isascii()


def test_the_digest_of_the_whole_result_is_the_drivers_and_else_that_of_the_text() -> None:
    def record(**given: Any) -> Any:
        return call_record(ToolCall(id="c", name="bash", args={}, **given))

    whole = hashlib.sha256(b"abc").hexdigest()
    assert record(result="abc").result == whole
    assert record(result="cut", result_sha256=whole).result == whole
    assert record(result="cut", result_sha256=f"sha256:{whole}").result == whole
    assert record().result is None
    assert record(result="").result == hashlib.sha256(b"").hexdigest()


def test_length_is_of_the_visible_text_or_of_the_whole_when_it_was_cut() -> None:
    def chars(**given: Any) -> int:
        return call_record(ToolCall(id="c", name="bash", args={}, **given)).result_chars

    assert chars(result="  ab c \n") == 4
    assert chars(result="ab", result_blob="0" * 64, result_sha256="0" * 64, result_bytes=9_000) == 9_000
    assert chars(result="  ab  ", result_sha256="0" * 64, result_bytes=6) == 2
    assert chars(result_bytes=70) == 70
    assert chars() == 0


def test_masking_is_done_only_when_asked() -> None:
    call = ToolCall(id="c", name="bash", args={}, result="pid 12")
    assert call_record(call).masked is None
    assert call_record(call, masked=True).masked == masked_digest("pid 99")
    given_one = ToolCall(id="c", name="bash", args={}, result="x", masked_sha256="ab")
    assert call_record(given_one).masked == "ab"
    event = TurnStep(n=1, step=1, total=1, calls=(call, ToolCall(id="d", name="ls", args={}, result="r")))
    made = step_record(event, Trigger.CRON, 5, masked=lambda each: each.name == "ls").calls
    assert [each.masked is None for each in made] == [True, False]


def test_a_step_record_is_the_event_reduced() -> None:
    event = TurnStep(
        n=3,
        step=2,
        total=17,
        text="t",
        calls=(
            ToolCall(
                id="c", name="Bash", args={"command": "pytest -q"}, ok=False, exit_code=1, error_class="tool"
            ),
        ),
        usage=Usage(input_tokens=10, output_tokens=5),
        state_fingerprint="s",
        tools_withheld=True,
    )
    record = step_record(event, Trigger.HUMAN, 99)
    assert (record.n, record.turn, record.trigger, record.at_ms) == (17, 3, Trigger.HUMAN, 99)
    assert (record.text, record.tokens, record.state_fingerprint, record.tools_withheld) == (
        "t",
        15,
        "s",
        True,
    )
    [call] = record.calls
    assert (call.ok, call.exit_code, call.error_class, call.tool_class) == (False, 1, "tool", "test")
    assert call.label == 'Bash({"command":"pytest -q"})'
    assert step_record(TurnStep(n=1, step=1, total=1), Trigger.CRON, 0).tokens == 0


def test_a_label_is_one_short_line() -> None:
    assert call_label("ping", {}) == "ping()"
    assert call_label("t", {"x": "a\nb"}) == 't({"x":"a\\nb"})'
    assert len(call_label("t", {"x": "y" * 9_999})) == 120


def test_texts_that_differ_in_digits_case_and_space_have_one_digest() -> None:
    assert text_digest("16/100. Not complete.") == text_digest(" 7/100.\tnot  Complete.\n")
    assert text_digest("16/100. Not complete.") != text_digest("16/100. Now complete.")
    assert text_digest("é") != text_digest("è")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("at 2026-10-01T10:00:00Z ok", "at 2026-10-01T10:05:42.123Z ok"),
        ("2026-10-01 10:00:00,123 INFO", "2027-01-31 23:59:59,999 INFO"),
        ("2026-10-01", "2026-10-02"),
        ("10:00:01 up", "23:59:59 up"),
        ("id 123e4567-e89b-12d3-a456-426614174000.", "id 00000000-e89b-12d3-a456-426614174fff."),
        (
            "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
            "commit 0000000000000000000000000000000000000001",
        ),
        ("obj at 0x7f12ab>", "obj at 0xdead01>"),
        ("wrote /tmp/abc123/x.log now", "wrote /tmp/zz/y.log now"),
        ("in /private/var/folders/x/y", "in /var/folders/q"),
        ("passed in 0.12s", "passed in 13.4s"),
        ("took 5 ms", "took 12 ms"),
        ("12 seconds ago", "1 seconds ago"),
        ("pid 123", "pid 9"),
        ("pid=123", "pid=4"),
        ("attempt 2 of 5", "attempt 3 of 5"),
        ("Retry #2", "retry #3"),
        ("a  b\n\n c", "a b c"),
    ],
)
def test_volatile_parts_are_masked(one: str, other: str) -> None:
    assert mask(one) == mask(other)
    assert masked_digest(one) == masked_digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 failed", "2 failed"),
        ("16/100", "17/100"),
        ("line 12", "line 13"),
        ("AssertionError: 1 != 2", "AssertionError: 1 != 3"),
        ("Build 41 %", "Build 58 %"),
        ("exit code 1", "exit code 2"),
        ("version 1.2.3", "version 1.2.4"),
        ("port 8080", "port 8081"),
        ("feedfacefeedfaces", "deadbeefdeadbeefs"),
        ("3 stars", "4 stars"),
        ("a", "b"),
    ],
)
def test_all_other_numbers_stay(one: str, other: str) -> None:
    assert mask(one) != mask(other)


def test_of_a_long_text_the_ends_and_the_number_of_lines_count() -> None:
    lines = [f"line number {chr(97 + n % 26)}" for n in range(2_000)]
    whole = "\n".join(lines)
    assert len(whole) > 2 * EDGE_CHARS
    changed = [*lines]
    changed[1_000] = "something else!"
    assert mask("\n".join(changed)) == mask(whole)
    assert mask("\n".join([*lines[:1_000], "more", *lines[1_000:]])) != mask(whole)
    assert mask("\n".join(["first", *lines[1:]])) != mask(whole)
    assert mask("\n".join([*lines[:-1], "last"])) != mask(whole)
    assert len(mask(whole)) < 2 * EDGE_CHARS + 40


def test_a_duration_that_grows_by_a_digit_does_not_move_the_cut() -> None:
    body = "\n".join("word " * 20 for _ in range(300))
    assert mask("took 9 ms\n" + body) == mask("took 10 ms\n" + body)


@given(text=st.text(max_size=300))
def test_masking_never_raises_and_is_stable(text: str) -> None:
    assert mask(text) == mask(text)
    assert "\n" not in mask(text)


@pytest.mark.parametrize(
    "text",
    [
        "0" * 8_000,
        "a" * 8_000,
        "0x" * 4_000,
        "1:" * 4_000,
        "\x1b[" * 4_000,
        "\x1b]" + "x" * 8_000,
        "/tmp/" * 1_600,
        "1234-" * 1_600,
        "12345678-1234-" * 600,
        "pid " * 2_000,
        "C:\\" + "a\\" * 4_000,
        " " * 8_000,
        "9 " * 4_000,
    ],
)
@pytest.mark.timeout(5)
def test_masking_is_quick_on_hostile_text(text: str) -> None:
    for _ in range(5):
        assert isinstance(mask(text), str)


@pytest.mark.parametrize(
    ("name", "args", "kind"),
    [
        ("write_file", None, "edit"),
        ("Edit", None, "edit"),
        ("mcp__fs__write_file", None, "edit"),
        ("functions.apply_patch", None, "edit"),
        ("bash", {"command": "ls -l"}, "exec"),
        ("bash", {"command": "cd x && pytest -q tests"}, "test"),
        ("bash", {"command": "npm test"}, "test"),
        ("bash", {"command": "cargo test --all"}, "test"),
        ("bash", {"command": "python -m pytest"}, "test"),
        ("bash", {"command": "make check"}, "test"),
        ("bash", {"command": "cd /x; CI=1 timeout 60 python3.11 -W error -m pytest -x"}, "test"),
        ("bash", {"command": ".venv/bin/pytest tests"}, "test"),
        ("bash", {"command": "npm run test:unit"}, "test"),
        ("bash", {"command": "pip install pytest"}, "exec"),
        ("bash", {"command": "make testing"}, "exec"),
        ("shell", {"command": ["go", "test", "./..."]}, "test"),
        ("bash", {"command": "cat pytest.ini"}, "exec"),
        ("bash", {"command": "echo npm test | cat"}, "exec"),
        ("bash", {"command": 5}, "exec"),
        ("bash", None, "exec"),
        ("WebFetch", None, "net"),
        ("Grep", None, "search"),
        ("Read", None, "read"),
        ("TodoWrite", None, "plan"),
        ("request_idle", None, "plan"),
        ("frobnicate", None, "other"),
        ("", None, "other"),
    ],
)
def test_tools_have_classes(name: str, args: Any, kind: str) -> None:
    assert tool_class(name, args) == kind


def test_every_class_is_known_and_no_tool_has_two() -> None:
    assert set(REGISTRY.values()) <= set(CLASSES)
    assert all(name == name.lower() for name in REGISTRY)


def test_the_drivers_class_wins_over_the_table() -> None:
    assert call_record(ToolCall(id="c", name="bash", args={}, tool_class="read")).tool_class == "read"
    assert call_record(ToolCall(id="c", name="bash", args={})).tool_class == "exec"


def test_the_command_of_a_call_is_found_where_tools_keep_it() -> None:
    assert command_of({"cmd": "ls"}) == "ls"
    assert command_of({"command": ["a", "b"]}) == "a b"
    assert command_of({"command": [1]}) is None
    assert command_of("ls") is None
