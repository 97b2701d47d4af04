"""Traits of a tool call: what it does, what about it is volatile, and how its result reads. Pure.

`TOOLS` is the registry by tool name; what it does not know is judged by its name, a shell by its
command line. Unknown stays unknown: neither reading nor writing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from loopd.core import polls as poll
from loopd.core.shell_lines import line
from loopd.core.tools import command_of

VOLATILE_FIELDS = frozenset(
    [
        "request_id",
        "requestid",
        "trace_id",
        "traceid",
        "span_id",
        "nonce",
        "attempt",
        "attempts",
        "attempt_number",
        "retry",
        "retries",
        "retry_count",
        "idempotency_key",
        "tool_call_id",
        "toolcallid",
        "call_id",
        "timestamp",
        "ts",
        "now",
        "sent_at",
        "session_id",
        "correlation_id",
        "description",
        "explanation",
        "reason",
        "thought",
        "rationale",
    ]
)
"""Argument names whose values do not make another call of it."""

_FREE_TEXT = frozenset(["description", "explanation", "reason", "thought", "rationale"])


class ToolTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What the registry says of a tool.

    Attributes:
        volatile: names of arguments that do not count, besides `VOLATILE_FIELDS`.
        waits: it only lets time pass, and that is what it is for.
    """

    reads: bool = False
    writes: bool = False
    polls: bool = False
    waits: bool = False
    volatile: frozenset[str] = frozenset()


_POLL = ToolTraits(reads=True, polls=True)
TOOLS: MappingProxyType[str, ToolTraits] = MappingProxyType(
    {
        **dict.fromkeys(
            ["bashoutput", "taskoutput", "read_terminal", "get_terminal_output", "write_stdin"], _POLL
        ),
        **dict.fromkeys(["request_idle", "wake_me", "wait", "sleep"], ToolTraits(waits=True)),
        **dict.fromkeys(["report_phase", "report_progress", "update_goal"], ToolTraits()),
    }
)
"""Tools that are not what their name or class says."""

_POLL_NAME = re.compile(
    r"(?:^|[_.\-/])(?:poll|wait|watch|status|progress|health|heartbeat)(?:$|[_.\-/])"
    r"|^(?:poll|wait|watch)[A-Z]|(?:Status|Progress|Poll|Wait|Health)(?:$|[A-Z])|(?:^|[_.\-/])(?:check|get|list)_(?:job|build|task|run|deploy\w*|queue|inbox|board)s?$"
)
_READ_WORDS = frozenset(
    [
        "get",
        "list",
        "search",
        "find",
        "query",
        "lookup",
        "look",
        "fetch",
        "retrieve",
        "recall",
        "read",
        "view",
        "show",
        "describe",
        "check",
        "inspect",
        "browse",
        "websearch",
    ]
)
_WRITE_WORDS = frozenset(
    [
        "create",
        "add",
        "insert",
        "append",
        "write",
        "edit",
        "update",
        "upsert",
        "set",
        "put",
        "patch",
        "save",
        "store",
        "delete",
        "remove",
        "drop",
        "clear",
        "move",
        "rename",
        "copy",
        "send",
        "post",
        "publish",
        "submit",
        "mark",
        "run",
        "start",
        "stop",
        "restart",
        "execute",
        "apply",
        "make",
        "build",
        "convert",
        "upload",
        "import",
        "export",
        "install",
        "merge",
        "commit",
        "push",
        "assign",
        "close",
        "open",
        "reindex",
        "replace",
        "fix",
        "deploy",
        "cancel",
        "approve",
        "reject",
    ]
)
_NAME_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_INFRA = re.compile(
    r"\b(?:429|502|503|504|rate.?limit\w*|too many requests|overloaded|timed? ?out|timeout|connection (?:refused|reset"
    r"|aborted|error|closed)|temporar(?:y|ily) (?:unavailable|failure)|service unavailable|bad gateway|econn\w+|etimedout"
    r"|eai_again|internal server error|network is unreachable|try again later)\b",
    re.IGNORECASE,
)
_STATUS_LINE = re.compile(
    r"\b(?:429|50[0234])\b.{0,40}(?:too many|error|unavailable|gateway|timeout|limit)|too many requests|rate.?limit(?:ed| exceeded)",
    re.IGNORECASE,
)
_ENDED = re.compile(
    r"\b(?:exited|terminated|finished|completed|crashed|cancell?ed|aborted|is dead|killed|no longer (?:running|exists)"
    r"|no such (?:process|task|job|container|pod|file)|not found|exit(?:ed)? (?:code|status):?\s*\d+)\b",
    re.IGNORECASE,
)
_LIVES = re.compile(
    r"\b(?:running|pending|in[ _-]progress|queued|waiting|active|alive|building|deploying|starting|unfinished"
    r"|incomplete|not (?:yet )?(?:finished|completed?))\b",
    re.IGNORECASE,
)
_UNRESOLVED = re.compile(
    r"(?:no such|unknown|unregistered|invalid|there is no|no) (?:tool|function)\b(?! (?:was|were) offered)"
    r"|(?:tool|function)\b.{0,100}\b(?:does not exist|doesn't exist|not found|is not (?:available|registered|defined|known|a valid)"
    r"|isn't (?:available|registered))",
    re.IGNORECASE | re.DOTALL,
)
_ERROR_TEXT = re.compile(
    r"\s*(?:error\b|err:|traceback \(most|exception\b|fatal\b|<error|\[error)", re.IGNORECASE
)
_FAILING = re.compile(
    r"\b(\d{1,6})\s+(?:failed|failing|failures?|errors?)\b|\b(?:failed|failures?|errors?)[:=]\s*(\d{1,6})\b",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(
    r"\bno (?:\w+ )?(?:results?|match(?:es)?|documents?|records?|entr(?:y|ies)|items?|hits?|rows?|data|answers?)\b|\b0 (?:results?|hits|match(?:es)?"
    r"|rows|items|documents|records)\b|\bnothing (?:was |has been )?found\b|\bfound nothing\b|\bno such\b|\bnot found\b|\bdoes not exist\b"
    r"|\"(?:total|count|hits)\": ?0\b|^\s*(?:\[\s*\]|\{\s*\}|null|none)\s*$",
    re.IGNORECASE,
)
_NEGATIVE_CHARS = 300
_DIGITS = re.compile(r"\d+")
_NOTHING = frozenset({"", "/dev/null"})
_ECHO_CHARS = 200


class Traits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What shows of a call in its name and arguments.

    Attributes:
        identity: text that is equal for calls that are the same thing.
        program: tool, or tool and program: what errors are counted by.
        noop: it does nothing; `waits`: it lets time pass; `polls`: it looks at what others change.
        writes, reads: it changes something, or nothing; both false for unknown.
        background: it leaves something running.
        measures: it is run to measure something.
    """

    identity: str
    program: str
    noop: bool = False
    waits: bool = False
    polls: bool = False
    writes: bool = False
    reads: bool = False
    background: bool = False
    measures: bool = False


def _stable(args: Mapping[str, Any], volatile: frozenset[str]) -> bool:
    return not any(key.lower() in VOLATILE_FIELDS or key in volatile for key in args)


def _only(args: Mapping[str, Any], volatile: frozenset[str]) -> dict[str, Any]:
    kept = {k: v for k, v in args.items() if k.lower() not in VOLATILE_FIELDS and k not in volatile}
    if kept:
        return kept
    # a tool whose whole content is its free text (a thought, a reason) is not empty
    return {k: v for k, v in args.items() if k.lower() in _FREE_TEXT}


def traits_of(name: str, args: Any, kind: str, arguments: str, canonical: Any) -> Traits:
    """Traits of a call.

    Args:
        name: of the tool.
        args: as the model gave them.
        kind: its class, see `loopd.core.tools`.
        arguments: the canonical text of all arguments.
        canonical: makes such a text of other arguments.
    """
    plain = name.lower()
    known = TOOLS.get(plain) or TOOLS.get(re.split(r"__|[./]", plain)[-1])
    volatile = known.volatile if known is not None else frozenset()
    mapping = isinstance(args, Mapping)
    if mapping and not _stable(args, volatile):
        arguments = canonical(_only(args, volatile))
    if kind in {"exec", "test"}:
        command = command_of(args)
        if command is not None:
            return _shell(name, args, command, arguments)
    empty = not mapping or not any(value not in ("", None, [], {}) for value in args.values())
    noop = (
        empty
        and kind in {"exec", "edit", "read", "net"}
        and not plain.startswith(("ls", "list", "write_stdin", "bashoutput", "kill"))
    )
    if kind == "read" and mapping and not noop:
        noop = any(args.get(key) in _NOTHING for key in ("path", "file_path", "file", "filename"))
    reads = kind in {"read", "search"} or reading(name)
    polls = bool(_POLL_NAME.search(name)) or (kind != "edit" and (poll.named(name) or poll.asked(args)))
    writes = kind == "edit"
    waits = False
    if known is not None:
        reads, polls, writes, waits = known.reads, known.polls, known.writes, known.waits
        noop = False
    return Traits(
        identity=arguments,
        program=name,
        noop=noop,
        waits=waits,
        polls=polls,
        writes=writes,
        reads=reads and not writes,
        background=mapping and args.get("run_in_background") is True,
    )


@functools.lru_cache(maxsize=1_024)
def reading(name: str) -> bool:
    """Whether a tool's name says that it only reads: `kb_search`, `getUser`, but not `add_to_list`."""
    words = [word.lower() for word in _NAME_PARTS.findall(re.split(r"__|[./:]", name)[-1])]
    return not _WRITE_WORDS.intersection(words) and not _READ_WORDS.isdisjoint(words)


def negative(result: str | None) -> bool:
    """Whether a short answer says that nothing was found."""
    return result is not None and len(result) <= _NEGATIVE_CHARS and bool(_NEGATIVE.search(result))


def _shell(name: str, args: Mapping[str, Any], command: str, arguments: str) -> Traits:
    look = line(command)
    rest = [
        v
        for k, v in args.items()
        if v is not command and k in {"cwd", "workdir", "directory", "host", "session"}
    ]
    identity = look.normal if not rest else f"{look.normal}\0{rest}"
    if not look.normal:
        identity = arguments
    return Traits(
        identity=identity,
        program=f"{name}:{look.program}",
        noop=look.noop or not look.normal,
        waits=look.waits,
        polls=look.polls or (not (look.writes or look.waits or look.noop) and poll.command(look.normal)),
        writes=look.writes,
        reads=look.reads,
        background=look.background or args.get("run_in_background") is True,
        measures=look.measures,
    )


def failed(*, ok: bool | None, exit_code: int | None, result: str | None, kind: str = "exec") -> bool:
    """Whether a call failed, as far as it is known.

    An error text counts where nothing else is known, and against a tool that only edits: many hosts
    report every result as a success.
    """
    if ok and kind == "edit" and exit_code is None and result is not None:
        return bool(_ERROR_TEXT.match(result))
    if ok is None:
        if exit_code is not None:
            return exit_code != 0
        return result is not None and bool(_ERROR_TEXT.match(result))
    return not ok


def infra(*, ok: bool | None, error_class: str | None, result: str | None) -> bool:
    """Whether the failure is that of a service: overloaded, unreachable, too slow."""
    if error_class is not None and error_class != "none":
        return error_class == "infra"
    if not result:
        return False
    if ok is False:
        return bool(_INFRA.search(result[:400]))
    return len(result) <= 300 and bool(_STATUS_LINE.search(result))


def unresolved(*, ok: bool | None, error_class: str | None, result: str | None) -> bool:
    """Whether the call named a tool that does not exist."""
    if ok or not result or error_class not in {None, "none", "schema"}:
        return False
    return bool(_UNRESOLVED.search(result[:400]))


def ended(result: str | None) -> bool:
    """Whether what a poll looks at is over, by its result."""
    head = (result or "")[:2_000]
    return bool(_ENDED.search(head)) and not _LIVES.search(head)


def echoes(args: Any, result: str | None) -> bool:
    """Whether the result only gives the call's own words back: no information."""
    if not result or not isinstance(args, Mapping):
        return False
    said = result.strip()[:_ECHO_CHARS]
    if len(said) < 3:
        return False
    return any(isinstance(value, str) and said in value[: 4 * _ECHO_CHARS] for value in args.values())


def failing(*, ok: bool | None, result: str | None) -> int | None:
    """How many checks fail, by the end of a test run's output; None for unknown."""
    counts = [int(a or b) for a, b in _FAILING.findall((result or "")[-2_000:])]
    if counts:
        return max(counts)
    return 0 if ok else None


def numbers_of(identity: str) -> tuple[str, tuple[int, ...]]:
    """The call with its numbers taken out, and the first six numbers; too long ones do not count."""
    if len(identity) > 600:
        return "", ()
    found = tuple(int(number) for number in _DIGITS.findall(identity)[:6] if len(number) <= 12)
    return (_DIGITS.sub("#", identity), found) if found else ("", ())
