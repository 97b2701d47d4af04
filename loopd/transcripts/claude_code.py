"""Session logs of Claude Code: JSON lines, one content block each, results in later user lines."""

from __future__ import annotations

import re
from typing import Any

from loopd.transcripts.logs import (
    Amend,
    Begin,
    Draft,
    Fault,
    Items,
    Resume,
    moment_ms,
    natural,
    task_of,
    text_of,
    word,
)
from loopd_protocol.events import Usage
from loopd_protocol.sources import Trigger

CHAINS_MAX = 1_000
"""Sessions and sub-agents of one file that are told apart; what goes beyond is a fault."""

_MARKS = frozenset({"sessionId", "leafUuid", "snapshot", "parentUuid", "session_id"})
_EXIT = re.compile(r"Exit code (-?\d{1,6})(?:\n|$)")
_NOT_TYPED = ("<local-command-", "<system-reminder>", "Caveat: ", "<task-notification>", "<bash-std")
"""What the program itself puts into user messages."""


def recognises(line: dict[str, Any]) -> bool:
    """Whether a line looks like one of this format."""
    return isinstance(line.get("type"), str) and not _MARKS.isdisjoint(line)


class _Chain:
    """The main conversation, or one sub-agent's."""

    def __init__(self, identity: str, *, agent: bool) -> None:
        self.id = identity
        self.agent = agent
        self.draft: Draft | None = None
        self.message = ""
        self.n = 0
        self.trigger: Trigger | None = None
        self.compacted = False
        self.task = False


class Sessions:
    """Importer. Sub-agents (`isSidechain`) are logs of their own, `SESSION/AGENT`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._chains: dict[str, _Chain] = {}
        self._at: _Chain | None = None
        self._full = False

    def line(self, number: int, line: dict[str, Any], /) -> Items:
        """Read one line."""
        kind = word(line.get("type"))
        if kind not in {"assistant", "user", "system"}:
            return
        if self._at is None or not self._is_of(self._at, line):
            chain = self._chain(line)
            if chain is None:
                if not self._full:
                    self._full = True
                    message = f"more than {CHAINS_MAX} conversations; later ones are not judged"
                    yield Fault(where=f"{self._name}, line {number}", message=message)
                return
            if chain.id in self._chains:
                yield Resume(chain.id)
            else:
                self._chains[chain.id] = chain
                yield Begin(id=chain.id, source="claude-code", interleaved=True)
            self._at = chain
        chain = self._at
        body = line.get("message")
        body = body if isinstance(body, dict) else {}
        if kind == "assistant":
            identity = word(body.get("id")) or word(line.get("uuid"))
            if chain.draft is None or identity != chain.message or not identity:
                if chain.draft is not None:
                    yield chain.draft.done()
                chain.n += 1
                chain.draft = Draft(
                    chain.n,
                    trigger=chain.trigger,
                    at_ms=moment_ms(line.get("timestamp")),
                    compacted=chain.compacted,
                )
                chain.message, chain.trigger, chain.compacted = identity, None, False
            _said(chain.draft, body)
        elif kind == "user":
            content = body.get("content")
            if _results(chain.draft, content) or line.get("isMeta"):
                return
            if line.get("isCompactSummary"):
                chain.compacted = True
                return
            text = text_of(content).strip()
            if text and not text.startswith(_NOT_TYPED):
                # a sub-agent is asked by its parent
                chain.trigger = Trigger.AGENT if chain.agent else Trigger.HUMAN
                if not chain.task:
                    chain.task = True
                    yield Amend(task=task_of(text))
        elif line.get("subtype") == "compact_boundary":
            chain.compacted = True

    def end(self) -> Items:
        """Bring out the last step of each conversation."""
        for chain in self._chains.values():
            if chain.draft is not None:
                yield Resume(chain.id)
                yield chain.draft.done()

    def _identity(self, line: dict[str, Any]) -> str:
        # `session_id` and `parent_tool_use_id` are what `--output-format stream-json` says instead
        session = word(line.get("sessionId")) or word(line.get("session_id")) or self._name
        agent = word(line.get("agentId")) if line.get("isSidechain") else word(line.get("parent_tool_use_id"))
        return f"{session}/{agent or 'agent'}" if agent or line.get("isSidechain") else session

    def _is_of(self, chain: _Chain, line: dict[str, Any]) -> bool:
        return self._identity(line) == chain.id

    def _chain(self, line: dict[str, Any]) -> _Chain | None:
        identity = self._identity(line)
        known = self._chains.get(identity)
        if known is None and len(self._chains) >= CHAINS_MAX:
            return None
        agent = bool(line.get("isSidechain") or line.get("parent_tool_use_id"))
        return known or _Chain(identity, agent=agent)


def _said(draft: Draft, body: dict[str, Any]) -> None:
    content = body.get("content")
    if isinstance(content, str):
        draft.say(content)
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            draft.say(block["text"])
        elif block.get("type") in ("tool_use", "server_tool_use"):
            draft.call(word(block.get("id")), word(block.get("name")), block.get("input"))
    usage = body.get("usage")
    if isinstance(usage, dict):
        cached = natural(usage.get("cache_read_input_tokens"))
        made = natural(usage.get("cache_creation_input_tokens"))
        draft.usage = Usage(
            input_tokens=natural(usage.get("input_tokens")) + cached + made,
            output_tokens=natural(usage.get("output_tokens")),
            cached_tokens=cached,
        )


def _results(draft: Draft | None, content: object) -> bool:
    """Fill in tool results; whether there were any."""
    found = False
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict) or block.get("type") != "tool_result":
            continue
        found = True
        if draft is None:
            continue
        body = block.get("content")
        text = None if body is None else text_of(body)
        failed = bool(block.get("is_error"))
        code = _EXIT.match(text) if text and failed else None
        draft.result(
            word(block.get("tool_use_id")),
            text,
            ok=not failed,
            exit_code=None if code is None else int(code[1]),
        )
    return found
