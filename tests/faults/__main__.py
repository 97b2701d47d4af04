"""The fault-injection matrix: `python -m tests.faults` (or `make crash-matrix N=… SEED=…`).

Real daemons on real files are broken in every way of `plan.py`, at seeded moments, and each time what is
left is examined: chains, invariants I1 to I9, refold = projections, all that a client saw acknowledged,
and the file of a test tool that shows whether an effect ran twice. Ends with a table (`-o json`: with JSON);
exit code 1 when a promise was broken.

With `--log FILE` each fault leaves a line there as soon as it was examined, and a run that is begun again with
the same file and seed goes on behind the last one.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec

from loopd.testing.endpoint import Endpoint
from tests.faults import plan
from tests.faults.judgement import WORDS
from tests.faults.lane import Lane, Result


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("-n", "--number", type=int, default=100, help="faults to try")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=2, help="data folders that are broken at the same time")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--done", default="", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help="where data folders live; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="write the report here as JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="of the report")
    parser.add_argument("--log", type=Path, help="keep results here line by line, and go on where it ends")
    parser.add_argument("--kills", action="store_true", help="only kill -9, at points and at random moments")
    parser.add_argument(
        "--family", action="append", choices=plan.FAMILIES, help="only these; may be repeated"
    )
    parser.add_argument("--minutes", type=float, help="begin no further fault after this time")
    parser.add_argument("--keep", action="store_true", help="keep all data folders")
    return parser


def chosen(options: argparse.Namespace) -> Iterator[tuple[int, plan.Fault]]:
    """The faults of this run with their numbers."""
    number, round_ = 0, options.seed * 1_000
    while number < options.number:
        for fault in plan.faults(round_):
            if options.family and fault.family not in options.family:
                continue
            if options.kills and fault.family not in plan.KILLS:
                continue
            if number >= options.number:
                return
            number += 1
            yield number, fault
        round_ += 1


async def work(options: argparse.Namespace) -> None:
    """One lane: a line of JSON for each fault."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the model's peers die all the time
    ends = None if options.minutes is None else time.monotonic() + options.minutes * 60
    lane = Lane(options.seed, f"l{options.lane}", options.root, keep=options.keep)
    done = _numbers(options.done)
    async with Endpoint() as endpoint:
        lane.endpoint = endpoint
        try:
            for number, fault in chosen(options):
                if number % options.lanes != options.lane or number in done:
                    continue
                if ends is not None and time.monotonic() > ends:
                    break
                result = await lane.run(number, fault)
                sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
                sys.stdout.flush()
        finally:
            await lane.aclose()


def main(argv: list[str] | None = None) -> int:
    """Run the matrix; returns the exit code."""
    options = arguments().parse_args(argv)
    if options.lane is not None:
        anyio.run(work, options)
        return 0
    own = (
        tempfile.TemporaryDirectory(prefix="lf", ignore_cleanup_errors=True, delete=False)
        if sys.version_info >= (3, 12)
        else None
    )
    root = options.root or Path(own.name if own is not None else tempfile.mkdtemp(prefix="lf"))
    root.mkdir(parents=True, exist_ok=True)
    words = list(sys.argv[1:] if argv is None else argv)
    began = time.monotonic()
    results = _before(options)
    done = ",".join(str(result.number) for result in results)
    seed = f"seed {options.seed}" + (f", going on behind {len(results)} faults" if results else "")
    print(f"{options.number} faults, {seed}", file=sys.stderr, flush=True)
    lanes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.faults",
                *words,
                "--root",
                str(root),
                "--lane",
                str(lane),
                "--done",
                done,
            ],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        for lane in range(options.lanes)
    ]
    try:
        for result in _read(lanes):
            results.append(result)
            _keep(options.log, result)
            _progress(result, len(results), options.number)
    finally:
        for lane in lanes:
            if lane.poll() is None:
                lane.terminate()
        codes = [lane.wait() for lane in lanes]
    report = summary(results, seed=options.seed, seconds=time.monotonic() - began, asked=options.number)
    if any(codes):
        report["broken"].append({"what": f"a lane ended with {codes}", "wrong": ["see above"]})
    print(json.dumps(report, indent=1) if options.output == "json" else table(report))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    if report["broken"]:
        print(f"broken promises; data folders are kept in {root / 'broken'}", file=sys.stderr)
        return 1
    return 0


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.split(",") if part)


def _before(options: argparse.Namespace) -> list[Result]:
    """What an earlier run with the same log came to.

    Raises:
        SystemExit: it was another run.
    """
    if options.log is None or not options.log.exists():
        if options.log is not None:
            options.log.write_text(_heading(options))
        return []
    heading, _, rest = options.log.read_text().partition("\n")
    if heading + "\n" != _heading(options):
        raise SystemExit(f"{options.log}: {heading}; expected {_heading(options).strip()}, or another file")
    whole = rest[: rest.rfind("\n") + 1]
    return [msgspec.json.decode(line, type=Result) for line in whole.splitlines()]


def _heading(options: argparse.Namespace) -> str:
    families = "kills" if options.kills else ",".join(options.family or ["all"])
    return f"# seed {options.seed}, {families}, {options.lanes} lanes\n"


def _keep(log: Path | None, result: Result) -> None:
    if log is not None:
        with open(log, "ab") as out:
            out.write(msgspec.json.encode(result) + b"\n")


def _read(lanes: list[subprocess.Popen[bytes]]) -> Iterator[Result]:
    import selectors  # noqa: PLC0415

    selector = selectors.DefaultSelector()
    tails: dict[int, bytes] = {}
    for lane in lanes:
        assert lane.stdout is not None
        selector.register(lane.stdout, selectors.EVENT_READ)
        tails[lane.stdout.fileno()] = b""
    while selector.get_map():
        for key, _ in selector.select():
            data = os.read(key.fd, 1 << 20)
            if not data:
                selector.unregister(key.fileobj)
                continue
            *lines, tails[key.fd] = (tails[key.fd] + data).split(b"\n")
            yield from (msgspec.json.decode(line, type=Result) for line in lines)


def _progress(result: Result, count: int, total: int) -> None:
    if result.wrong:
        print(f"{result.number:5d} {result.what}: {result.wrong[0]}", file=sys.stderr, flush=True)
    elif os.environ.get("LOOPD_FAULTS_VERBOSE"):
        said = f"{result.number:5d} {result.what}: {result.seconds} s, reached {result.reached}"
        print(said, file=sys.stderr, flush=True)
    elif count % 25 == 0:
        print(f"{count}/{total} faults", file=sys.stderr, flush=True)


def summary(results: list[Result], *, seed: int, seconds: float, asked: int) -> dict[str, Any]:
    """The report."""
    return {
        "seed": seed,
        "asked": asked,
        "faults": len(results),
        "survived": sum(not r.wrong for r in results),
        "kills": sum(r.family in plan.KILLS for r in results),
        "kills_reached": sum(r.family in plan.KILLS and r.reached for r in results),
        "seconds": round(seconds, 1),
        "events_examined": sum(r.found.events for r in results),
        "acknowledged_checked": sum(r.found.acknowledged for r in results),
        "effects_checked": sum(r.found.effects for r in results),
        "uncertain_reported": sum(r.found.uncertain for r in results),
        "lost": sum(len(r.found.lost) for r in results),
        "doubled": sum(len(r.found.doubled) for r in results),
        "unreported": sum(len(r.found.unreported) + len(r.found.unrecorded) for r in results),
        "findings": sum(len(r.found.findings) for r in results),
        "kinds": _rows(results, _kind),
        "points": _rows([r for r in results if r.family == "point"], lambda r: r.what.removeprefix("point ")),
        "broken": [{"number": r.number, "what": r.what, "wrong": r.wrong} for r in results if r.wrong],
    }


def _kind(result: Result) -> str:
    """The kind of fault that a result is counted under: for points without the event that it was aimed at."""
    if result.family == "moment":
        return "kill -9 at a random moment"
    if result.family == "point":
        return f"kill -9 at {result.what.removeprefix('point ').partition('/')[0]}"
    if result.family == "fails":
        return f"fails: {result.what.removeprefix('fails ').partition('/')[0]}"
    return {"term": "SIGTERM under load", "stop": result.what.removeprefix("stop ")}.get(
        result.family, result.what
    )


def _rows(results: list[Result], name: Callable[[Result], str]) -> dict[str, dict[str, int]]:
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        row = rows[name(result)]
        row["tried"] += 1
        row["reached"] += result.reached
        row["survived"] += not result.wrong
        row["lost"] += len(result.found.lost)
        row["doubled"] += len(result.found.doubled)
        row["unreported"] += len(result.found.unreported) + len(result.found.unrecorded)
        row["findings"] += len(result.found.findings)
        for word in filter(None, result.word.split(",")):
            row[word] += 1
    return {key: dict(row) for key, row in sorted(rows.items())}


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    points = report["points"]
    lines = [*_lines("fault", report["kinds"]), ""]
    if points:
        lines += [*_lines("kill -9 at", points), ""]
    lines.append(
        f"seed {report['seed']}: {report['faults']} faults, {report['survived']} survived; {report['kills']} kill -9, "
        f"{report['kills_reached']} where they were aimed, at {len(points)} different points; {report['seconds']} s"
    )
    lines.append(
        f"{report['events_examined']} events examined; of {report['acknowledged_checked']} acknowledged facts "
        f"{report['lost']} lost; of {report['effects_checked']} effects {report['doubled']} twice, "
        f"{report['uncertain_reported']} uncertain and reported, {report['unreported']} not reported; "
        f"{report['findings']} findings of verification and audit"
    )
    return "\n".join(lines)


def _lines(title: str, rows: dict[str, dict[str, int]]) -> Iterator[str]:
    yield f"{title:34}{'tried':>7}{'reached':>9}{'survived':>10}{'lost':>6}{'twice':>7}{'unreported':>12}  copies"
    for name, row in rows.items():
        words = ", ".join(f"{row[word]} {word}" for word in WORDS if row.get(word))
        line = (
            f"{name:34}{row['tried']:7}{row['reached']:9}{row['survived']:10}{row['lost']:6}{row['doubled']:7}"
            f"{row['unreported']:12}  {words}"
        )
        yield line.rstrip()


if __name__ == "__main__":
    sys.exit(main())
