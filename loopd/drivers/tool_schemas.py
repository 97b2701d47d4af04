"""Arguments and schemas of the tools that loopd itself offers to a chat model."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from loopd.core.agent_schemas import AGENT_TOOLS

SHELL_MAX_S = 3_600
_Path = Annotated[str, Meta(min_length=1, max_length=4_096)]


class ShellArgs(msgspec.Struct, forbid_unknown_fields=True):
    """A command line."""

    command: Annotated[str, Meta(min_length=1, max_length=100_000)]
    timeout_secs: Annotated[int, Meta(ge=1, le=SHELL_MAX_S)] | None = None


class ReadArgs(msgspec.Struct, forbid_unknown_fields=True):
    """A file, and which lines of it."""

    path: _Path
    offset: Annotated[int, Meta(ge=1)] = 1
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 2_000


class WriteArgs(msgspec.Struct, forbid_unknown_fields=True):
    """A file and all of its content."""

    path: _Path
    content: str


class EditArgs(msgspec.Struct, forbid_unknown_fields=True):
    """A file, and what is replaced in it."""

    path: _Path
    old: Annotated[str, Meta(min_length=1)]
    new: str
    replace_all: bool = False


def _tool(name: str, description: str, required: tuple[str, ...], /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(required)},
        },
    }


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _whole(description: str, low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high, "description": description}


OWN_SCHEMAS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["schema"]},
    }
    for tool in AGENT_TOOLS
)


def shell_schema(timeout_s: int) -> dict[str, Any]:
    """The shell, whose commands end after `timeout_s` when they name no time."""
    return _tool(
        "shell",
        "Run a command with sh in the workspace and get its output (stdout and stderr together) and exit code. "
        "Background processes are ended together with the command. Commands asked for in one answer run at "
        "the same time: join with && what depends on another.",
        ("command",),
        command=_text("the command line"),
        timeout_secs=_whole(f"when to give up; {timeout_s} if left out", 1, SHELL_MAX_S),
    )


FILE_SCHEMAS: tuple[dict[str, Any], ...] = (
    _tool(
        "read_file",
        "Read a text file of the workspace.",
        ("path",),
        path=_text("path inside the workspace"),
        offset={"type": "integer", "minimum": 1, "description": "first line, from 1"},
        limit={"type": "integer", "minimum": 1, "description": "how many lines; 2000 if left out"},
    ),
    _tool(
        "write_file",
        "Create a file of the workspace or replace its whole content.",
        ("path", "content"),
        path=_text("path inside the workspace"),
        content=_text("the new content"),
    ),
    _tool(
        "edit_file",
        "Replace a piece of text in a file of the workspace. It must occur exactly once unless replace_all is true.",
        ("path", "old", "new"),
        path=_text("path inside the workspace"),
        old=_text("the text as it stands in the file"),
        new=_text("what replaces it"),
        replace_all={"type": "boolean", "description": "replace every occurrence"},
    ),
)
