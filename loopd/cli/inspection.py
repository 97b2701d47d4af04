"""`loopctl inspect`: what the rules and the ladder would have done about logs, without a daemon."""

from __future__ import annotations

import re

from loopd.cli.bar import Bar
from loopd.cli.console import Cell, safe
from loopd.cli.exits import FAILED, NOT_FOUND, OK, Failure
from loopd.core.settings import DEFAULT_PRESET, Settings, settings_of
from loopd.transcripts.files import size_bytes
from loopd.transcripts.inspection import Report, inspect
from loopd.transcripts.logs import Fault
from loopd.transcripts.page import Page
from loopd_protocol.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from loopd.cli.run import Run
    from loopd.core.judge import Judged

FOUND = NOT_FOUND
"""Exit code 3 of `--fail-on`."""

STYLES = {"ok": "green", "nudge": "yellow", "text_only": "yellow", "close": "red", "terminate": "red"}
WHAT_CHARS = 200
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>~$&])")


def run_inspect(run: Run) -> int:
    """Judge files; one line for each log."""
    args = run.args
    settings = chosen(args.preset, args.set)
    form = format_of(run)
    page = _page(run)
    table = Findings(run, form, every=args.all)
    reader = Reader(run, args.files)
    failing = False
    try:
        for report in reader.reports([settings], attended=args.attended, shapes=page is not None):
            verdict = report.judgement
            hard = verdict.first_hard is not None
            failing = failing or hard or (args.fail_on == "soft" and verdict.first_soft is not None)
            table.add(report)
            if page is not None:
                page.add(report)
        reader.bar.clear()
        table.end()
        if page is not None:
            page.write()
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise Failure("usage", f"{args.html!r} cannot be written: {error.strerror}") from None
    finally:
        reader.bar.clear()
        if page is not None:
            page.discard()
    if reader.faults:
        return FAILED
    return FOUND if failing and args.fail_on else OK


def _page(run: Run) -> Page | None:
    args = run.args
    if args.html is None:
        return None
    try:
        return Page(args.html, title_of(args.preset, args.set))
    except OSError as error:
        raise Failure("usage", f"{args.html!r} cannot be written: {error.strerror}") from None


# -- what inspect and backtest share -------------------------------------------------------------


def chosen(
    preset: str | None, overrides: Iterable[tuple[str, object]], base: dict[str, Any] | None = None
) -> Settings:
    """Settings from `--preset` and `--set`, which wins over `base`."""
    try:
        return settings_of(preset or DEFAULT_PRESET, {**(base or {}), **dict(overrides)})
    except Refused as refusal:
        raise Failure(refusal.code, refusal.message, path=refusal.path) from None


def format_of(run: Run) -> str:
    """`table`, `md` or `json`: `--format`, else `-o`."""
    return str(run.args.format or ("table" if run.console.format == "table" else "json"))


def title_of(preset: str | None, overrides: Iterable[tuple[str, object]]) -> str:
    """The settings in words."""
    return " ".join([f"preset {preset or DEFAULT_PRESET}", *(f"{key}={value}" for key, value in overrides)])


class Reader:
    """Reads files one after the other, with a progress bar; faults go to standard error.

    Attributes:
        faults: how many there were.
        bar: clear it before anything else is printed.
    """

    def __init__(self, run: Run, files: Sequence[str]) -> None:
        self._run = run
        self._files = files
        self.faults = 0
        sizes = [size_bytes(path) for path in files]
        self.bar = Bar(None if None in sizes else sum(size or 0 for size in sizes), run.console.err)

    def reports(
        self, settings: Sequence[Settings], *, attended: bool, shapes: bool = False
    ) -> Iterable[Report]:
        """All logs of all files, judged with each of the settings."""
        for path in self._files:
            found = inspect(path, settings, attended=attended, shapes=shapes, progress=self.bar.advance)
            for each in found:
                self.bar.clear()
                if isinstance(each, Fault):
                    self.fault(each)
                else:
                    self.bar.log()
                    yield each

    def fault(self, fault: Fault) -> None:
        """Say what could not be read."""
        self.faults += 1
        err = self._run.console.err
        self._run.console.flush()
        if self._run.console.format != "table":
            import json

            error = {"code": "unreadable", "message": fault.message, "where": fault.where, "exit": FAILED}
            err.write(json.dumps({"error": error}) + "\n")
        else:
            err.write(f"loopctl: {safe(fault.where)}: {safe(fault.message)}\n")


def summary_of(finding: Judged) -> str:
    """What a finding says, in one line."""
    return " · ".join(" ".join(each.split()) for each in finding.evidence)[:WHAT_CHARS]


def markup(text: str) -> str:
    """Foreign text in a Markdown table: nothing in it is markup."""
    return _MARKUP.sub(r"\\\1", safe(text)).replace("&", "&amp;").replace("<", "&lt;")


def known(number: int | None) -> str:
    """A number, or a dash."""
    return "–" if number is None else str(number)


def row_of(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


# -- findings ------------------------------------------------------------------------------------

HEADER = ("LOG", "STEPS", "VERDICT", "SOFT", "HARD", "TOKENS AFTER", "RULES", "WHAT")


class Findings:
    """Prints reports: JSON at once, tables when all are there."""

    def __init__(self, run: Run, form: str, *, every: bool) -> None:
        self._console = run.console
        self._form = form
        self._every = every
        self._rows: list[tuple[str, ...]] = []
        self._found: list[Report] = []
        self._counts: dict[str, int] = {}
        self._steps = 0

    def add(self, report: Report) -> None:
        """One more log."""
        if self._form == "json":
            import json

            self._console.line(json.dumps(report.as_object()))
            self._console.flush()
            return
        verdict = report.judgement
        self._counts[verdict.verdict] = self._counts.get(verdict.verdict, 0) + 1
        self._steps += verdict.steps
        if verdict.findings and (self._form == "md" or len(self._found) < 2):
            self._found.append(report)
        if not (verdict.findings or self._every):
            return
        shown = next((f for f in verdict.findings if f.step == verdict.first_hard), None)
        shown = shown or next((f for f in verdict.findings if f.step == verdict.first_soft), None)
        shown = shown or next(iter(verdict.findings), None)
        self._rows.append(
            (
                report.begin.id,
                str(verdict.steps),
                verdict.verdict,
                known(verdict.first_soft),
                known(verdict.first_hard),
                known(verdict.tokens_after_first_soft),
                ", ".join(dict.fromkeys(f.rule for f in verdict.findings)) or "–",
                "" if shown is None else summary_of(shown),
            )
        )

    def end(self) -> None:
        """No more logs."""
        if self._form == "table":
            self._table()
        elif self._form == "md":
            self._markdown()

    def _words(self) -> str:
        total = sum(self._counts.values())
        quiet = self._counts.get("ok", 0)
        parts = [f"{count} {verdict}" for verdict, count in self._counts.items() if verdict != "ok"]
        found = f"{', '.join(parts)}, {quiet} ok" if parts else "nothing found"
        logs = "1 log" if total == 1 else f"{total} logs"
        return f"{logs}, {self._steps} steps: {found}"

    def _table(self) -> None:
        console = self._console
        if self._rows:
            rows: list[Sequence[str | Cell]] = [
                [*row[:2], Cell(row[2], STYLES[row[2]]), *row[3:]] for row in self._rows
            ]
            console.table(HEADER, rows, flex=7, optional=(5, 7, 6))
            console.line()
        if len(self._found) == 1 and self._found[0].judgement.findings:
            findings = self._found[0].judgement.findings
            console.table(
                ("STEP", "RULE", "LEVEL", "VERDICT", "WHAT"),
                [[str(f.step), f.rule, f.level, _verdict(f), summary_of(f)] for f in findings],
                flex=4,
            )
            console.line()
        console.line(self._words())

    def _markdown(self) -> None:
        line = self._console.line
        line(f"{self._words()}.")
        if self._rows:
            line()
            line(row_of(name.capitalize() for name in HEADER))
            line(row_of(["---"] * len(HEADER)))
            for row in self._rows:
                line(row_of(map(markup, row)))
        for report in self._found:
            line()
            line(f"## {markup(report.begin.id)}")
            line()
            line(row_of(("Step", "Rule", "Level", "Verdict", "Score", "Threshold", "What")))
            line(row_of(["---"] * 7))
            for f in report.judgement.findings:
                cells = (
                    str(f.step),
                    f.rule,
                    f.level,
                    _verdict(f),
                    str(f.score),
                    str(f.threshold),
                    summary_of(f),
                )
                line(row_of(map(markup, cells)))


def _verdict(finding: Judged) -> str:
    return f"{finding.verdict} (shadow)" if finding.shadow else finding.verdict
