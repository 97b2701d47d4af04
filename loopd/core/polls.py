"""Polls: calls that look at something that others change, known by name, by command, or by their answer. Pure.

Only what is known to be a poll is treated as one: an unknown call with the same answer is a repetition.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

_THINGS = (
    r"(?:job|build|task|run|deploy\w*|queue|inbox|board|ci|pipeline|workflow|checks?|e?mails?|message|notification|review"
    r"|pull_request|training|rollout|execution|operation|instance|pod|container|process|experiment|backup|import|export"
    r"|transfer|upload|download|approval|alert|incident|event|feed)"
)
_NAME = re.compile(
    r"(?:^|_)(?:poll|polling|wait|watch|status|state|progress|health|healthy|ready|heartbeat|monitor|ping|alive|sleep)(?:$|_)"
    rf"|(?:^|_)(?:check|get|list|query|describe|fetch|show|view|inspect)_(?:\w+_)?{_THINGS}s?"
    r"(?:_(?:run|result|output|log|info|detail|list)s?)?$"
    r"|^(?:bash|task|job|agent|shell|terminal|command)_?(?:output|result|log)s?$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ACTIONS = frozenset({"poll", "log", "logs", "status", "wait", "peek", "tail"})
_START = r"(?:^|[;&|(\n]|\bthen\b|\bdo\b)\s*(?:(?:sudo|time|env|timeout \S+|\w+=\S*)\s+)*"
_COMMAND = re.compile(
    rf"{_START}(?:bjobs|pidof|qstat|top\s+-|uptime$|screen\s+-ls|tmux\s+(?:capture-pane|ls|list-)|fg$|tail\s+(?:-\S+\s+)*-[fF]"
    r"|kubectl\s+(?:-\S+\s+\S+\s+)*(?:logs|describe)\b|docker(?:\s+compose|-compose)?\s+(?:logs|ps|top)\b|journalctl\b"
    r"|pg_isready|redis-cli\s+ping|mysqladmin\s+ping|nc\s+-\w*z|ping\s|lsof\s+-i|test\s+-[efs]\s|\[\s+-[efs]\s|git\s+fetch\b"
    r"|(?:gcloud|az|aws|oci|doctl|vercel|fly|flyctl|heroku|netlify|railway|render|eb|circleci|glab|buildkite|argo|flux|nomad"
    r"|airflow|prefect|dagster|ray|pm2|supervisorctl|launchctl|vagrant|minikube|terraform|pulumi|sky|modal)\s"
    r"[^;|&\n]*\b(?:status|list|show|ps|inspect|describe|get|view|watch|logs?|jobs?|releases)\b"
    r"|curl\s[^|;&\n]*/(?:status|state|health\w*|ready\w*|live\w*|jobs?|builds?|runs?|tasks?|progress|deploy\w*|pipelines?|queue"
    r"|executions?|operations?|workflows?|events)\b)"
    r"|\b(?:cat|head|tail)\s[^;|&\n]*(?:\b(?:status|progress)\.\w+|\bnohup\.out|\w\.(?:state|status|progress|pid))\b"
)
_LIVES = re.compile(
    r"\b(?:running|pending|queued|in[ _-]?progress|building|compiling|creating|container_?creating|provisioning|deploying"
    r"|scheduled|waiting|working|training|awaiting|processing|initiali[sz]ing|uploading|downloading|syncing"
    r"|not (?:yet )?ready|not yet|no new \w+|still \w+ing)\b",
    re.IGNORECASE,
)
ANSWER_CHARS = 160
"""A status is short; a longer text that has the word `pending` in it is a document."""


@functools.lru_cache(maxsize=1_024)
def named(name: str) -> bool:
    """Whether a tool's name says that it polls; a namespace before it does not count."""
    last = re.split(r"__|[./:]", name)[-1]
    return bool(_NAME.search(_CAMEL.sub("_", last).replace("-", "_").lower()))


def asked(args: Any) -> bool:
    """Whether the arguments name an action that polls: `{"action": "poll"}`."""
    return isinstance(args, Mapping) and args.get("action") in _ACTIONS


@functools.lru_cache(maxsize=1_024)
def command(line: str) -> bool:
    """Whether a command line polls."""
    return bool(_COMMAND.search(line[:1_000]))


def lives(result: str | None) -> bool:
    """Whether a short answer says that what was looked at is still going on."""
    return result is not None and len(result) <= ANSWER_CHARS and bool(_LIVES.search(result))
