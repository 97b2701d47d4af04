"""Reports as one page for a browser: no script, nothing that is loaded, whatever agents wrote is text."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from html import escape

from loopd.core.judge import Judged
from loopd.transcripts.inspection import Report, Shape
from loopd.transcripts.style import HEAD

ROWS_MAX = 2_000
"""Logs in the table; those with findings come first."""

CELLS_MAX = 100_000
"""Steps that are drawn in all; a browser gets slow beyond."""

QUIET_MAX = 50
"""Logs without findings that are drawn."""

FOLDED_MIN = 20
"""More logs without findings than this are folded away behind those with findings."""

FINDINGS_MAX = 200
"""Findings of one log that are listed."""

CELL, GAP, LEFT = 14.0, 0.12, 64
"""Widest step in px, its share that is gap, and room for labels."""

WIDTH = 1_100
RUNGS = ("ok", "nudge", "text only", "closed", "ended")
_CELLS_Y, _FOUND_Y, _RUNG_Y, _TOKENS_Y = 10, 46, 66, 156
_RUNG_STEP, _TOKENS_HEIGHT = 16, 34
_HEIGHT = _TOKENS_Y + _TOKENS_HEIGHT + 22


class Page:
    """Collects reports and writes them as one file; kept small however many there are.

    Args:
        path: where to write; checked at once, so that long work is not lost in the end.
        title: the settings in words.
    """

    def __init__(self, path: str, title: str) -> None:
        self._path = path
        self._title = title
        folder = os.path.dirname(os.path.abspath(path))
        descriptor, self._temporary = tempfile.mkstemp(prefix=".loopd-", suffix=".html", dir=folder)
        os.close(descriptor)
        self._found: list[str] = []
        self._quiet: list[str] = []
        self._sections: list[str] = []
        self._quiet_sections: list[str] = []
        self._cells = 0
        self._drawn_quiet = 0
        self._logs = self._steps = self._nudged = self._stopped = self._tokens = self._after = 0

    def add(self, report: Report) -> None:
        """One more log."""
        verdict = report.judgement
        self._logs += 1
        self._steps += verdict.steps
        self._tokens += report.tokens
        self._after += verdict.tokens_after_first_soft or 0
        self._stopped += verdict.first_hard is not None
        self._nudged += verdict.first_soft is not None
        rows = self._found if verdict.findings else self._quiet
        drawn = self._cells + len(report.shapes) <= CELLS_MAX
        if not verdict.findings:
            drawn = drawn and self._drawn_quiet < QUIET_MAX
            self._drawn_quiet += drawn
        if drawn:
            self._cells += len(report.shapes)
        if len(rows) < ROWS_MAX:
            linked = drawn or bool(verdict.findings)
            rows.append(_row(report, self._logs if linked else None))
            if linked:
                sections = self._sections if verdict.findings else self._quiet_sections
                sections.append("".join(_section(report, self._logs, drawn=drawn)))

    def write(self) -> None:
        """Put the page in its place, all at once.

        Raises:
            OSError: it cannot be written; what was there before is still there.
        """
        try:
            with open(self._temporary, "w", encoding="utf-8", errors="backslashreplace") as out:
                out.writelines(self._whole())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(self._temporary, 0o666 & ~mask)
            os.replace(self._temporary, self._path)
        except OSError:
            self.discard()
            raise

    def discard(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)

    def _whole(self) -> Iterator[str]:
        yield HEAD
        yield f"<header><h1>What loopd would have done</h1><p>{escape(self._title)}</p></header>\n<main>\n"
        tiles = (
            ("logs", self._logs), ("steps", self._steps), ("corrected", self._nudged), ("stopped", self._stopped),
            ("tokens", self._tokens), ("tokens after the first correction", self._after),
        )  # fmt: skip
        yield '<dl class="tiles">'
        for name, value in tiles:
            if name.startswith("tokens") and not self._tokens:
                continue  # no log says
            yield f"<div><dt>{name}</dt><dd>{value:,}</dd></div>"
        yield "</dl>\n"
        quiet = self._quiet[: ROWS_MAX - len(self._found)]
        folded = bool(self._found) and len(quiet) > FOLDED_MIN
        yield from _table(self._found if folded else self._found + quiet)
        if folded:
            yield f"<details><summary>{len(quiet)} logs without findings</summary>\n"
            yield from _table(quiet)
            yield "</details>\n"
        listed = len(self._found) + len(quiet)
        if listed < self._logs:
            yield f'<p class="note">{self._logs - listed} more logs are not listed.</p>\n'
        missing = listed - len(self._sections) - len(self._quiet_sections)
        if missing:
            yield f'<p class="note">{missing} logs without findings are not drawn.</p>\n'
        yield LEGEND
        yield from self._sections
        yield from self._quiet_sections
        yield "</main></body></html>\n"


LEGEND = """\
<ul class="legend">
<li><svg width="12" height="12"><rect class="call" width="12" height="12" rx="2"/></svg>step with calls</li>
<li><svg width="12" height="12"><rect class="fail" width="12" height="12" rx="2"/></svg>a call failed</li>
<li><svg width="12" height="12"><rect class="text" width="12" height="12" rx="2"/></svg>text only</li>
<li><svg width="12" height="12"><path class="human" d="M1 1h10L6 10z"/></svg>a person spoke</li>
<li><svg width="12" height="12"><path class="turn" d="M1 1h10L6 10z"/></svg>another turn</li>
<li><svg width="12" height="12"><circle class="soft" cx="6" cy="6" r="5"/></svg>finding</li>
<li><svg width="12" height="12"><path class="hard" d="M6 0l6 6-6 6-6-6z"/></svg>finding that would have stopped it</li>
</ul>
"""


def _table(rows: Sequence[str]) -> Iterator[str]:
    names = ("log", "written by", "steps", "verdict", "first soft", "first hard", "tokens after", "rules")
    yield '<div class="scroll"><table><thead><tr>'
    yield from (f"<th>{name}</th>" for name in names)
    yield "</tr></thead><tbody>\n"
    yield from rows
    yield "</tbody></table></div>\n"


def _row(report: Report, number: int | None) -> str:
    verdict = report.judgement
    name = escape(report.begin.id)
    link = name if number is None else f'<a href="#log-{number}">{name}</a>'
    rules = ", ".join(dict.fromkeys(finding.rule for finding in verdict.findings))
    cells = (
        f"<td>{link}</td><td>{escape(report.begin.source)}</td>",
        f'<td class="n">{verdict.steps:,}</td><td>{_pill(verdict.verdict)}</td>',
        f'<td class="n">{_known(verdict.first_soft)}</td><td class="n">{_known(verdict.first_hard)}</td>',
        f'<td class="n">{_known(verdict.tokens_after_first_soft)}</td><td>{escape(rules)}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>\n"


def _pill(verdict: str) -> str:
    return f'<span class="pill {escape(verdict)}">{escape(verdict.replace("_", " "))}</span>'


def _known(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _section(report: Report, number: int, *, drawn: bool) -> Iterator[str]:
    verdict = report.judgement
    begin = report.begin
    yield f'<section id="log-{number}"><h2>{escape(begin.id)} {_pill(verdict.verdict)}</h2>\n'
    facts = [begin.source, f"{verdict.steps:,} steps", f"{report.tokens:,} tokens" if report.tokens else ""]
    facts += [
        f"label {begin.label}" if begin.label else "",
        f"outcome {begin.outcome}" if begin.outcome else "",
    ]
    facts += ["incomplete: something in it could not be read" if report.incomplete else ""]
    yield f'<p class="facts">{escape(" · ".join(fact for fact in facts if fact))}</p>\n'
    if begin.task:
        yield f'<p class="task">{escape(begin.task)}</p>\n'
    if drawn and report.shapes:
        yield '<div class="scroll">'
        yield from _picture(report)
        yield "</div>\n"
        if len(report.shapes) < verdict.steps:
            yield f'<p class="note">Drawn up to step {report.shapes[-1].n:,}.</p>\n'
    elif report.shapes:
        yield '<p class="note">Not drawn: there are too many steps in all.</p>\n'
    if verdict.findings:
        yield '<div class="scroll"><table class="findings"><thead><tr>'
        names = ("step", "rule", "level", "verdict", "score", "evidence")
        yield "".join(f"<th>{name}</th>" for name in names) + "</tr></thead><tbody>\n"
        for finding in verdict.findings[:FINDINGS_MAX]:
            yield _finding(finding)
        yield "</tbody></table></div>\n"
        if len(verdict.findings) > FINDINGS_MAX:
            yield f'<p class="note">{len(verdict.findings) - FINDINGS_MAX} more findings.</p>\n'
    yield "</section>\n"


def _finding(finding: Judged) -> str:
    shadow = " (shadow)" if finding.shadow else ""
    evidence = "".join(f"<li>{escape(each)}</li>" for each in finding.evidence)
    return (
        f'<tr><td class="n">{finding.step:,}</td><td>{escape(finding.rule)}</td>'
        f'<td><span class="dot {escape(finding.level)}"></span>{escape(finding.level)}</td>'
        f"<td>{escape(finding.verdict)}{shadow}</td>"
        f'<td class="n">{finding.score:,} of {finding.threshold:,} {escape(finding.unit)}</td>'
        f"<td><ul>{evidence}</ul></td></tr>\n"
    )


def _picture(report: Report) -> Iterator[str]:
    shapes = report.shapes
    wide = max(2.0, min(CELL, WIDTH / len(shapes)))
    right = LEFT + wide * len(shapes)
    places = {shape.n: index for index, shape in enumerate(shapes)}
    label = f"{report.judgement.steps} steps, {len(report.judgement.findings)} findings"
    height = _HEIGHT if report.tokens else _TOKENS_Y + 18
    yield f'<svg role="img" aria-label="{label}" width="{right + 12:.0f}" height="{height}">\n'
    for name, y in (("steps", _CELLS_Y + 20), ("findings", _FOUND_Y + 10)):
        yield f'<text class="label" x="0" y="{y}">{name}</text>'
    for rung, name in enumerate(RUNGS):
        y = _rung_y(rung)
        yield f'<path class="grid" d="M{LEFT} {y}H{right:.1f}"/><text class="label" x="0" y="{y + 4}">{name}</text>'
    yield from _cells(shapes, wide)
    yield _rung_line(report, places, wide, right)
    yield from _tokens(shapes, wide)
    yield from _marks(report.judgement.findings, places, wide)
    every = next(
        each for each in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000) if each * wide >= 40
    )
    for index, shape in enumerate(shapes):
        if shape.n % every == 0 or (index == 0 and every > 1):
            x = LEFT + wide * (index + 0.5)
            yield f'<text class="axis" x="{x:.1f}" y="{height - 4}">{shape.n}</text>'
    yield "</svg>"


def _rung_y(rung: int) -> int:
    return _RUNG_Y + _RUNG_STEP * (len(RUNGS) - 1 - rung) + 6


def _cells(shapes: Sequence[Shape], wide: float) -> Iterator[str]:
    inner = wide * (1 - GAP)
    for index, shape in enumerate(shapes):
        x = LEFT + wide * index
        kind = "fail" if shape.failed else "call" if shape.calls else "text"
        said = f"step {shape.n}"
        if shape.trigger:
            said += f", a turn begun by {shape.trigger}"
        if shape.failed:
            said += f", {shape.failed} of {shape.calls} calls failed"
        if shape.tokens:
            said += f", {shape.tokens:,} tokens"
        title = escape(f"{said}\n{shape.line}")
        yield (
            f'<rect class="{kind}" x="{x:.1f}" y="{_CELLS_Y + 8}" width="{inner:.1f}" height="18" rx="1">'
            f"<title>{title}</title></rect>"
        )
        if shape.trigger:
            who = "human" if shape.trigger == "human" else "turn"
            yield f'<path class="{who}" d="M{x:.1f} {_CELLS_Y - 3}h8l-4 8z"><title>{title}</title></path>'
    yield "\n"


def _rung_line(report: Report, places: dict[int, int], wide: float, right: float) -> str:
    points = [f"M{LEFT} {_rung_y(0)}"]
    for step, rung in report.judgement.rungs:
        if step not in places:
            break
        points.append(f"H{LEFT + wide * (places[step] + 0.5):.1f}V{_rung_y(min(rung, len(RUNGS) - 1))}")
    points.append(f"H{right:.1f}")
    return f'<path class="rung" d="{"".join(points)}"><title>how far the ladder was climbed</title></path>\n'


def _tokens(shapes: Sequence[Shape], wide: float) -> Iterator[str]:
    most = max(shape.tokens for shape in shapes)
    if most == 0:
        return
    floor = _TOKENS_Y + _TOKENS_HEIGHT
    parts = []
    for index, shape in enumerate(shapes):
        height = _TOKENS_HEIGHT * shape.tokens / most
        if height:
            x = LEFT + wide * index
            parts.append(f"M{x:.1f} {floor}v{-height:.1f}h{wide * (1 - GAP):.1f}v{height:.1f}z")
    yield f'<text class="label" x="0" y="{floor}">tokens</text>'
    yield f'<path class="tokens" d="{"".join(parts)}"><title>tokens a step, at most {most:,}</title></path>\n'


def _marks(findings: Sequence[Judged], places: dict[int, int], wide: float) -> Iterator[str]:
    by_step: dict[int, list[Judged]] = {}
    for finding in findings:
        by_step.setdefault(finding.step, []).append(finding)
    for step, found in by_step.items():
        if step not in places:
            continue
        x, y = LEFT + wide * (places[step] + 0.5 * (1 - GAP)), _FOUND_Y + 6
        lines = [f"step {step}: {f.rule}, {f.level}, {f.verdict}\n" + "\n".join(f.evidence) for f in found]
        title = escape("\n".join(lines))
        if any(f.level == "hard" or f.verdict in {"close", "terminate"} for f in found):
            mark = f'<path class="hard" d="M{x:.1f} {y - 7}l7 7-7 7-7-7z">'
            yield f"{mark}<title>{title}</title></path>"
        else:
            yield f'<circle class="soft" cx="{x:.1f}" cy="{y}" r="5"><title>{title}</title></circle>'
    yield "\n"
