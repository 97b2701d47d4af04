"""The main job on real input: a real model degenerates, is caught, suspended, killed and brought back.

    python -m loopd.testing.demo_real                # `make demo-real` runs this
    python -m loopd.testing.demo_real --agent pi     # another real agent; `none` for none

A small real model (`loopd.testing.realmodel`) is served on loopback, and a real daemon hosts a `chat`
session with a goal on it, then a real coding agent (`loopd.testing.realagents`) with a goal that it
cannot reach. A relay counts the requests that reach the model, so that "no further request" is not
loopd's word about itself. The exit code is 1 when a promise was not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from loopd.client import CallFailed
from loopd.demo import live_model
from loopd.demo.stage import Stage, StoryFailed, check, describe, one_line
from loopd.testing import agent_story, realagents
from loopd.testing.realmodel import FOLDER, RealModel, prepare, serving

MESSAGE = "Stop repeating yourself. Which file did you change last?"
TEMPERATURE_MILLI = 200
STORY_S = 600.0
_REQUEST = b"POST /v1/chat/completions "


class Relay:
    """Passes bytes on to the model's server and counts the requests among them."""

    def __init__(self, model: RealModel) -> None:
        address = model.url.partition("://")[2].partition("/")[0]
        host, _, port = address.rpartition(":")
        self._upstream = (host, int(port))
        self.requests = 0
        self.url = ""

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen on a free loopback port until cancelled."""
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
            self.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
            task_status.started()
            await listener.serve(self._pass_on)

    async def _pass_on(self, client: anyio.abc.SocketStream) -> None:
        host, port = self._upstream
        async with client, await anyio.connect_tcp(host, port) as server, anyio.create_task_group() as both:

            async def pump(source: anyio.abc.SocketStream, target: anyio.abc.SocketStream) -> None:
                gone = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
                with contextlib.suppress(*gone):
                    while True:
                        data = await source.receive()
                        if source is client:
                            self.requests += data.count(_REQUEST)
                        await target.send(data)
                both.cancel_scope.cancel()

            both.start_soon(pump, client, server)
            both.start_soon(pump, server, client)


def story(stage: Stage, relay: Relay, model: RealModel) -> None:
    """Tell it and check it.

    Raises:
        StoryFailed: a promise was not kept.
    """
    live_model.play(
        stage,
        base_url=relay.url,
        model=model.model,
        api_key_env=None,
        temperature_milli=TEMPERATURE_MILLI,
    )
    turns = stage.ask("session.get")["turns"]
    check(
        relay.requests == turns, f"the model got one request for each of {turns} turns, not {relay.requests}"
    )
    stage.say(f"   requests seen by a relay before the model: {relay.requests}", "good")

    stage.chapter("suspend it, kill -9 the daemon, start it again")
    stage.command("loopctl suspend live --reason 'looking into it'")
    proof = stage.client.ask({"t": "suspend", "sid": stage.sid, "reason": "looking into it"})["seq"]
    stage.say(f"   suspended; durable at seq {proof}")
    before = _standing(stage)
    pid = stage.kill_and_restart()
    after = _standing(stage)
    stage.say(f"   kill -9 {pid}; started again", "bad")
    check(after == before, f"holds and deadlines survive: {before} became {after}")
    check({"UserSuspend", "Degeneration"} <= after.keys(), f"both holds stand; there are {sorted(after)}")
    stage.say(f"   still closed by {' and '.join(after)}, with the same deadlines", "good")
    stage.command(f"loopctl verify live --suspended-since {proof}")
    checked = stage.ask("verify", suspended_since=proof)
    check(checked["ok"], f"no turn started since the suspension: {checked}")
    stage.say("   proven on the journal: no turn started since", "good")
    check(relay.requests == turns, "a suspension, a crash and a restart ask the model nothing")

    stage.chapter("a person writes, and the model answers")
    stage.command(f"loopctl send live '{MESSAGE}'")
    envelope = stage.ask("send", text=MESSAGE)["id"]

    def answered(seen: list[dict[str, Any]]) -> bool:
        mine = {e["b"]["n"] for e in seen if envelope in e["b"].get("envelopes", ())}
        return any(e["k"] == "turn.completed" and e["b"]["n"] in mine for e in seen)

    stage.expect("the message is answered", describe, answered)
    stage.ask("suspend", mode="interrupt", reason="the demonstration is over")
    check(stage.client.call({"t": "verify"})["ok"], "the whole journal verifies")
    stage.say(f"   The loop cost {turns} turns. One that nobody caught ran for 1,395.", "good")


def _standing(stage: Stage) -> dict[str, int | None]:
    return {hold["kind"]: hold.get("until_ms") for hold in stage.ask("why")["holds"]}


def agent_for(name: str | None) -> str | None:
    """The agent that can be run, installed if it has to be; None, with the reason on stderr, when it cannot."""
    if name is None:
        return None
    try:
        launchers = realagents.install([name], say=lambda text: print(text, file=sys.stderr, flush=True))
    except realagents.AgentMissing as error:
        print(f"demo-real: without a real agent: {error}", file=sys.stderr)
        return None
    # The daemon of the stage inherits it, and finds the agent there.
    os.environ["PATH"] = f"{launchers}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return name


async def play(folder: Path, *, threads: int, colours: bool, agent: str | None = None) -> None:
    """Serve the model, tell the story, leave nothing running.

    Raises:
        StoryFailed: a promise was not kept.
    """
    agent = await anyio.to_thread.run_sync(agent_for, agent)
    python = await anyio.to_thread.run_sync(
        prepare, folder, lambda text: print(text, file=sys.stderr, flush=True)
    )

    def on_stage(relay: Relay, model: RealModel) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="loopd-demo-") as top,
            Stage(Path(top), colours=colours, limit_s=STORY_S) as stage,
        ):
            story(stage, relay, model)
            if agent is not None:
                agent_story.play(stage, agent=agent, relay=relay, model=model.model)
            stage.say()
            stage.say(f"All of it happened, in {stage.elapsed_s():.1f} s.", "good")

    async with serving(python, threads=threads) as model, anyio.create_task_group() as tasks:
        relay = Relay(model)
        await tasks.start(relay.serve)
        try:
            await anyio.to_thread.run_sync(on_stage, relay, model)
        finally:
            tasks.cancel_scope.cancel()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(
        prog="python -m loopd.testing.demo_real",
        description="A real small model degenerates; loopd catches it. Installs the model first (220 MB).",
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where the model's environment is or goes"
    )
    # llama.cpp's threads spin while they wait for each other: with all cores, any other load stalls them.
    threads = max(1, (os.cpu_count() or 2) // 2)
    parser.add_argument(
        "--threads", type=int, default=threads, help=f"of the model (default here: {threads})"
    )
    parser.add_argument(
        "--agent",
        default="goose",
        choices=(*realagents.AGENTS, "none"),
        help="the real agent that follows (default: goose)",
    )
    options = parser.parse_args(argv)
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    failed: list[str] = []

    async def guarded() -> None:
        try:
            await play(
                options.folder,
                threads=options.threads,
                colours=colours,
                agent=None if options.agent == "none" else options.agent,
            )
        except* (StoryFailed, CallFailed) as group:
            failed.extend(one_line(str(error), 400) for error in group.exceptions)

    anyio.run(guarded)
    for promise in failed:
        print(f"demo-real: {promise}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
