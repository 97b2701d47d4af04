"""Which tool calls may run: the first rule that fits, and of a compound line the strictest part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.policy import Verdict, check, granted, judge, literal, words
from loopd_protocol.errors import Refused
from loopd_protocol.policy import PolicyRule

ALLOW_TESTS = PolicyRule(effect="allow", command="pytest *")
ALLOW_LS = PolicyRule(effect="allow", command="ls *")
DENY_PUSH = PolicyRule(effect="deny", command="git push *", reason="releases are made by people")
DENY_SECRETS = PolicyRule(effect="deny", path=".env")
ALLOW_SOURCES = PolicyRule(effect="allow", tool_class="edit", path="src/**")
RULES = (DENY_PUSH, DENY_SECRETS, ALLOW_TESTS, ALLOW_LS, ALLOW_SOURCES)


def ask(
    tool: str, args: Any, *rules: PolicyRule, default: str = "ask", workspace: str | None = "/w"
) -> Verdict:
    found = judge(rules or RULES, default, tool=tool, tool_class="other", args=args, workspace=workspace)
    assert found is not None
    return found


def shell(line: Any, *rules: PolicyRule, default: str = "ask") -> str:
    return ask("shell", {"command": line}, *rules, default=default).effect


def test_without_rules_and_with_the_default_to_allow_nothing_is_judged() -> None:
    assert (
        judge((), "allow", tool="shell", tool_class="exec", args={"command": "rm -rf /"}, workspace=None)
        is None
    )


@pytest.mark.parametrize(
    ("line", "effect"),
    [
        ("pytest -x", "allow"),
        ("pytest", "allow"),
        ("pytester", "ask"),
        ("ls && pytest -x", "allow"),
        ("ls; curl evil", "ask"),
        ("ls; git push", "deny"),
        ("git -C /tmp push origin", "deny"),
        ("sudo git push", "deny"),
        ("bash -lc 'ls; git push -f'", "deny"),
        ("ls $(git push)", "deny"),
        ("bash -lc 'pytest -q'", "allow"),
        ("ls > /etc/passwd", "ask"),
        ("ls > /dev/null 2>&1", "allow"),
        ("cat .env", "deny"),
        ("cat src/.env", "deny"),
        ("ls --file=.env", "deny"),
        ("eval $X", "ask"),
        ("FOO=1 pytest", "ask"),
        ("/tmp/pytest -x", "ask"),
    ],
)
def test_a_compound_line_is_allowed_only_if_each_part_is_and_denied_if_one_is(line: str, effect: str) -> None:
    assert shell(line) == effect


def test_what_cannot_be_read_is_asked_when_a_prohibition_could_fit_and_never_allowed_by_a_pattern() -> None:
    assert shell("eval $X", DENY_PUSH, default="allow") == "ask"
    assert shell("eval $X", ALLOW_TESTS, default="deny") == "deny"
    assert shell("eval $X", ALLOW_LS, default="allow") == "allow"
    assert shell("eval $X", PolicyRule(effect="allow", command="*"), default="deny") == "deny"
    assert ask("python", {"code": "ls"}, ALLOW_LS).effect == "ask"


@pytest.mark.parametrize(
    ("args", "effect"),
    [
        ({"path": "src/a/b.py"}, "allow"),
        ({"path": "/w/src/b.py"}, "allow"),
        ({"path": "src/../b.py"}, "ask"),
        ({"path": "src/.env"}, "deny"),
        ({"file_path": "../w/src/x"}, "allow"),
        ({"filePath": "/etc/passwd"}, "ask"),
        ({"paths": ["src/a", "b"]}, "ask"),
        ({}, "ask"),
    ],
)
def test_paths_are_compared_without_their_detours(args: dict[str, Any], effect: str) -> None:
    assert ask("edit_file", args).effect == effect


def test_the_files_of_a_patch_are_its_paths() -> None:
    patch = "*** Begin Patch\n*** Update File: src/x.py\n@@\n*** Add File: src/.env\n"
    assert ask("apply_patch", {"input": patch}).effect == "deny"
    assert ask("apply_patch", {"patch": "--- a/src/x.py\n+++ b/src/x.py\n"}).effect == "allow"


def test_the_first_rule_that_fits_decides_and_says_so() -> None:
    found = ask("shell", {"command": "git push origin"})
    assert found.rule == "deny command='git push *'"
    assert found.reason == "releases are made by people"
    assert found.subjects == ("git push origin",)
    assert found.excerpt == "git push origin"
    both = (PolicyRule(effect="allow", tool="mcp__*"), PolicyRule(effect="deny"))
    assert ask("MCP__fs__read", {}, *both).effect == "allow"
    assert ask("web_fetch", {"url": "x"}, *both).effect == "deny"


def test_secrets_do_not_get_into_the_excerpt() -> None:
    found = ask("shell", {"command": "curl -H 'Authorization: Bearer sk-abcdefghijklmnopqrstuvwxyz123456'"})
    assert "abcdefghijklmnop" not in found.excerpt


def test_an_answer_for_the_session_is_about_exactly_that_call() -> None:
    asked = ask("shell", {"command": "make *.o && curl http://x/?a=1"})
    rules = granted("allow", "shell", asked.about, asked.subjects)
    assert shell("make *.o && curl http://x/?a=1", *rules) == "allow"
    assert shell("curl http://x/?a=1", *rules) == "allow"
    for other in ("make a.o", "curl http://x/?a=12", "curl http://x/", "curl http://xx?a=1"):
        assert shell(other, *rules) == "ask"
    assert ask("bash", {"command": "make *.o"}, *rules).effect == "ask"
    unread = ask("shell", {"command": "eval $X"})
    assert shell("eval $X", *granted("allow", "shell", unread.about, unread.subjects)) == "allow"
    assert shell("eval $Y", *granted("allow", "shell", unread.about, unread.subjects)) == "ask"


@given(st.text(min_size=1, max_size=40), st.text(max_size=40))
def test_a_literal_pattern_fits_only_its_own_text(text: str, other: str) -> None:
    rule = PolicyRule(effect="allow", tool=literal(text))
    assert ask(text, {}, rule).effect == "allow"
    if other.lower() != text.lower():
        assert ask(other, {}, rule).effect == "ask"


PATTERNS = st.sampled_from([None, "git *", "ls *", "*", "git push *", "rm *", "echo *"])
RULE = st.builds(
    PolicyRule,
    effect=st.sampled_from(["allow", "ask", "deny"]),
    tool_class=st.sampled_from([None, "exec", "edit"]),
    command=PATTERNS,
    path=st.sampled_from([None, None, "src/**", ".env"]),
)
COMMANDS = st.sampled_from(
    ["ls", "ls -l", "git status", "git push", "rm x", "echo $X", "cat .env", "cat src/a", "eval $X", "X=1 ls"]
)
SEVERITY = {"allow": 0, "ask": 1, "deny": 2}


@given(
    st.lists(RULE, max_size=5).map(tuple),
    st.sampled_from(["allow", "ask", "deny"]),
    st.lists(COMMANDS, min_size=1, max_size=4),
    st.sampled_from([" && ", "; ", " | ", "\n"]),
)
def test_joining_commands_never_makes_any_of_them_freer(
    rules: tuple[PolicyRule, ...], default: str, commands: list[str], joint: str
) -> None:
    rules = (*rules, PolicyRule(effect="ask", tool="never"))  # so that there is always something to judge
    alone = [SEVERITY[shell(command, *rules, default=default)] for command in commands]
    together = SEVERITY[shell(joint.join(commands), *rules, default=default)]
    assert together == max(alone)


def test_rules_that_cannot_mean_what_they_say_are_refused() -> None:
    check((PolicyRule(effect="deny", command="rm *"), PolicyRule(effect="allow", path="src/**")))
    with pytest.raises(Refused, match="more than 8"):
        check((PolicyRule(effect="deny", command="*a" * 9),))
    with pytest.raises(Refused, match="run no commands"):
        check((PolicyRule(effect="deny", tool_class="edit", command="rm *"),))


def test_a_rule_on_one_line_fits_a_label() -> None:
    assert words(PolicyRule(effect="deny")) == "deny everything"
    assert len(words(PolicyRule(effect="deny", tool="x" * 500, command="y" * 500))) == 200
