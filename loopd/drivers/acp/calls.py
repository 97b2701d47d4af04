"""Tool calls of a hosted agent, put together from whatever it tells about them.

Each report is an upsert by `toolCallId`: it may come before the call is announced, fields fill in later,
and a terminal status never goes back. A permission request only fills gaps.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from loopd.core.tools import REGISTRY, tool_class
from loopd.drivers.acp.kinds import AgentKind
from loopd.drivers.host import OWN_TOOLS
from loopd_protocol.events import ToolCall

RESULT_CHARS = 256 * 1024
"""A longer result is cut in the middle; the digest is of the whole."""
TERMINAL_CHARS = 1024 * 1024
"""Of a shell tool's output that comes in pieces, the end is kept."""
TERMINAL = {"completed": True, "failed": False, "cancelled": False, "rejected": False}
"""Status → whether the call succeeded."""

_CLASS_OF_KIND = {
    "read": "read", "edit": "edit", "delete": "edit", "move": "edit", "search": "search",
    "execute": "exec", "think": "plan", "fetch": "net", "switch_mode": "plan",
}  # fmt: skip
PURE = frozenset({"read", "search", "plan"})
"""Classes of tools without outside effects: no intent is recorded for them."""
_NAMED_ID = re.compile(r"(?:functions[._:])?([A-Za-z][A-Za-z_-]{1,40}?)[:#_-]\d+\Z")
_EMPTY_PREFIXES = frozenset(
    [
        "call",
        "chatcmpl-tool",
        "fc",
        "id",
        "item",
        "msg",
        "req",
        "request",
        "tc",
        "tool",
        "tool_call",
        "tool-call",
        "toolcall",
        "toolu",
        "tooluse",
    ]
)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}\Z")
_EXIT_KEYS = ("exit_code", "exitCode", "exit_status", "exitStatus", "exit", "code")
_NAME_NONE, _NAME_KIND, _NAME_TITLE, _NAME_ID, _NAME_META, _NAME_FIELD = range(6)


class Call:
    """One tool call.

    Attributes:
        effect: `asking` while somebody decides, `intended` once its intent is durable, `done` once its
            outcome is.
        decided: set when what was asked about it is decided.
        denied: why it was refused, empty for not.
    """

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.name = "tool"
        self.title = ""
        self.kind = ""
        self.status = "pending"
        self.args: Any = None
        self.text: str | None = None
        self.output: Any = None
        self.paths: list[str] = []
        self.diffs: list[tuple[str, str]] = []
        self.shown = ""
        self.terminal: str | None = None
        self.exit: dict[str, Any] = {}
        self.denied = ""
        self.effect = ""
        self.decided = anyio.Event()
        self._strength = _NAME_NONE

    @property
    def ended(self) -> bool:
        """It has a terminal status."""
        return self.status in TERMINAL

    def take(self, update: Mapping[str, Any], *, gaps_only: bool = False) -> None:
        """Take one report of it.

        Args:
            update: fields of a `tool_call`, a `tool_call_update` or a permission request.
            gaps_only: what is known already stays.
        """
        self._named(update, gaps_only=gaps_only)
        status = update.get("status")
        if isinstance(status, str) and not self.ended and not (gaps_only and self.status != "pending"):
            self.status = status
        given = update.get("rawInput")
        if given not in (None, {}, "") and not (gaps_only and self.args is not None):
            self.args = given
        if "rawOutput" in update and update["rawOutput"] is not None and not gaps_only:
            self.output = update["rawOutput"]
        content = update.get("content")
        if (
            isinstance(content, list)
            and content
            and not (gaps_only and (self.text or self.diffs or self.shown))
        ):
            # Before its end an agent may show the arguments as they stream in: no result yet.
            self._content(content, final=self.ended)
        meta = update.get("_meta")
        if isinstance(meta, dict):
            self._terminal(meta)
        places = update.get("locations")
        if isinstance(places, list):
            found = [place.get("path") for place in places if isinstance(place, dict)]
            self.paths = [path for path in found if isinstance(path, str)] or self.paths

    def _named(self, update: Mapping[str, Any], *, gaps_only: bool) -> None:
        title, kind = update.get("title"), update.get("kind")
        if isinstance(title, str) and title and not (gaps_only and self.title):
            self.title = title
        if isinstance(kind, str) and kind and not (gaps_only and self.kind):
            self.kind = kind
        for strength, name in (
            (_NAME_FIELD, update.get("name")),
            (_NAME_META, _meta_name(update.get("_meta"))),
            (_NAME_ID, _id_name(self.id)),
            (_NAME_TITLE, title if isinstance(title, str) and _is_name(title, kind) else None),
            (_NAME_KIND, kind),
        ):
            if strength > self._strength and isinstance(name, str) and name.strip():
                self.name, self._strength = name.strip()[:200], strength
                return

    def _terminal(self, meta: Mapping[str, Any]) -> None:
        """What some agents tell about a shell tool beside the protocol."""
        output, end = meta.get("terminal_output"), meta.get("terminal_exit")
        if isinstance(output, dict) and isinstance(output.get("data"), str):
            # Each one holds what is new; the last one of pi is only about the exit code.
            self.terminal = ((self.terminal or "") + output["data"])[-TERMINAL_CHARS:]
        if isinstance(end, dict):
            self.exit = end

    def _content(self, content: list[Any], *, final: bool) -> None:
        texts: list[str] = []
        self.diffs = []
        for entry in content:
            if not isinstance(entry, dict):
                continue
            if entry.get("type") == "diff":
                path, new = entry.get("path"), entry.get("newText")
                if isinstance(path, str) and isinstance(new, str):
                    self.diffs.append((path, new))
                continue
            block = entry.get("content", entry)
            text = block.get("text") if isinstance(block, dict) else None
            if isinstance(text, str):
                texts.append(text)
            elif isinstance(block, dict) and isinstance(block.get("resource"), dict):
                texts.append(str(block["resource"].get("text") or ""))
        if texts and final:
            self.text = _unwrapped("".join(texts))
        elif texts:
            self.shown = "".join(texts)

    @property
    def runs(self) -> bool:
        """It has begun, and its arguments are whole: some agents show them as they stream in."""
        return self.ended or (self.status != "pending" and (self.args is not None or not self.shown))

    # -- as a record ----------------------------------------------------------------------------

    @property
    def own(self) -> bool:
        """Is it one of loopd's own tools?"""
        return plain_name(self.name) in OWN_TOOLS

    @property
    def tool_class(self) -> str:
        """Class by name and arguments; by the agent's own kind when the name says nothing."""
        args = self.arguments()
        found = tool_class(self.name, args)
        if found == "other":
            found = _CLASS_OF_KIND.get(self.kind, "other")
            if found == "exec":
                found = tool_class("shell", args)
        return found

    def arguments(self) -> Any:
        """What the tool was called with, as far as the agent tells."""
        if isinstance(self.args, dict):
            return self.args
        if isinstance(self.args, str):
            return _object(self.args) or {"_raw": self.args}
        if self.args is not None:
            return {"_raw": self.args}
        told = _object(self.shown)
        if told:
            return told
        if self.diffs:
            told |= {"path": self.diffs[0][0], "content": self.diffs[0][1]}
        elif self.paths:
            told["path"] = self.paths[0]
        if self.kind == "execute" and self.title:
            told["command"] = self.title.strip().strip("`")
        elif not told and self.title and self.title != self.name:
            told["title"] = self.title
        return told

    def record(self, kind: AgentKind) -> ToolCall:
        """The call as it is stored."""
        text = self._result()
        data = text.encode("utf-8", "surrogatepass") if text is not None else None
        ok: bool | None = TERMINAL.get(self.status)
        exit_code = self._exit_code(kind, text or "")
        if ok and exit_code:
            ok = False
        error_class = None
        if self.denied:
            ok, error_class = False, "denied"
        elif ok is False:
            error_class = "tool"
        if self.denied and text is None:
            text, data = self.denied, self.denied.encode()
        return ToolCall(
            id=self.id[:190],
            name=plain_name(self.name)[:200] if self.own else self.name,
            args=self.arguments(),
            ok=ok,
            result=None if text is None else _cut(text),
            result_sha256=None if data is None else hashlib.sha256(data).hexdigest(),
            result_bytes=None if data is None else len(data),
            tool_class=self.tool_class,
            exit_code=exit_code,
            error_class=error_class,
        )

    def _result(self) -> str | None:
        if self.text is not None:
            return self.text
        if self.terminal is not None:
            return self.terminal
        told = _text_of(self.output)
        if told is None and self.ended and self.diffs:
            return f"changed {', '.join(path for path, _ in self.diffs)}"
        return told

    def _exit_code(self, kind: AgentKind, text: str) -> int | None:
        output = self.output if isinstance(self.output, dict) else {}
        metadata = output.get("metadata")
        for place in (self.exit, output, metadata if isinstance(metadata, dict) else {}):
            for key in _EXIT_KEYS:
                value = place.get(key)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        if kind.capabilities.exit_codes:
            found = re.search(kind.capabilities.exit_codes, text)
            if found is not None and found.group(1) and re.fullmatch(r"-?\d{1,9}", found.group(1)):
                return int(found.group(1))
        return None


def plain_name(name: str) -> str:
    """A tool's name without the name of its server: `mcp__loopd__wake_me` and `loopd.wake_me`."""
    return re.split(r"__|[.:/]|(?<=loopd)_", name)[-1]


def _meta_name(meta: Any, depth: int = 0) -> str | None:
    if not isinstance(meta, dict) or depth > 2:
        return None
    for key in ("toolName", "tool_name"):
        if isinstance(meta.get(key), str):
            return str(meta[key])
    for value in meta.values():
        found = _meta_name(value, depth + 1)
        if found is not None:
            return found
    return None


def _is_name(title: str, kind: Any) -> bool:
    """A title of one word names the tool; that of a shell tool may as well be the command itself."""
    return bool(_WORD.match(title)) and (kind != "execute" or title.lower() in REGISTRY)


def _id_name(call_id: str) -> str | None:
    found = _NAMED_ID.match(call_id)
    if found is None or found.group(1).lower() in _EMPTY_PREFIXES:
        return None
    return found.group(1)


def _text_of(output: Any) -> str | None:
    if output is None:
        return None
    if isinstance(output, str):
        return output
    if isinstance(output, dict):
        for key in (
            "formatted_output",
            "aggregated_output",
            "output",
            "stdout",
            "result",
            "content",
            "text",
            "error",
        ):
            value = output.get(key)
            if isinstance(value, str) and value:
                return value
            if key == "content" and isinstance(value, list):
                texts = [part.get("text") for part in value if isinstance(part, dict)]
                joined = "".join(text for text in texts if isinstance(text, str))
                if joined:
                    return joined
    if isinstance(output, list):
        texts = [part.get("text") for part in output if isinstance(part, dict)]
        joined = "".join(text for text in texts if isinstance(text, str))
        if joined:
            return joined
    return msgspec.json.encode(output, order="sorted").decode()


def _object(text: str) -> dict[str, Any]:
    """The JSON object that a text is, or an empty one."""
    if not text.startswith("{"):
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _unwrapped(text: str) -> str:
    """The text inside of a tool result that an agent passes on as JSON."""
    if not text.startswith('{"content":['):
        return text
    try:
        return _text_of(msgspec.json.decode(text)) or text
    except (msgspec.DecodeError, RecursionError):
        return text


def _cut(text: str) -> str:
    if len(text) <= RESULT_CHARS + 200:
        return text
    half = RESULT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
