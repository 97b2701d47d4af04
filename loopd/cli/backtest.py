"""`loopctl backtest`: recorded runs under other settings, beside those they are compared with."""

from __future__ import annotations

from loopd.cli.console import Cell, safe
from loopd.cli.exits import FAILED, OK, Failure
from loopd.cli.inspection import STYLES, Reader, chosen, format_of, known, markup, row_of, title_of
from loopd.transcripts.inspection import Report, judged
from loopd.transcripts.logs import Fault
from loopd.transcripts.loopd_events import KINDS, Events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from loopd.cli.run import Run
    from loopd.core.settings import Settings
    from loopd.transcripts.inspection import Outcome
    from loopd.transcripts.logs import Items

PAGE = 500
SOLVED = frozenset({"resolved", "success"})
"""Outcomes of runs without a label that count as healthy."""

HEADER = ("LOG", "KIND", "STEPS", "BASE", "AT", "THEN", "AT", "CHANGE", "STEPS SAVED", "TOKENS SAVED")


def run_backtest(run: Run) -> int:
    """Judge files or recorded sessions twice and tell the difference."""
    args = run.args
    if bool(args.files) == bool(args.session):
        raise Failure("usage", "expected FILE… or --session SID…, one of them")
    form = format_of(run)
    comparison = Comparison(run, form, every=args.all)
    reader = Reader(run, args.files)
    try:
        if args.session:
            for sid in args.session:
                for each in _session(run, sid):
                    if isinstance(each, Fault):
                        reader.fault(each)
                    else:
                        comparison.add(each)
            words = "the session's own settings" if args.base_preset is None else f"preset {args.base_preset}"
            base = " ".join([words, *(f"{key}={value}" for key, value in args.base_set)])
            then = " ".join(["these with", *(f"{key}={value}" for key, value in args.set)])
        else:
            base = title_of(args.base_preset, args.base_set)
            then = title_of(args.preset or args.base_preset, [*args.base_set, *args.set])
            for report in reader.reports(_pair(run, None, {}), attended=args.attended):
                comparison.add(report)
        reader.bar.clear()
        comparison.end(base, then)
    finally:
        reader.bar.clear()
    return FAILED if reader.faults else OK


def _pair(run: Run, preset: str | None, settings: dict[str, Any]) -> tuple[Settings, Settings]:
    """The settings to compare with, and the others, which start from them."""
    args = run.args
    if args.base_preset is not None:
        preset, settings = args.base_preset, {}
    base = chosen(preset, args.base_set, settings)
    changed = {**settings, **dict(args.base_set)} if args.preset in {None, preset} else {}
    return base, chosen(args.preset or preset, args.set, changed)


def _session(run: Run, sid: str) -> Iterator[Report | Fault]:
    view = run.link.ask({"t": "session.get", "sid": sid})
    pair = _pair(run, view.get("preset"), view.get("settings") or {})
    items = _events(run, str(view["sid"]))
    yield from judged(items, pair, attended=run.args.attended, name=str(view.get("name") or sid))


def _events(run: Run, sid: str) -> Items:
    importer = Events(sid)
    after = 0
    while True:
        command = {"t": "history.page", "sid": sid, "after": after, "limit": PAGE, "kinds": list(KINDS)}
        answer = run.link.ask(command)
        for event in answer["events"]:
            after = int(event["seq"])
            yield from importer.line(after, event)
        if not answer.get("more") or not answer["events"]:
            break
    yield from importer.end()


# -- what came out -------------------------------------------------------------------------------


def kind_of(report: Report) -> str:
    """`healthy`, `stuck` or `unknown`: the label, else the outcome."""
    label = report.begin.label
    if label in {"healthy", "stuck"}:
        return label
    return "healthy" if report.begin.outcome in SOLVED else "unknown"


def change_of(base: Outcome, then: Outcome) -> str:
    """What the other settings change for one log, in one word."""
    old, new = base.judgement, then.judgement
    if (old.first_hard is None) != (new.first_hard is None):
        return "stopped" if old.first_hard is None else "no longer stopped"
    if (old.first_soft is None) != (new.first_soft is None):
        return "nudged" if old.first_soft is None else "no longer nudged"
    for before, after in ((old.first_hard, new.first_hard), (old.first_soft, new.first_soft)):
        if before is not None and after is not None and before != after:
            return "earlier" if after < before else "later"
    return "same"


def _side(outcome: Outcome) -> dict[str, Any]:
    verdict = outcome.judgement
    return {
        "verdict": verdict.verdict,
        "fired": verdict.first_soft is not None or verdict.first_hard is not None,
        "first_soft": verdict.first_soft,
        "first_hard": verdict.first_hard,
        "rules": list(dict.fromkeys(f.rule for f in verdict.findings)),
        "steps_saved": outcome.steps_saved,
        "tokens_saved": outcome.tokens_saved,
    }


def as_object(report: Report) -> dict[str, Any]:
    """The line of `--format json`."""
    base, then = report.outcomes
    return {
        "id": report.begin.id,
        "file": report.file,
        "kind": kind_of(report),
        "label": report.begin.label,
        "outcome": report.begin.outcome,
        "steps": then.judgement.steps,
        "tokens": report.tokens,
        "base": _side(base),
        "then": _side(then),
        "change": change_of(base, then),
    }


class Total:
    """Sums over all logs for one set of settings."""

    def __init__(self) -> None:
        self.fired = self.stopped = self.steps_saved = self.tokens_saved = 0
        self.healthy_nudged = self.healthy_stopped = self.stuck_found = self.stuck_stopped = 0

    def add(self, outcome: Outcome, kind: str) -> None:
        """One more log."""
        verdict = outcome.judgement
        soft = verdict.first_soft is not None or verdict.first_hard is not None
        hard = verdict.first_hard is not None
        self.fired += soft
        self.stopped += hard
        self.healthy_nudged += soft and kind == "healthy"
        self.healthy_stopped += hard and kind == "healthy"
        self.stuck_found += soft and kind == "stuck"
        self.stuck_stopped += hard and kind == "stuck"
        if kind != "healthy":  # what is cut off a healthy run is a loss
            self.steps_saved += outcome.steps_saved
            self.tokens_saved += outcome.tokens_saved


class Comparison:
    """Prints reports: JSON at once, tables when all are there."""

    def __init__(self, run: Run, form: str, *, every: bool) -> None:
        self._console = run.console
        self._form = form
        self._every = every
        self._rows: list[tuple[str, ...]] = []
        self._kinds = {"healthy": 0, "stuck": 0, "unknown": 0}
        self._changes: dict[str, int] = {}
        self._totals = (Total(), Total())

    def add(self, report: Report) -> None:
        """One more log."""
        kind = kind_of(report)
        line = as_object(report)
        self._kinds[kind] += 1
        self._changes[line["change"]] = self._changes.get(line["change"], 0) + 1
        for total, outcome in zip(self._totals, report.outcomes, strict=True):
            total.add(outcome, kind)
        if self._form == "json":
            self._json(line)
            return
        base, then = line["base"], line["then"]
        if not (base["rules"] or then["rules"] or self._every):
            return
        self._rows.append(
            (
                report.begin.id,
                kind,
                str(line["steps"]),
                base["verdict"],
                _at(base),
                then["verdict"],
                _at(then),
                line["change"],
                str(then["steps_saved"]),
                str(then["tokens_saved"]),
            )
        )

    def end(self, base: str, then: str) -> None:
        """No more logs: the sums."""
        if self._form == "json":
            self._json(
                {
                    "summary": {
                        "logs": sum(self._kinds.values()),
                        **self._kinds,
                        "base": {"settings": base, **vars(self._totals[0])},
                        "then": {"settings": then, **vars(self._totals[1])},
                        "changes": self._changes,
                    }
                }
            )
        elif self._form == "md":
            self._markdown(base, then)
        else:
            self._table(base, then)

    def _json(self, value: dict[str, Any]) -> None:
        import json

        self._console.line(json.dumps(value))
        self._console.flush()

    def _sums(self) -> list[tuple[str, str, str, str]]:
        old, new = self._totals
        healthy, stuck = self._kinds["healthy"], self._kinds["stuck"]
        rows = [
            ("logs with a correction or more", old.fired, new.fired, ""),
            ("logs stopped", old.stopped, new.stopped, ""),
            ("healthy ones corrected", old.healthy_nudged, new.healthy_nudged, f" of {healthy}"),
            ("healthy ones stopped", old.healthy_stopped, new.healthy_stopped, f" of {healthy}"),
            ("stuck ones found", old.stuck_found, new.stuck_found, f" of {stuck}"),
            ("stuck ones stopped", old.stuck_stopped, new.stuck_stopped, f" of {stuck}"),
            ("steps saved in the others", old.steps_saved, new.steps_saved, ""),
            ("tokens saved in the others", old.tokens_saved, new.tokens_saved, ""),
        ]
        return [
            (name, f"{a:,}{of}", f"{b:,}{of}", f"{b - a:+,}" if a != b else "") for name, a, b, of in rows
        ]

    def _table(self, base: str, then: str) -> None:
        console = self._console
        if self._rows:
            shown: list[Sequence[str | Cell]] = [
                [*row[:3], Cell(row[3], STYLES[row[3]]), row[4], Cell(row[5], STYLES[row[5]]), *row[6:]]
                for row in self._rows
            ]
            console.table(HEADER, shown, flex=0, optional=(9, 8, 1))
            console.line()
        console.table(("", "BASE", "THEN", "DIFFERENCE"), self._sums())
        console.line()
        console.pairs([("logs", str(sum(self._kinds.values()))), ("base", base), ("then", then)])

    def _markdown(self, base: str, then: str) -> None:
        line = self._console.line
        line(f"Base: {markup(safe(base))}. Then: {markup(safe(then))}.")
        line()
        line(row_of(("", "Base", "Then", "Difference")))
        line(row_of(["---"] * 4))
        for sums in self._sums():
            line(row_of(sums))
        if self._rows:
            line()
            line(row_of(name.capitalize() for name in HEADER))
            line(row_of(["---"] * len(HEADER)))
            for row in self._rows:
                line(row_of(map(markup, row)))


def _at(side: dict[str, Any]) -> str:
    """First soft and first hard step, as `12/20`."""
    if not side["fired"]:
        return "–"
    return f"{known(side['first_soft'])}/{known(side['first_hard'])}"
