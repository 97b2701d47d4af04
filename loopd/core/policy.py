"""May a tool call run? Ordered rules over what it is and what it would touch. Pure.

A call is cut into units: the simple commands of a shell line, the paths of a file tool, or the call
itself. Each unit takes the first rule that fits it, else the default; the strictest of them is the
call's: deny > ask > allow. So a compound line is allowed only if every part of it is.

What cannot be read (`loopd.core.shell_parts`) fits no `allow` rule with a pattern, and every `ask` or
`deny` rule with one that its tool fits asks: nobody can tell, so a person decides.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from loopd.core.redaction import redacted
from loopd.core.shell_parts import Part, Reading, read_line, read_words
from loopd.core.tools import tool_class as class_of
from loopd_protocol.errors import Refused
from loopd_protocol.policy import PolicyRule

EXCERPT_CHARS = 600
SUBJECTS_MAX = 32
SUBJECT_CHARS = 1_000
WILDCARDS_MAX = 8
_SEVERITY = {"allow": 0, "ask": 1, "deny": 2}
_SHELL_CLASSES = frozenset({"exec", "test"})
_SHELL_KEYS = ("command", "cmd", "script")
_CODE_KEYS = ("code", "input")
_PATH_KEYS = frozenset(
    [
        "path",
        "file_path",
        "filepath",
        "file",
        "filename",
        "target_file",
        "notebook_path",
        "directory",
        "dir",
        "folder",
        "source",
        "destination",
        "old_path",
        "new_path",
        "from",
        "to",
        "paths",
        "files",
        "root",
        "cwd",
    ]
)
_PATCHED = re.compile(
    r"^(?:\*\*\* (?:Add|Update|Delete) File: |\*\*\* Move to: |\+\+\+ (?:b/)?|--- (?:a/)?)(\S[^\t\n]*)",
    re.MULTILINE,
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to happen to a call.

    Attributes:
        effect: `allow`, `ask` or `deny`.
        rule: the rule that decided, in words, or `default`.
        reason: as the rule has it, or what could not be read.
        subjects: commands or paths that the rule met; an answer for the session is about these.
        about: `command`, `path` or `tool`: what the subjects are.
        excerpt: the call's arguments for people: redacted, cut, on one line.
    """

    effect: str
    rule: str
    reason: str = ""
    subjects: tuple[str, ...] = ()
    about: str = "tool"
    excerpt: str = ""


class _Unit(msgspec.Struct, frozen=True):
    """What rules are compared with. `part` of a shell line, or `path`; `unread`: neither can be told."""

    subject: str
    part: Part | None = None
    path: str | None = None
    unread: str = ""
    about: str = "tool"


def judge(
    rules: Sequence[PolicyRule],
    default: str,
    *,
    tool: str,
    tool_class: str,
    args: Any,
    workspace: str | None,
) -> Verdict | None:
    """The verdict about a call; None when there are no rules and the default is to allow.

    Answers that hold for the session come first among the rules. A class of `other` is looked up again;
    relative paths are relative to the workspace.
    """
    if not rules and default == "allow":
        return None
    kind = class_of(tool, args) if tool_class in {"", "other"} else tool_class
    found: list[tuple[str, PolicyRule | None, _Unit, str]] = []
    for unit in _units(kind, tool, args, workspace):
        effect, rule, doubt = _first(rules, default, unit, tool=tool, kind=kind, workspace=workspace)
        found.append((effect, rule, unit, doubt))
    strictest = max((each[0] for each in found), key=_SEVERITY.__getitem__)
    met = [each for each in found if each[0] == strictest]
    _, rule, _, doubt = met[0]
    subjects = tuple(dict.fromkeys(unit.subject[:SUBJECT_CHARS] for _, _, unit, _ in met if unit.subject))
    return Verdict(
        effect=strictest,
        rule="default" if rule is None else words(rule),
        reason=doubt or ("" if rule is None else rule.reason),
        subjects=subjects[:SUBJECTS_MAX],
        about=met[0][2].about,
        excerpt="" if strictest == "allow" else excerpt(args),
    )


def words(rule: PolicyRule) -> str:
    """A rule on one line, for example `deny exec command='git push *'`; at most 200 characters."""
    parts: list[str] = [rule.effect]
    if rule.tool_class is not None:
        parts.append(rule.tool_class)
    parts += [
        f"{name}={value!r}"
        for name in ("tool", "command", "path")
        if (value := getattr(rule, name)) is not None
    ]
    if len(parts) == 1:
        parts.append("everything")
    return " ".join(parts)[:200]


def excerpt(args: Any) -> str:
    """Arguments of a call for people."""
    text = _command(args) if isinstance(args, Mapping) else None
    if text is None:
        try:
            text = msgspec.json.encode(args).decode()
        except (TypeError, ValueError, OverflowError, RecursionError):
            text = repr(args)
    text = redacted(" ".join(text[: 4 * EXCERPT_CHARS].split()))
    return text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 1] + "…"


def granted(effect: str, tool: str, about: str, subjects: Iterable[str]) -> tuple[PolicyRule, ...]:
    """Rules that an answer for the whole session stands for: exactly these commands or paths of this tool."""
    made = []
    for subject in subjects if about != "tool" else ("",):
        condition = {} if about == "tool" else {about: literal(subject)}
        made.append(msgspec.convert({"effect": effect, "tool": literal(tool), **condition}, PolicyRule))
    return tuple(made)


def literal(text: str) -> str:
    """A pattern that only this text fits."""
    return re.sub(r"([*?\\])", r"\\\1", text)


def check(rules: Sequence[PolicyRule]) -> None:
    """Refuse rules that cannot mean what they say.

    Raises:
        Refused: `invalid`, naming the rule.
    """
    for place, rule in enumerate(rules):
        for name in ("tool", "command", "path"):
            pattern = getattr(rule, name)
            if pattern is not None and len(re.findall(r"\*+", pattern)) > WILDCARDS_MAX:
                raise Refused(
                    "invalid",
                    f"policy rule {place + 1}: {name} {pattern!r} has more than {WILDCARDS_MAX} `*`",
                    path=f"$.policy[{place}].{name}",
                )
        if rule.command is not None and rule.tool_class not in {None, *_SHELL_CLASSES, "other"}:
            raise Refused(
                "invalid",
                f"policy rule {place + 1}: tools of class {rule.tool_class!r} run no commands; expected exec or test",
                path=f"$.policy[{place}].command",
            )


# -- units --------------------------------------------------------------------------------------


def _units(kind: str, tool: str, args: Any, workspace: str | None) -> tuple[_Unit, ...]:
    if kind in _SHELL_CLASSES or (kind == "other" and _has_command(args)):
        reading = _reading(args)
        units = [_Unit(part.text, part=part, about="command") for part in reading.parts]
        if reading.unclear or not units:
            doubt = reading.unclear or "no command was recognised"
            whole = _command(args) or ""
            units.append(_Unit(whole, unread=doubt, about="command" if whole else "tool"))
        return tuple(units)
    if kind in {"edit", "read", "search"}:
        paths = [_resolved(path, workspace) for path in _paths(args)]
        if paths:
            return tuple(_Unit(path, path=path, about="path") for path in dict.fromkeys(paths))
        if kind == "edit":
            return (_Unit("", unread=f"the arguments of {tool!r} name no path"),)
    return (_Unit(""),)


def _has_command(args: Any) -> bool:
    return isinstance(args, Mapping) and any(
        isinstance(args.get(key), str | list | tuple) for key in _SHELL_KEYS
    )


def _command(args: Any) -> str | None:
    if not isinstance(args, Mapping):
        return None
    for key in (*_SHELL_KEYS, *_CODE_KEYS):
        value = args.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
            return " ".join(value)
    return None


def _reading(args: Any) -> Reading:
    if isinstance(args, Mapping):
        for key in _SHELL_KEYS:
            value = args.get(key)
            if isinstance(value, str):
                return read_line(value)
            if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
                return read_words(value)
        if any(isinstance(args.get(key), str) for key in _CODE_KEYS):
            return Reading(unclear="it is given code, not a shell line")
    return Reading(unclear="its arguments hold no command")


def _paths(args: Any) -> list[str]:
    if not isinstance(args, Mapping):
        return []
    found: list[str] = []
    for key, value in args.items():
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(key)).lower()
        if name in _PATH_KEYS:
            values = value if isinstance(value, list | tuple) else [value]
            found += [each for each in values if isinstance(each, str) and each]
        elif name in {"patch", "diff", "input"} and isinstance(value, str):
            found += [path.strip() for path in _PATCHED.findall(value) if path.strip() != "/dev/null"]
    return found


def _resolved(path: str, workspace: str | None) -> str:
    """The path without `..`, absolute where the workspace is known. Links cannot be seen from here."""
    joined = path if workspace is None else posixpath.join(workspace, path)
    plain = posixpath.normpath(joined)
    return plain[1:] if plain.startswith("//") else plain


# -- rules --------------------------------------------------------------------------------------


def _first(
    rules: Sequence[PolicyRule], default: str, unit: _Unit, *, tool: str, kind: str, workspace: str | None
) -> tuple[str, PolicyRule | None, str]:
    for rule in rules:
        if rule.tool_class is not None and rule.tool_class != kind:
            continue
        if rule.tool is not None and not _words(rule.tool.lower()).fullmatch(tool.lower()):
            continue
        if rule.command is None and rule.path is None:
            return rule.effect, rule, ""
        if unit.unread:
            if (
                rule.effect == "allow"
                and unit.subject
                and rule.command == literal(unit.subject[:SUBJECT_CHARS])
            ):
                return "allow", rule, ""  # somebody has seen exactly this line
            if rule.effect != "allow" and (rule.command is None or kind != "edit"):
                return "ask", rule, f"it cannot be told whether this rule fits: {unit.unread}"
            continue
        if _fits(rule, unit, workspace):
            return rule.effect, rule, ""
    return default, None, ""


def _fits(rule: PolicyRule, unit: _Unit, workspace: str | None) -> bool:
    strict = rule.effect != "allow"
    if rule.command is not None:
        if unit.part is None:
            return False
        pattern = _words(rule.command)
        if not any(pattern.fullmatch(name) for name in (unit.part.names if strict else (unit.part.text,))):
            return False
    if rule.path is not None:
        if unit.part is not None:
            # whether all that a command touches is inside can never be told, whether something is outside can
            return strict and any(
                _touches(rule.path, word, workspace) for word in unit.part.words[1:] or unit.part.words
            )
        return unit.path is not None and _path_fits(rule.path, unit.path, workspace)
    return True


def _touches(pattern: str, word: str, workspace: str | None) -> bool:
    candidates = {word, word.partition("=")[2]} - {""}
    return any(_path_fits(pattern, _resolved(each, workspace), workspace) for each in candidates)


def _path_fits(pattern: str, path: str, workspace: str | None) -> bool:
    if "/" not in pattern:
        return _path(pattern).fullmatch(posixpath.basename(path)) is not None
    whole = (
        pattern
        if pattern.startswith("/") or workspace is None
        else f"{literal(workspace).rstrip('/')}/{pattern}"
    )
    return _path(whole.replace("/./", "/")).fullmatch(path) is not None


@functools.lru_cache(maxsize=1_024)
def _words(pattern: str) -> re.Pattern[str]:
    """A glob over a line: `*` is anything; ` *` at the end stands for no arguments too."""
    ending = ""
    if pattern.endswith(" *") and not pattern.endswith("\\ *"):
        pattern, ending = pattern[:-2], r"(?: .*)?"
    return re.compile(_translated(pattern, star=".*", one=".") + ending, re.DOTALL)


@functools.lru_cache(maxsize=1_024)
def _path(pattern: str) -> re.Pattern[str]:
    """A glob over a path: `*` stays in a folder, `**` does not; a folder (`src/`) stands for all in it."""
    if pattern.endswith("/"):
        pattern += "**"
    pieces = re.split(r"(\*\*/?)", pattern)
    made = [
        "(?:.*/)?"
        if piece == "**/"
        else ".*"
        if piece == "**"
        else _translated(piece, star="[^/]*", one="[^/]")
        for piece in pieces
    ]
    return re.compile("".join(made), re.DOTALL)


def _translated(pattern: str, *, star: str, one: str) -> str:
    made, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            made.append(re.escape(pattern[at]))
        elif char == "*":
            made.append(star)
        elif char == "?":
            made.append(one)
        else:
            made.append(re.escape(char))
        at += 1
    return "".join(made)
