"""How well the rules judge: `make bench-detection DATA=FILE`.

Prints recall, delay and false stops per family with Wilson 95 % intervals, tokens saved, cost per step, and
published packages on the same cases. Exit code 1, naming them, when goals are missed.

Delay counts the steps of the loop up to the first nudge, the first step of the loop included. Only what is
said inside the loop counts as caught; what is said before its onset counts as a false alarm.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from operator import truediv
from pathlib import Path

import msgspec

from loopd.core.judge import Judge, Judgement
from loopd.core.settings import Settings, settings_of
from tests.bench.figures import report
from tests.bench.peer_runs import PEERS, TOP, Answer, Install, Peer, PeerMissing, answers, environment
from tests.corpus.cases import LOOP_STEPS, Case, fresh, taped
from tests.corpus.grafts import Run, grafts, runs
from tests.corpus.incidents import PLAIN_FAMILIES, incidents
from tests.corpus.lookalikes import lookalikes
from tests.corpus.pairs import pairs
from tests.corpus.working import plainly

PAGE = TOP / "docs/explanation/detection.md"
BEGIN, END = "<!-- benchmark: written by `make bench-detection PAGE=1` -->", "<!-- end of benchmark -->"
GRAFTED_RUNS = 60
PEER_EVERY = 3
"""Peers (and the rules beside them) get every third incident, look-alike and graft; pairs and real runs all."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a detector said of a case.

    Attributes:
        soft, hard: first step inside the loop (of a healthy case: first step at all), None for none.
        early: it said something before the onset.
        stopped_early: it would have stopped the agent before the onset.
    """

    case: Case
    soft: int | None
    hard: int | None
    early: bool = False
    stopped_early: bool = False
    judgement: Judgement | None = None

    @property
    def delay(self) -> int | None:
        """Steps of the loop until it was noticed, the first one included."""
        return None if self.soft is None or self.case.onset is None else self.soft - self.case.onset + 1

    @property
    def hard_delay(self) -> int | None:
        """The same up to the hard level."""
        return None if self.hard is None or self.case.onset is None else self.hard - self.case.onset + 1


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The Wilson 95 % interval of a share."""
    if not count:
        return 0.0, 1.0
    z = 1.959964
    share = hits / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def share(hits: int, count: int) -> str:
    """`12/40 = 30 % (18–45)`."""
    if not count:
        return "–"
    low, high = wilson(hits, count)
    return f"{hits}/{count} = {100 * hits / count:.1f} % ({100 * low:.1f}–{100 * high:.1f})"


def judged(case: Case, settings: Settings) -> Said:
    """What the rules say of a case."""
    judge = Judge(settings)
    for step in case.steps:
        judge.step(step)
    judgement = judge.judgement()
    if judgement.failures:
        raise RuntimeError(f"a rule failed on {case.id}: {judgement.failures[0]}")
    told = [found for found in judgement.findings if not found.shadow]
    soft = [found.step for found in told if found.verdict != "warn"]
    hard = [found.step for found in told if found.level == "hard" or found.verdict in {"close", "terminate"}]
    return _said(case, soft, hard, judgement)


def answered(case: Case, answer: Answer) -> Said:
    """The same of a peer's answer."""
    return _said(case, sorted({*answer.flags, *answer.stops}), answer.stops, None)


def _said(case: Case, soft: Sequence[int], hard: Sequence[int], judgement: Judgement | None) -> Said:
    onset = case.onset or 0
    return Said(
        case=case,
        soft=next((step for step in soft if step >= onset), None),
        hard=next((step for step in hard if step >= onset), None),
        early=any(step < onset for step in soft),
        stopped_early=any(step < onset for step in hard),
        judgement=judgement,
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; columns are padded so that it also reads on a terminal."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *cells]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in lines
    ]


def quantiles(values: Sequence[int]) -> str:
    """Median and the value that nine of ten do not exceed."""
    if not values:
        return "–"
    ordered = sorted(values)
    return f"{statistics.median(ordered):g} / {ordered[math.ceil(0.9 * len(ordered)) - 1]}"


def by_family(said: Iterable[Said]) -> dict[str, list[Said]]:
    """Grouped, in the order of first appearance."""
    groups: dict[str, list[Said]] = defaultdict(list)
    for each in said:
        groups[each.case.family].append(each)
    return groups


def incident_table(said: Sequence[Said]) -> list[str]:
    """Recall and delay per family."""
    rows = []
    for family, group in [*by_family(said).items(), ("all", list(said))]:
        delays = [each.delay for each in group if each.delay is not None]
        hard = [each.hard_delay for each in group if each.hard_delay is not None]
        rows.append(
            (
                family,
                share(len(delays), len(group)),
                share(len(hard), len(group)),
                quantiles(delays),
                quantiles(hard),
            )
        )
    head = (
        "incident",
        "caught (soft or higher)",
        f"hard within {LOOP_STEPS} steps",
        "delay, median / p90",
        "to hard, median / p90",
    )
    return table(head, rows)


def lookalike_table(said: Sequence[Said]) -> list[str]:
    """False alarms per family."""
    rows = [
        (
            family,
            share(sum(each.hard is not None for each in group), len(group)),
            share(sum(each.soft is not None for each in group), len(group)),
        )
        for family, group in [*by_family(said).items(), ("all", list(said))]
    ]
    return table(("look-alike", "halted", "nudged or more"), rows)


def saved(said: Iterable[Said]) -> tuple[int, int]:
    """Tokens behind the first hard finding, and tokens behind the onset: what a stop there saves."""
    after = total = 0
    for each in said:
        for step in each.case.steps:
            if each.case.onset is None or step.n < each.case.onset or step.usage is None:
                continue
            tokens = step.usage.input_tokens + step.usage.output_tokens
            total += tokens
            if each.hard is not None and step.n > each.hard:
                after += tokens
    return after, total


def cost(
    settings: Settings, histories: Sequence[int] = (100, 10_000), measured: int = 1_000, rounds: int = 10
) -> dict[int, list[float]]:
    """Processor time of a step in milliseconds behind so many steps of history; one median for each round."""
    history_steps = taped(plainly(max(histories), fresh(7, "history")))
    judges = {}
    for history in histories:
        judges[history] = Judge(settings)
        for step in history_steps[:history]:
            judges[history].step(step)
    found: dict[int, list[float]] = {history: [] for history in histories}
    times: dict[int, list[float]] = {history: [] for history in histories}
    # the same steps behind each history, in turn: neighbours and contents weigh equally
    for index, step in enumerate(taped(plainly(measured, fresh(7, "measured"))), start=1):
        for history in histories if index % 2 else reversed(histories):
            numbered = msgspec.structs.replace(step, n=history + index)
            began = time.thread_time_ns()
            judges[history].step(numbered)
            times[history].append((time.thread_time_ns() - began) / 1e6)
        if index % (measured // rounds) == 0:
            for history in histories:
                found[history].append(statistics.median(times[history]))
                times[history].clear()
    return found


class Measured(msgspec.Struct, kw_only=True):
    """Everything that was found out, and which goals were missed."""

    lines: list[str] = []
    missed: list[str] = []

    def goal(
        self, name: str, value: float, most: float | None = None, least: float | None = None, unit: str = ""
    ) -> None:
        """Report a figure and hold it against its goal."""
        goal = most if most is not None else least
        report(f"detection: {name}", [value], unit, goal=goal, better="less" if most is not None else "more")
        if (most is not None and value > most) or (least is not None and value < least):
            self.missed.append(
                f"{name}: {value:g} {unit}; goal {'at most' if most is not None else 'at least'} {goal:g}"
            )


def real_part(measured: Measured, found: list[Run], settings: Settings) -> list[tuple[Run, Said]]:
    """Labelled and unlabelled real runs."""
    said = []
    for run in found:
        label = "stuck" if run.label == "stuck" else "healthy"
        case = Case(
            id=run.id,
            family=f"real, {run.label}",
            variant=run.source,
            label=label,
            onset=None,
            steps=run.steps,
        )  # type: ignore[arg-type]
        said.append((run, judged(case, settings)))
    rows = []
    for label in ("stuck", "healthy", "unlabelled"):
        group = [each for run, each in said if (run.label or "unlabelled") == label]
        if group:
            rows.append(
                (
                    f"real, {label}",
                    share(sum(each.hard is not None for each in group), len(group)),
                    share(sum(each.soft is not None for each in group), len(group)),
                )
            )
    measured.lines += ["", *table(("real runs", "hard", "soft or higher"), rows)]
    stuck = [each for run, each in said if run.label == "stuck"]
    healthy = [each for run, each in said if run.label == "healthy"]
    if stuck:
        measured.goal(
            "real stuck runs found",
            sum(each.soft is not None for each in stuck),
            least=len(stuck),
            unit="runs",
        )
    if healthy:
        measured.goal(
            "real healthy runs at the hard level",
            sum(each.hard is not None for each in healthy),
            most=0,
            unit="runs",
        )
        measured.goal(
            "real healthy runs at the soft level",
            sum(each.soft is not None for each in healthy),
            most=1,
            unit="runs",
        )
    flagged = [(run, each) for run, each in said if each.soft is not None]
    if flagged:
        measured.lines += ["", "Flagged real runs:", ""]
        for run, each in flagged:
            assert each.judgement is not None
            first = each.judgement.findings[0]
            measured.lines.append(
                f"- {run.id} ({run.source}, {run.label or 'unlabelled'}, {run.outcome}, {len(run.steps)} steps): "
                f"{first.rule} at step {first.step}, verdict {each.judgement.verdict}"
            )
    return said


def _told(peer: Peer, install: Install, cases: Sequence[Case]) -> dict[str, Answer] | str:
    """A peer's answers, or why there are none."""
    began = time.monotonic()
    try:
        told = answers(peer, environment(peer, install), cases)
    except PeerMissing as reason:
        return str(reason)
    sys.stderr.write(
        f"{peer.package} {peer.version}: {len(told)} cases in {time.monotonic() - began:.0f} s\n"
    )
    return told


def peer_part(
    measured: Measured, sets: dict[str, list[Case]], ours: dict[str, list[Said]], install: Install
) -> None:
    """The same cases through published packages."""
    thinned = {"incidents", "look-alikes", "grafts"}
    sets = {name: cases[:: PEER_EVERY if name in thinned else 1] for name, cases in sets.items()}
    ours = {name: said[:: PEER_EVERY if name in thinned else 1] for name, said in ours.items()}
    results: dict[str, dict[str, list[Said]]] = {f"loopd {importlib.metadata.version('loopd')}": ours}
    absent: list[str] = []
    everything = [case for cases in sets.values() for case in cases]
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = [(peer, pool.submit(_told, peer, install, everything)) for peer in PEERS]
        for peer, future in running:
            told = future.result()
            if isinstance(told, str):
                absent.append(f"{peer.package}: {told}")
                continue
            results[f"{peer.package} {peer.version}"] = {
                name: [answered(case, told[case.id]) for case in cases] for name, cases in sets.items()
            }
    measured.lines += [
        "",
        f"Side by side, on every {PEER_EVERY}rd incident, look-alike and graft, and all pairs and labelled real runs:",
    ]
    head = (
        "detector",
        "incidents caught",
        "incidents stopped",
        "delay, median / p90",
        "look-alikes flagged",
        "look-alikes stopped",
        "pairs told apart",
    )
    rows = []
    for name, result in results.items():
        stuck, healthy = result["incidents"], result["look-alikes"]
        delays = [each.delay for each in stuck if each.delay is not None]
        rows.append(
            (
                name,
                share(len(delays), len(stuck)),
                share(sum(each.hard is not None for each in stuck), len(stuck)),
                quantiles(delays),
                share(sum(each.soft is not None for each in healthy), len(healthy)),
                share(sum(each.hard is not None for each in healthy), len(healthy)),
                share(*_pairs_told_apart(result["pairs"])),
            )
        )
    measured.lines += ["", *table(head, rows)]
    if "real, healthy" in sets:
        head = (
            "detector",
            "real stuck runs flagged",
            "real healthy runs flagged",
            "real healthy runs stopped",
            "grafted loops caught",
        )
        rows = []
        for name, result in results.items():
            stuck, healthy, grafted = result["real, stuck"], result["real, healthy"], result["grafts"]
            rows.append(
                (
                    name,
                    share(sum(each.soft is not None for each in stuck), len(stuck)),
                    share(sum(each.soft is not None for each in healthy), len(healthy)),
                    share(sum(each.hard is not None for each in healthy), len(healthy)),
                    share(sum(each.soft is not None for each in grafted), len(grafted)),
                )
            )
        measured.lines += ["", *table(head, rows)]
    if len(results) > 1:
        measured.lines += ["", *_caught_per_family(results), "", *_better(results)]
    for each in absent:
        measured.lines += ["", f"Skipped: {each}"]
        sys.stderr.write(f"skipped: {each}\n")


def _pairs_told_apart(said: Sequence[Said]) -> tuple[int, int]:
    halves: dict[str, dict[str, Said]] = defaultdict(dict)
    for each in said:
        halves[each.case.pair or ""][each.case.label] = each
    apart = sum(pair["stuck"].soft is not None and pair["healthy"].soft is None for pair in halves.values())
    return apart, len(halves)


def _caught_per_family(results: dict[str, dict[str, list[Said]]]) -> list[str]:
    names = list(results)
    groups = {name: by_family(result["incidents"]) for name, result in results.items()}
    rows = []
    for family, group in groups[names[0]].items():
        cells = [family, str(len(group))]
        for name in names:
            mine = groups[name][family]
            caught = [each.delay for each in mine if each.delay is not None]
            cells.append(
                f"{100 * len(caught) / len(mine):.0f} %"
                + (f", {statistics.median(caught):g}" if caught else "")
            )
        rows.append(cells)
    for family, group in by_family(results[names[0]]["look-alikes"]).items():
        cells = [f"look-alike: {family}", str(len(group))]
        for name in names:
            mine = [each for each in results[name]["look-alikes"] if each.case.family == family]
            flagged, stopped = (
                sum(getattr(each, level) is not None for each in mine) for level in ("soft", "hard")
            )
            cells.append(f"{100 * flagged / len(mine):.0f} % / {100 * stopped / len(mine):.0f} %")
        rows.append(cells)
    head = ("family (caught, median delay; look-alikes: flagged / stopped)", "cases", *names)
    return table(head, rows)


def _better(results: dict[str, dict[str, list[Said]]]) -> list[str]:
    """Where somebody else does better on the same cases."""
    first, *others = results
    ours = by_family(results[first]["incidents"])
    lines = []
    for name in others:
        theirs = by_family(results[name]["incidents"])
        sooner = []
        for family, group in ours.items():
            mine = [each.delay for each in group if each.delay is not None]
            delays = [each.delay for each in theirs[family] if each.delay is not None]
            if not delays:
                continue
            if len(delays) > len(mine):
                sooner.append(f"{family} (catches more: {len(delays)} against {len(mine)})")
            elif statistics.median(delays) < statistics.median(mine):
                sooner.append(
                    f"{family} ({statistics.median(delays):g} steps against {statistics.median(mine):g}, "
                    f"of the {len(delays)} of {len(group)} it catches)"
                )
        fewer = []
        quiet = by_family(results[name]["look-alikes"])
        for family, group in by_family(results[first]["look-alikes"]).items():
            mine_flagged = sum(each.soft is not None for each in group)
            their_flagged = sum(each.soft is not None for each in quiet[family])
            if their_flagged < mine_flagged:
                fewer.append(f"{family} ({their_flagged} flagged against {mine_flagged})")
        if sooner or fewer:
            said = [f"sooner or more in {', '.join(sooner)}"] * bool(sooner) + [
                f"quieter in {', '.join(fewer)}"
            ] * bool(fewer)
            lines.append(f"- {name} is {'; '.join(said)}.")
        else:
            lines.append(f"- {name} is not better in any family.")
    return ["Where a peer is better:", "", *lines]


def measure(data: str | None, install: Install, settings: Settings, *, seed: int, peers: bool) -> Measured:
    """Judge everything."""
    measured = Measured()
    sets = {"incidents": incidents(seed), "look-alikes": lookalikes(seed), "pairs": pairs(seed)}
    ours = {name: [judged(case, settings) for case in cases] for name, cases in sets.items()}
    stuck, healthy = ours["incidents"], ours["look-alikes"]
    after, total = saved(stuck)
    measured.lines += [*incident_table(stuck), "", *lookalike_table(healthy)]
    delays = [each.delay for each in stuck if each.delay is not None]
    plain = [each.delay for each in stuck if each.delay is not None and each.case.family in PLAIN_FAMILIES]
    measured.goal("incidents caught", 100 * len(delays) / len(stuck), least=100, unit="%")
    measured.goal(
        "incidents at the hard level in time",
        100 * sum(s.hard is not None for s in stuck) / len(stuck),
        least=100,
        unit="%",
    )
    measured.goal(
        "median delay, text, no-op and identical-call families",
        statistics.median(plain),
        most=5,
        unit="steps",
    )
    measured.goal("median delay, all incidents", statistics.median(delays), most=10, unit="steps")
    measured.goal("false alarms before the onset", sum(each.early for each in stuck), most=0, unit="cases")
    measured.goal("look-alikes halted", sum(each.hard is not None for each in healthy), most=0, unit="cases")
    strict = [each for each in healthy if not each.case.nudge_allowed]
    nudged = sum(each.soft is not None for each in strict)
    measured.goal(
        "look-alikes nudged, but error bursts of four", 100 * nudged / len(strict), most=2, unit="%"
    )
    apart, count = _pairs_told_apart(ours["pairs"])
    measured.goal("pairs told apart", apart, least=count, unit="pairs")
    if data is not None:
        found = list(runs(data))
        said = real_part(measured, found, settings)
        well = [run for run in found if run.label == "healthy"]
        sets["grafts"] = [case for run in well[:GRAFTED_RUNS] for case in grafts(run, seed)]
        ours["grafts"] = [judged(case, settings) for case in sets["grafts"]]
        grafted = ours["grafts"]
        measured.lines += ["", *incident_table(grafted)]
        measured.goal(
            "grafted loops caught",
            100 * sum(s.soft is not None for s in grafted) / len(grafted),
            least=100,
            unit="%",
        )
        for label in ("stuck", "healthy"):
            ours[f"real, {label}"] = [each for run, each in said if run.label == label]
            sets[f"real, {label}"] = [each.case for each in ours[f"real, {label}"]]
    measured.lines += [
        "",
        f"Tokens behind the hard finding, which a stop there saves: {100 * after / total:.0f} % of those spent in loops of {LOOP_STEPS} steps.",
    ]
    costs = cost(settings)
    (short, before), (long, behind) = costs.items()
    report(
        f"detection: a step behind {short:,} steps", before, "ms", note="processor time, medians of rounds"
    )
    report(
        f"detection: a step behind {long:,} steps",
        behind,
        "ms",
        goal=0.3,
        note="processor time, medians of rounds",
    )
    cheapest, dearest = statistics.median(before), statistics.median(behind)
    measured.goal(f"cost of a step behind {long:,} steps", round(dearest, 4), most=0.3, unit="ms")
    measured.goal(
        f"ratio of {long:,} to {short:,} steps of history",
        round(statistics.median(map(truediv, behind, before)), 3),
        most=1.2,
        unit="x",
    )
    measured.lines += [
        "",
        f"A step costs {cheapest:.3f} ms behind {short:,} steps of history and {dearest:.3f} ms behind {long:,} (processor time, median).",
    ]
    if peers:
        peer_part(measured, sets, ours, install)
    return measured


def written(page: Path, lines: Sequence[str], data: str | None) -> None:
    """Put the tables into their section of the page."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    if not rest or not tail:
        raise SystemExit(f"{page} has no section between {BEGIN!r} and {END!r}")
    python = ".".join(map(str, sys.version_info[:3]))
    about = f"Run of {datetime.now(UTC):%Y-%m-%d}, Python {python}, preset `hardened`{', with real runs' if data else ''}."
    page.write_text(f"{head}{BEGIN}\n\n{about}\n\n" + "\n".join(lines) + f"\n\n{END}{tail}", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Measure, print, hold against the goals."""
    parser = argparse.ArgumentParser(prog="make bench-detection", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", help="trajectories of real runs, labelled")
    parser.add_argument(
        "--peers",
        choices=("install", "present", "none"),
        default="present",
        help="published packages (default: present)",
    )
    parser.add_argument("--preset", default="hardened")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--page", action="store_true", help=f"also write the tables into {PAGE.relative_to(TOP)}"
    )
    given = parser.parse_args(arguments)
    install: Install = "missing" if given.peers == "install" else "never"
    measured = measure(
        given.data, install, settings_of(given.preset, {}), seed=given.seed, peers=given.peers != "none"
    )
    sys.stdout.write("\n" + "\n".join(measured.lines) + "\n\n")
    if given.page:
        written(PAGE, measured.lines, given.data)
    for each in measured.missed:
        sys.stdout.write(f"missed: {each}\n")
    sys.stdout.write("all goals met\n" if not measured.missed else "")
    return 1 if measured.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
