"""What kind of thing a tool does: one table by name, and what a shell command line gives away.

Classes, strongest first: `edit > test > exec > net > search > read > plan > other`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

CLASSES: tuple[str, ...] = ("edit", "test", "exec", "net", "search", "read", "plan", "other")
"""Strongest first; a step's phase is the class of its strongest call."""

_NAMES = {
    "edit": "edit edit_file write write_file create_file delete_file apply_patch patch str_replace "
    "str_replace_editor str_replace_based_edit_tool multiedit multi_edit notebookedit insert_edit "
    "search_replace replace replace_in_file write_to_file fs_write append_file move_file rename_file",
    "test": "test run_tests run_test pytest",
    "exec": "shell bash exec exec_command run run_command run_shell run_shell_command execute execute_command "
    "terminal run_in_terminal local_shell python ipython execute_bash execute_python container.exec "
    "write_stdin bashoutput killshell kill_shell",
    "net": "webfetch web_fetch fetch fetch_url http http_request curl browser browse browser_navigate open_url "
    "download",
    "search": "grep glob find search search_files search_file codebase_search file_search grep_search rg "
    "websearch web_search toolsearch find_files",
    "read": "read read_file read_files view view_file open_file cat ls list list_dir list_directory "
    "list_files notebookread fs_read get_file read_many_files",
    "plan": "todowrite todo_write update_plan plan think todo update_goal request_idle wake_me report_phase "
    "report_progress exitplanmode exit_plan_mode taskcreate taskupdate tasklist",
}

REGISTRY: MappingProxyType[str, str] = MappingProxyType(
    {name: kind for kind, names in _NAMES.items() for name in names.split()}
)
"""Tool name in lower case → class."""

_WRAPPER = (
    r"(?:sudo|time|nice|uv run|poetry run|pdm run|hatch run|npx|bunx|coverage run|timeout \S+|env"
    r"|python[\d.]*(?: -[a-ln-zA-Z]\w*(?: [^-\s]\S*)?)* -m|-m|\w+=\S*)\s+"
)
_TEST_COMMAND = re.compile(
    rf"(?:^|[;&|(\n])\s*(?:{_WRAPPER})*"
    r"(?:(?:\S*/)?(?:pytest|py\.test|tox|nox|unittest|jest|vitest|mocha|ctest|rspec|phpunit)"
    r"|(?:npm|pnpm|yarn|cargo|go|dotnet|swift|mix|sbt|gradle|\./gradlew|mvn|bazel|make|deno|bun)"
    r"(?:\s+(?:run|-\S+))*\s+(?:test|check))(?=$|[\s;&|):])"
)
_COMMAND_KEYS = ("command", "cmd", "script", "input", "code")
_COMMAND_CHARS = 2_000


def command_of(args: Any) -> str | None:
    """The shell command line among a call's arguments, or None; lists are joined by spaces."""
    if not isinstance(args, Mapping):
        return None
    for key in _COMMAND_KEYS:
        value = args.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
            return " ".join(value)
    return None


def tool_class(name: str, args: Any = None) -> str:
    """Class of a call; a tool that nobody knows is `other`.

    A shell command that runs a test suite is `test`. A namespaced name (`mcp__fs__read_file`,
    `fs.read_file`) is known by its last part.
    """
    plain = name.lower()
    kind = REGISTRY.get(plain) or REGISTRY.get(re.split(r"__|[.:/]", plain)[-1], "other")
    if kind == "edit" and isinstance(args, Mapping) and args.get("command") == "view":
        return "read"  # editors that also show files
    if kind == "exec":
        command = command_of(args)
        if command is not None and _tests(command[:_COMMAND_CHARS]):
            return "test"
    return kind


@functools.lru_cache(maxsize=2_048)
def _tests(command: str) -> bool:
    # without runs of white space, over which the pattern would take quadratic time
    seen = "\n".join(" ".join(row.split()) for row in command.splitlines() if row.strip())
    return _TEST_COMMAND.search(seen) is not None
