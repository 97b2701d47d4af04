"""The fault-injection matrix: `python -m tests.faults` (or `make crash-matrix N=… SEED=…`).

Real daemons on real files are broken in every way of `plan.py`, at seeded moments, and each time what is
left is examined: chains, invariants I1 to I9, refold = projections, all that a client saw acknowledged,
and the file of a test tool that shows whether an effect ran twice. Ends with a table and a JSON file;
exit code 1 when a promise was broken.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec

from loopd.testing.endpoint import Endpoint
from tests.faults import plan
from tests.faults.lane import Lane, Result

KILLS = frozenset({"point", "moment"})


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("-n", "--number", type=int, default=100, help="faults to try")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=2, help="data folders that are broken at the same time")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help="where data folders live; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="write the report here as JSON")
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
    async with Endpoint() as endpoint:
        lane.endpoint = endpoint
        try:
            for number, fault in chosen(options):
                if number % options.lanes != options.lane:
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
    lanes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.faults", *words, "--root", str(root), "--lane", str(lane)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        for lane in range(options.lanes)
    ]
    results: list[Result] = []
    try:
        for result in _read(lanes):
            results.append(result)
            _progress(result, len(results), options.number)
    finally:
        for lane in lanes:
            if lane.poll() is None:
                lane.terminate()
        codes = [lane.wait() for lane in lanes]
    report = summary(results, seed=options.seed, seconds=time.monotonic() - began, asked=options.number)
    if any(codes):
        report["broken"].append({"what": f"a lane ended with {codes}", "wrong": ["see above"]})
    print(table(report))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    if report["broken"]:
        print(f"broken promises; data folders are kept in {root / 'broken'}")
        return 1
    return 0


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
        print(f"{result.number:5d} {result.what}: {result.wrong[0]}", flush=True)
    elif os.environ.get("LOOPD_FAULTS_VERBOSE"):
        print(f"{result.number:5d} {result.what}: {result.seconds} s, reached {result.reached}", flush=True)
    elif count % 25 == 0:
        print(f"{count}/{total} faults, nothing lost so far", flush=True)


def summary(results: list[Result], *, seed: int, seconds: float, asked: int) -> dict[str, Any]:
    """The report."""
    families: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        row = families[result.family if result.family != "damage" else result.what]
        row["tried"] += 1
        row["reached"] += result.reached
        row["survived"] += not result.wrong
        row["lost"] += len(result.found.lost)
        row["doubled"] += len(result.found.doubled)
        row["unreported"] += len(result.found.unreported) + len(result.found.unrecorded)
        row["findings"] += len(result.found.findings)
        for word in filter(None, result.word.split(",")):
            row[word] += 1
    points = Counter(r.what.removeprefix("point ") for r in results if r.family == "point" and r.reached)
    return {
        "seed": seed,
        "asked": asked,
        "faults": len(results),
        "kills": sum(r.family in KILLS for r in results),
        "kills_reached": sum(r.family in KILLS and r.reached for r in results),
        "seconds": round(seconds, 1),
        "events_examined": sum(r.found.events for r in results),
        "acknowledged_checked": sum(r.found.acknowledged for r in results),
        "effects_checked": sum(r.found.effects for r in results),
        "uncertain_reported": sum(r.found.uncertain for r in results),
        "lost": sum(len(r.found.lost) for r in results),
        "doubled": sum(len(r.found.doubled) for r in results),
        "families": {name: dict(row) for name, row in sorted(families.items())},
        "points": dict(sorted(points.items())),
        "broken": [{"number": r.number, "what": r.what, "wrong": r.wrong} for r in results if r.wrong],
    }


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    head = f"{'fault':22}{'tried':>7}{'reached':>9}{'survived':>10}{'lost':>6}{'twice':>7}{'unreported':>12}  copies"
    lines = [head]
    for name, row in report["families"].items():
        words = ", ".join(
            f"{row[word]} {word}"
            for word in ("harmless", "prefix", "found", "refused", "silent")
            if row.get(word)
        )
        lines.append(
            f"{name:22}{row['tried']:7}{row['reached']:9}{row['survived']:10}{row['lost']:6}{row['doubled']:7}"
            f"{row['unreported']:12}  {words}"
        )
    lines.append(
        f"{report['faults']} faults ({report['kills']} kill -9, {report['kills_reached']} where they were aimed) "
        f"in {report['seconds']} s with seed {report['seed']}: {report['events_examined']} events examined, "
        f"{report['acknowledged_checked']} acknowledgements and {report['effects_checked']} effects checked, "
        f"{report['uncertain_reported']} uncertain effects reported, {report['lost']} lost, {report['doubled']} twice, "
        f"{len(report['points'])} different points."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
