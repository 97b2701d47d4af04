"""CPU of the operator's commands beside an interpreter that does nothing.

Alternating runs against a real daemon with 20 sessions; CPU of the child alone (user + system), so
foreign load moves it little.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

from tests.bench.figures import report
from tests.e2e.harness import BIN, FILLER, House

RUNS = 21


def cpu_ms(command: list[str], env: dict[str, str]) -> float:
    """CPU of one child process in ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Measure and report."""
    house = House()
    try:
        daemon = house.daemon().start()
        script = house.script([FILLER])
        for _ in range(20):
            daemon.scripted(script)
        # Compiled modules are on disk in an installation; make sure they are here as well.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["LOOPD_SOCKET"] = daemon.socket
        loopctl = str(BIN / "loopctl")
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "loopctl status": [loopctl, "status"],
            "loopctl ps": [loopctl, "ps"],
            "loopctl why": [loopctl, "why", "s1"],
        }
        for command in commands.values():
            subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True, timeout=60)
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(RUNS):
            for name, command in commands.items():
                taken[name].append(cpu_ms(command, env))
    finally:
        house.close()
    plain = taken.pop("python -c pass")
    report("cli: CPU of python -c pass", plain, "ms", note="the floor")
    for name, runs in taken.items():
        report(f"cli: CPU of {name}", runs, "ms", goal=60, note="20 sessions")
        over = [run - floor for run, floor in zip(runs, plain, strict=True)]
        report(f"cli: CPU of {name} above the floor", over, "ms", goal=50)


if __name__ == "__main__":
    main()
