"""Frames of the golden corpus with bytes changed at random, against a real server."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from typing import Any

import anyio
import pytest

from loopd.core.access import Answer, Caller
from loopd_protocol.commands import Command
from loopd_protocol.errors import ERRORS
from tests.control_stage import Stage, dialled, serving
from tests.golden.write import ROOT

pytestmark = pytest.mark.anyio
PIECES = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\",
    b"\x00",
    b"\xff",
    b"1e999",
    b"-",
    b"null",
    b"\n",
    b" ",
)
MARK = b'{"t":"ping","id":"mark"}\n'


class Agreeable(Stage):
    """Whatever decodes is carried out."""

    async def dispatch(self, command: Command, caller: Caller, **_: Any) -> Answer:
        return Answer(seq=self.bus.head, result={"sid": "ses_a", "t": command.type})

    async def snapshot(self, selector: Any) -> tuple[int, list[dict[str, Any]]]:
        return self.bus.head, []


def corpus() -> list[bytes]:
    newest = max(ROOT.iterdir())
    frames = (newest / "client.ndjson").read_bytes().splitlines()
    bodies = (newest / "commands.ndjson").read_bytes().splitlines()
    return frames + [b'{"t":"cmd","id":"%d","c":%b}' % (n, body) for n, body in enumerate(bodies)]


def mutated(line: bytes, chance: random.Random) -> bytes:
    data = bytearray(line)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at:at] = chance.choice(PIECES)
            case 1:
                del data[at : at + chance.randint(1, 8)]
            case 2 if at < len(data):
                data[at] = chance.randrange(256)
            case _:
                data[at:at] = data[chance.randrange(len(data) + 1) :][: chance.randint(1, 20)]
    return bytes(data)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_mutated_frames_are_answered_in_words_and_never_by_silence(
    seed: int, caplog: pytest.LogCaptureFixture
):
    chance, lines = random.Random(seed), corpus()
    rounds, codes = (150 if seed == 1 else 4_000), set()
    with caplog.at_level(logging.ERROR):
        async with serving(Agreeable()) as (server, _, path):
            for _ in range(rounds):
                async with dialled(path) as wire:
                    await wire.hello()
                    sent = [
                        mutated(chance.choice(lines), chance) + b"\n" for _ in range(chance.randint(1, 12))
                    ]
                    with suppress(anyio.BrokenResourceError):
                        await wire.send(*sent, MARK)
                    said = []
                    # Either the mark is answered, or the server says goodbye.
                    while not said or not (said[-1].get("id") == "mark" or said[-1]["t"] == "bye"):
                        said.append(await wire.read())
                    codes |= {frame["code"] for frame in said if frame["t"] == "err"}
            async with dialled(path) as wire:
                await wire.hello()
                assert (await wire.ask("1", {"t": "daemon.status"}))["t"] == "ok"
            with anyio.fail_after(5):
                while server.connections > 0:
                    await anyio.lowlevel.checkpoint()
    assert {"bad_frame", "unknown_field", "invalid", "unknown_type"} <= codes <= set(ERRORS)
    assert [record.getMessage() for record in caplog.records] == []
