"""A shell line is taken apart into what it runs, or it is said that nobody can tell."""

from __future__ import annotations

import shlex
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopd.core.shell_parts import DEPTH_MAX, LINE_CHARS, PARTS_MAX, read_line, read_words

READ = [
    ("ls -la && rm -rf /", ["ls -la", "rm -rf /"]),
    ("a | b || c & d; e\nf", ["a", "b", "c", "d", "e", "f"]),
    ("echo $(whoami) > out.txt 2>&1", ["whoami", "> out.txt", "echo $(whoami)"]),
    ('echo "$(id) `date`"', ["id", "date", "echo $(id) `date`"]),
    ("bash -lc 'pytest -x; git push'", ["pytest -x", "git push"]),
    ("sh -c 'sh -c \"rm x\"'", ["rm x"]),
    ("eval 'rm x'", ["rm x"]),
    ("(cd x && make) > log", ["cd x", "make", "> log"]),
    ("diff <(ls a) <(ls b)", ["ls a", "ls b", "diff <(ls a) <(ls b)"]),
    ("cat <<'EOF' > f\n$(rm x)\nEOF\nls", ["> f", "cat", "ls"]),
    ("for i in a b; do rm $i; done", ["rm $i"]),
    ("if true; then git push; else ls; fi", ["true", "git push", "ls"]),
    ("while read l; do echo $l; done < in", ["read l", "echo $l", "< in"]),
    ("! grep x y", ["grep x y"]),
    ("echo hi # rm x", ["echo hi"]),
    ("echo x >&2 2>/dev/null", ["echo x"]),
    ("echo x &> log", ["> log", "echo x"]),
    ("r'm' -r\"f\" \\x", ["rm -rf x"]),
    ("FOO=1 BAR=2 pytest", ["FOO=1 BAR=2 pytest"]),
    ("X=$(curl x)", ["curl x", "X=$(curl x)"]),
    ("[ -f x ] && [[ $a == b ]]", ["[ -f x ]", "[[ $a == b ]]"]),
    ("ls\\\n -l", ["ls -l"]),
    ("cat <<< 'text'", ["cat"]),
    ("echo ''", ["echo "]),
]
UNCLEAR = [
    "$X foo", "`which rm` x", "{rm,-rf,x}", "/bin/r? x", "eval $X", 'bash -c "rm $X"', "case x in a) b;; esac",
    "f() { rm x; }; f", "a=(1 2)", "echo 'a", 'echo "a', "echo $(a", "(a", "a)", "echo ${X:-$(rm)}", "cat <<E\n$(rm)\nE",
    "cat <<E\nno end", "echo $((1+$(x)))", "$'\\x72m' x", "function f { rm x; }", "echo >",
    'sudo bash -c "rm $X"', "'' x",
]  # fmt: skip
HIDDEN = [
    ("sudo -u root rm x", "rm x"),
    ("env A=b nohup rm x", "rm x"),
    ("timeout 5 rm x", "rm x"),
    ("FOO=1 rm x", "rm x"),
    ("/usr/bin/rm x", "rm x"),
    ("xargs -n 1 rm", "rm"),
    ("find . -name x -exec rm {} \\;", "rm {} ;"),
    ("git -C d -c k=v push origin", "git push origin"),
    ("sudo sh -c 'rm x'", "rm x"),
]


@pytest.mark.parametrize(("line", "parts"), READ, ids=[line for line, _ in READ])
def test_a_line_is_cut_into_its_simple_commands(line: str, parts: list[str]) -> None:
    found = read_line(line)
    assert [part.text for part in found.parts] == parts
    assert found.unclear == ""


@pytest.mark.parametrize("line", UNCLEAR)
def test_what_could_hide_a_command_is_unclear(line: str) -> None:
    assert read_line(line).unclear


@pytest.mark.parametrize(("line", "name"), HIDDEN, ids=[line for line, _ in HIDDEN])
def test_a_prohibition_sees_through_programs_that_run_programs(line: str, name: str) -> None:
    assert name in {known for part in read_line(line).parts for known in part.names}


def test_separate_words_need_no_shell_and_a_shell_among_them_is_read() -> None:
    assert [part.text for part in read_words(["rm", "a; b"]).parts] == ["rm a; b"]
    assert [part.text for part in read_words(["bash", "-lc", "ls; rm x"]).parts] == ["ls", "rm x"]


def test_long_deep_and_many_ends_in_doubt_and_not_in_time() -> None:
    assert read_line("a" * (LINE_CHARS + 1)).unclear
    assert read_line("$(" * (DEPTH_MAX + 2) + "x" + ")" * (DEPTH_MAX + 2)).unclear
    assert read_line(";".join(["a"] * (PARTS_MAX + 1))).unclear
    for hostile in (
        "(" * 9_000,
        "`" * 9_999,
        "$(" * 9_000,
        "${" * 9_000,
        "<<a " * 4_000,
        '"' * 9_999,
        "\\" * 9_999,
    ):
        read_line(hostile)


@given(st.text(alphabet=string.ascii_letters + " \n\t'\"\\$`(){}[]<>|&;#*?!=-0123~", max_size=60))
@settings(max_examples=400)
def test_any_text_is_read_without_failing(line: str) -> None:
    found = read_line(line)
    assert found.unclear or all(part.text is not None and part.names[0] == part.text for part in found.parts)


SIMPLE = st.lists(
    st.text(string.ascii_letters + string.digits + "./_-", min_size=1, max_size=6), min_size=1, max_size=3
)


@given(st.lists(SIMPLE, min_size=1, max_size=5), st.sampled_from([" && ", " || ", "; ", " | ", "\n", " & "]))
def test_however_simple_commands_are_joined_each_of_them_is_found(
    commands: list[list[str]], joint: str
) -> None:
    commands = [["run", *words] for words in commands]
    line = joint.join(" ".join(words) for words in commands)
    assert [part.words for part in read_line(line).parts] == [tuple(words) for words in commands]


PIECES = st.one_of(
    st.text(string.ascii_lowercase, min_size=1, max_size=4),
    st.text(string.ascii_lowercase + " ;&|$()'", min_size=0, max_size=6).map(shlex.quote),
    st.sampled_from(['"a b"', "a\\ b", "\\;", "'x'\"y\"z", '"\\$a"', '"a\\"b"']),
)


@given(
    st.lists(
        st.tuples(st.lists(PIECES, min_size=1, max_size=3), st.sampled_from([";", "&&", "\n"])),
        max_size=4,
    )
)
@settings(max_examples=40, deadline=None)
def test_words_are_unquoted_as_a_real_shell_does_it(
    tmp_path_factory: pytest.TempPathFactory, commands: list[tuple[list[str], str]]
) -> None:
    folder = tmp_path_factory.mktemp("sh")
    line = " ".join(f"show {' '.join(words)} {joint}" for words, joint in commands) + "\ntrue"
    found = read_line(line)
    if found.unclear:
        return
    seen = _run(folder, line)
    expected = [list(part.words[1:]) for part in found.parts if part.words[0] == "show"]
    assert sorted(map(repr, expected)) == sorted(map(repr, seen))


def _run(folder: Path, line: str) -> list[list[str]]:
    """What `show` was called with when a real shell runs the line."""
    out = folder / "out"
    show = (
        f"""show() {{ for a in "$@"; do printf '%s\\n' "$a"; done; echo =; }} >> {shlex.quote(str(out))}\n"""
    )
    subprocess.run(["sh", "-c", show + line], check=False, capture_output=True, timeout=20)
    rows = out.read_text().split("=\n")[:-1] if out.exists() else []
    return [row.split("\n")[:-1] for row in rows]
