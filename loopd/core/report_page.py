"""The report of a run, and an issue, as Markdown pages. Agent-written text is escaped here. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from loopd.core.report import RunReport
from loopd_protocol import events as ev

_SPECIAL = re.compile(r"([\\`*\[\]#|~]|(?<!\w)_|_(?!\w)|^[>+-])")
"""What has a meaning in Markdown, but for underscores inside words."""


def escaped(text: str) -> str:
    """Text that is shown as it is: on one line, Markdown and HTML without meaning, no control characters."""
    plain = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return _SPECIAL.sub(r"\\\1", plain).replace("&", "&amp;").replace("<", "&lt;")


def markdown(report: RunReport) -> str:
    """The report as a Markdown page."""
    out = [f"# Run {report.run} of {escaped(report.name)}: {report.status}", ""]
    out += [escaped(report.explanation), ""]
    facts = [
        ("session", report.sid),
        ("stop reason", report.stop_reason),
        ("rule", report.rule or ""),
        ("also found", ", ".join(report.secondary)),
        ("preset, profile", f"{report.preset}, {report.profile}"),
        ("goal", "" if report.goal is None else f"{report.goal['status']}: {report.goal['text']}"),
        ("began", _moment(report.created_ms)),
        ("ended", "" if report.ended_ms is None else _moment(report.ended_ms)),
        ("last progress", f"step {report.last_progress_step}" if report.last_progress_step else "none"),
        (
            "tokens",
            f"{report.tokens['total']}, {report.tokens['after_last_progress']} of them after the last progress",
        ),
        ("cost", _cost(report)),
        ("running time", f"{report.spent.get('wall_ms', 0) / 1_000:.0f} s"),
        *(("budget", f"{each['which']}: {each['used']} of {each['limit']}") for each in report.budgets),
    ]
    out += _table(("", ""), [(name, value) for name, value in facts if value])
    if report.remaining:
        out += ["## What remains", "", *(f"- {escaped(line)}" for line in report.remaining), ""]
    rows = [
        (name.replace("_", " "), str(value), _limit(report, name)) for name, value in report.counters.items()
    ]
    out += ["## Counters", "", *_table(("counter", "value", "limit"), rows)]
    if report.edges:
        out += ["## Edges", ""]
        out += _table(
            ("edge", "since progress", "in this run", "refused", "last reason"),
            [
                (
                    name,
                    str(edge["since_progress"]),
                    str(edge["lifetime"]),
                    str(edge["clamped"]),
                    edge["reasons"][-1] if edge["reasons"] else "",
                )
                for name, edge in report.edges.items()
            ],
        )
    if report.failures:
        out += ["## Failures that did not pass since", ""]
        out += _table(
            ("command", "signature", "in a row", "since it passed"),
            [tuple(str(value) for value in each.values()) for each in report.failures],
        )
    if report.gates:
        out += ["## Gates", ""]
        out += _table(
            ("hold", "times", "held"),
            [(kind, str(g["times"]), f"{g['held_ms'] / 1_000:.1f} s") for kind, g in report.gates.items()],
        )
    if report.timeline:
        out += ["## Timeline", ""]
        out += [f"- {_moment(each.at_ms)} {escaped(each.what)}" for each in report.timeline] + [""]
    if report.turns:
        out += ["## Last turns", ""]
        out += [
            f"- turn {turn['n']}, {turn['outcome']}, {turn['steps']} step{'s' * (turn['steps'] != 1)}: `{turn['show']}`"
            for turn in report.turns
        ] + [""]
    if report.issue is not None:
        out += _issue_lines(report.issue)
    if report.resume is not None:
        out += [f"Go on with a new run: `{report.resume}`", ""]
    return "\n".join(out)


def issue_markdown(issue: ev.IssueWritten, *, sid: str, name: str, explanation: str) -> str:
    """One issue as a Markdown page, for the file in the workspace."""
    head = [f"# {escaped(name)} was stopped: {escaped(issue.rule or issue.stop_reason)}", ""]
    head += [escaped(explanation), "", f"Session {sid}, run {issue.run}, {issue.status}.", ""]
    return "\n".join([*head, *_issue_lines(msgspec.to_builtins(issue)), f"Go on: `{issue.resume}`", ""])


def _issue_lines(issue: Mapping[str, Any]) -> list[str]:
    names = ("id", "rule", "loop", "last_reason", "last_command", "error_signature", "state_fingerprint")
    rows = [(name.replace("_", " "), str(issue[name])) for name in names if issue.get(name)]
    rows += [(name.replace("_", " "), str(value)) for name, value in issue.get("counters", {}).items()]
    lines = ["## Issue", "", *_table(("", ""), rows)]
    return lines + [f"- {escaped(line)}" for line in issue.get("evidence", ())] + [""]


def _cost(report: RunReport) -> str:
    micro = report.spent.get("cost_micro", 0)
    unknown = ", ".join(f"{tokens} tokens of {model}" for model, tokens in report.unpriced.items())
    known = f"{micro / 1_000_000:.6f}" if micro else ""
    if not unknown:
        return known
    return f"{known or 'unknown'}; without a price: {unknown}"


def _limit(report: RunReport, counter: str) -> str:
    key = {
        "steps_toward_ceiling": "max_steps",
        "steps_since_progress": "no_progress",
        "same_error": "same_error",
        "noop_edits": "noop_edit",
        "unresolved_tools": "unresolved_tools",
    }.get(counter)
    limit = report.limits.get(key, 0) if key else 0
    return str(limit) if limit else ""


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    return [*lines, ""]
