"""What the pages tell people to type exists, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopd.cli import daemon
from loopd.cli.exits import Failure
from loopd.cli.operator import find_verb, leaf_parser
from loopd.cli.verbs import VERBS

TOP = Path(__file__).resolve().parents[2]
PAGES = sorted([TOP / "README.md", TOP / "CHANGELOG.md", *(TOP / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def shown(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


def typed(word: str) -> Iterator[tuple[str, str]]:
    """Page and command line, for each line of a shell block that runs the program `word`."""
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
            if language not in {"sh", "console"}:
                continue
            lines = re.sub(r"\\\n\s*", " ", block).splitlines()
            for line in lines:
                command = line.removeprefix("$ ") if language == "console" else line
                if language == "console" and not line.startswith("$ "):
                    continue
                command = re.sub(r"^(\w+=\S+ )+", "", command)
                if command.split(" ")[0] == word:
                    yield shown(page), command


def test_every_link_between_pages_leads_to_a_file() -> None:
    broken = []
    for page in PAGES:
        for target in (a or b for a, b in LINK.findall(page.read_text(encoding="utf-8"))):
            path = target.partition("#")[0]
            if path and "://" not in target and not (page.parent / path).exists():
                broken.append((shown(page), target))
    assert broken == []


def parsed(command: str) -> None:
    words = shlex.split(re.split(r" [|>] ", command)[0], comments=True)[1:]
    name, rest = find_verb(words)
    leaf_parser(name, VERBS[name]).parse_args(rest)


def test_every_loopctl_command_in_the_pages_is_accepted_by_its_parser() -> None:
    commands = list(typed("loopctl"))
    assert len(commands) > 5
    refused = []
    for page, command in commands:
        try:
            parsed(command)
        except Failure as failure:
            refused.append((page, command, str(failure)))
    assert refused == []


def test_every_loopd_command_in_the_pages_is_accepted_by_its_parser() -> None:
    commands = [
        (page, re.split(r" [|>] ", command)[0])
        for word in ("loopd", ".venv/bin/loopd")
        for page, command in typed(word)
    ]
    assert commands
    for page, command in commands:
        args = daemon.whole_parser().parse_args(shlex.split(command, comments=True)[1:])
        assert args.verb, (page, command)


def test_every_page_is_listed_in_the_index() -> None:
    index = TOP / "docs/README.md"
    listed = {(index.parent / a).resolve() for a, _ in LINK.findall(index.read_text(encoding="utf-8")) if a}
    pages = {page for page in (TOP / "docs").rglob("*.md") if page != index}
    assert [shown(page) for page in sorted(pages - listed)] == []


def test_a_command_that_does_not_exist_would_be_seen() -> None:
    with pytest.raises(Failure):
        parsed("loopctl suspnd SID")
    with pytest.raises(Failure):
        parsed("loopctl suspend SID --mod kill")


def test_every_make_target_in_the_pages_exists() -> None:
    makefile = (TOP / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    asked = [
        (page, target)
        for page, command in typed("make")
        for target in shlex.split(command, comments=True)[1:]
        if "=" not in target
    ]
    assert asked
    assert [(page, target) for page, target in asked if target not in targets] == []


@pytest.mark.process
def test_make_without_a_target_lists_the_targets() -> None:
    ran = subprocess.run(["make", "-s"], cwd=TOP, capture_output=True, text=True, timeout=60, check=True)
    assert "make demo " in ran.stdout
    assert "make test " in ran.stdout
