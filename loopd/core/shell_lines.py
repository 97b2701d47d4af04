"""Shell command lines: what makes two of them the same, and what one of them does. Pure.

Read with patterns, not with a parser: whatever is not recognised counts as unknown, which every rule
treats patiently.
"""

from __future__ import annotations

import functools
import re

import msgspec

_LOOKED_AT = 2_000
"""Longer command lines are judged by this many of their first characters."""

_COMMENT = re.compile(r"\s+#[^'\"`\n]*$")
_DECORATION = re.compile(
    r"(?:\s*(?:2>&1|2>\s*/dev/null|\|\|\s*true|\|\s*cat|&&\s*echo\s+(?:ok|done)|;))+\s*$"
)
_START = r"(?:^|[;&|(\n]|\bthen\b|\bdo\b)\s*(?:(?:sudo|time|env|nohup|exec|timeout \S+|\w+=\S*)\s+)*"
_WRITES = re.compile(
    rf"{_START}(?:sed\s+(?:-\w+\s+)*-\w*i|perl\s+-\w*i|tee\b|mv\b|cp\b|rm\b|mkdir\b|touch\b|chmod\b|ln\b"
    r"|patch\b|truncate\b|unzip\b|tar\s+-?\w*x|rsync\b|install\b"
    r"|git\s+(?:-\S+\s+\S+\s+)*(?:add|commit|checkout|switch|apply|stash|reset|restore|merge|rebase|push|pull|clone"
    r"|rm|mv|clean|cherry-pick|revert|tag|init)\b"
    r"|(?:pip3?|uv|npm|pnpm|yarn|cargo|apt(?:-get)?|brew|conda|poetry)\s+(?:pip\s+)?(?:i|install|ci|add|remove|uninstall)\b"
    r"|kubectl\s+(?:apply|create|delete|patch|scale|set|annotate|label|drain|cordon|rollout\s+(?:restart|undo))\b"
    r"|terraform\s+(?:apply|destroy)\b|helm\s+(?:install|upgrade|uninstall)\b"
    r"|docker\s+(?:run|build|rm|rmi|stop|start|restart|kill|pull|push)\b"
    r"|tmux\s+(?:send-keys|new|kill)\S*|systemctl\s+(?:start|stop|restart|reload)\b|kill(?:all)?\b"
    r"|curl\s[^;|&]*(?:-X\s*(?:POST|PUT|PATCH|DELETE)|--data|-d\s|-F\s))"
    r"|\.write_text\(|\.write\(|\bopen\([^)\n]*['\"][wa]b?\+?['\"]"
    r"|(?<![-=<>&0-9])>{1,2}\s*(?![&>=\s]|/dev/null)[\w./~$\"'{-]"
)
_READ_WORDS = (
    r"ls|ll|cat|bat|head|tail|less|more|grep|egrep|rg|ag|find|fd|awk|wc|which|type|stat|file|tree|echo|printf"
    r"|pwd|cd|sort|uniq|cut|nl|tr|jq|yq|du|df|env|printenv|uname|whoami|hostname|id|date|ps|pgrep|jobs|xxd"
    r"|od|strings|diff|cmp|md5sum|sha256sum|sleep|test|\[|true|:|sed|xargs|column|basename|dirname|realpath"
    r"|readlink|curl|ping|dig|nslookup|squeue|sacct|qstat|nvidia-smi|free|uptime|lsof|netstat|ss"
    r"|git\s+(?:-\S+\s+\S+\s+|--no-pager\s+)*(?:status|log|diff|show|branch|blame|rev-parse|ls-files|remote|grep)"
    r"|kubectl\s+(?:get|describe|logs|top|wait|rollout\s+status)|docker\s+(?:ps|logs|inspect|images|stats)"
    r"|gh\s+(?:run|pr|issue|repo)\s+(?:view|list|checks|watch|status)|systemctl\s+(?:status|is-active)|journalctl"
    r"|pip3?\s+(?:show|list|freeze|index)|npm\s+(?:ls|view|outdated)|go\s+(?:list|env)|cargo\s+(?:tree|metadata)"
)
_READ = re.compile(rf"\(?\s*(?:(?:sudo|time|timeout \S+|\w+=\S*)\s+)*(?:{_READ_WORDS})(?=$|[\s;)|&])")
_POLLS = re.compile(
    rf"{_START}(?:sleep\s+[\d.]+\w*\s*(?:&&|;)\s*\S|watch\s|kubectl\s+(?:get|wait|top|rollout\s+status)\b"
    r"|gh\s+(?:run|pr)\s+(?:view|checks|watch|list|status)\b|docker\s+(?:ps|stats|inspect|compose\s+ps)\b"
    r"|systemctl\s+(?:status|is-active)\b|squeue\b|sacct\b|qstat\b|pgrep\b|jobs\b|ps\s|nvidia-smi\b"
    r"|curl\s[^|;&]*(?:status|health|ready|jobs?/|builds?/|runs?/|tasks?/|progress)"
    r"|(?:aws|gcloud|az|terraform|helm)\s[^;|&]*(?:status|describe|wait)|argocd\s+app\s+(?:get|wait)"
    r"|tail\s+(?:-\S+\s+(?:\d+\s+)?)*\S*\.(?:log|out)\b)"
)
_MEASURES = re.compile(
    r"bench|\bhyperfine\b|\btimeit\b|\bperf\s+stat\b|\bwrk\b|\bab\s+-|\btime\s", re.IGNORECASE
)
_SPLIT = re.compile(r"\s*(?:&&|\|\||[;\n|])\s*")
_SLEEP = re.compile(r"sleep(?:\s+[\d.]+[smhd]?)+$|wait(?:\s+(?:\$!|\d+|%\d+))?$")
_NOOP = re.compile(
    r"(?::|true|false|exit(?:\s+0)?|return|continue|done|noop|nop|pwd|date(?:\s+\S{0,20})?|clear|[A-Za-z]"
    r"|printf\s+(?:''|\"\"|'.{0,20}'|\".{0,20}\")|echo(?:\s+-n)?(?:\s+[^$`|<>;&]{0,40})?|#.*)$"
)
_BACKGROUND = re.compile(
    r"(?<![&>])&\s*(?:$|disown\b|echo\b)|\bnohup\b|\bsetsid\b|\btmux\s+new|docker\s+run\s+(?:\S+\s+)*-d"
)
_PROGRAM = re.compile(
    r"(?:(?:cd|pushd)\s+\S+\s*(?:&&|;)\s*|(?:sudo|time|env|exec|timeout \S+|\w+=\S*)\s+)*(\S+(?:\s+(?:-m\s+)?[a-z][\w:.-]*)?)"
)


class Line(msgspec.Struct, frozen=True, gc=False):
    """What a command line does, as far as it shows.

    Attributes:
        normal: the command without what does not change it.
        program: the program and its subcommand, without arguments.
        noop: it does nothing at all; `waits`: it only lets time pass.
        polls: it looks at something that others change.
        writes: it changes something; `reads`: it changes nothing. Both false: unknown.
        background: it leaves something running.
        measures: it is run to measure something, so its result is expected to vary.
    """

    normal: str
    program: str
    noop: bool = False
    waits: bool = False
    polls: bool = False
    writes: bool = False
    reads: bool = False
    background: bool = False
    measures: bool = False


def normalise(command: str) -> str:
    """The command without comments at its end, output plumbing and needless white space.

    A command of several lines keeps its white space: it may be a program or a document.
    """
    line = command.strip()
    if "\n" not in line:
        line = " ".join(line.split())
        line = _DECORATION.sub("", _COMMENT.sub("", line))
    return line


@functools.lru_cache(maxsize=2_048)
def _line(command: str) -> Line:
    normal = normalise(command)
    # what the patterns see has no runs of white space, or some of them would take quadratic time
    seen = "\n".join(" ".join(row.split()) for row in normal.splitlines() if row.strip())
    parts = [part.strip("() ") for part in _SPLIT.split(seen) if part.strip("() ")]
    still = [part for part in parts if not part.startswith("cd ")]
    waits = bool(still) and all(_SLEEP.match(part) for part in still)
    noop = not waits and all(_NOOP.match(part) or _SLEEP.match(part) for part in still)
    noop = noop and (bool(still) or not parts)  # a bare `cd` is none
    writes = bool(_WRITES.search(seen))
    reads = not writes and bool(parts) and all(_READ.match(part) for part in parts)
    found = _PROGRAM.match(seen)
    return Line(
        normal=normal,
        program=found.group(1)[:80] if found else seen[:40],
        noop=noop,
        waits=waits,
        polls=not writes and not waits and bool(_POLLS.search(seen)),
        writes=writes,
        reads=reads,
        background=bool(_BACKGROUND.search(seen)),
        measures=bool(_MEASURES.search(seen)),
    )


def line(command: str) -> Line:
    """Look at a command line; of a very long one at its beginning, and its white space is kept."""
    if len(command) <= _LOOKED_AT:
        return _line(command)
    head = _line(command[:_LOOKED_AT])
    return msgspec.structs.replace(head, normal=command, noop=False, waits=False)
