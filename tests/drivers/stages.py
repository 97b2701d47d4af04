"""The two drivers on the stage of the conformance suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loopd.drivers.chat import ChatDriver
from loopd.drivers.model import Limits
from loopd.drivers.retry import RetryPolicy
from loopd.drivers.scripted import ScriptedDriver
from loopd.testing.endpoint import Call, Endpoint, Reply, ask, fail, say
from loopd_protocol.commands import ChatSpec, ScriptedSpec

HEAD = {"t": "trajectory", "v": 1, "id": "x"}


def write_script(path: Path, *steps: dict[str, Any]) -> str:
    """A trajectory file with these steps, numbered."""
    lines = [HEAD, *({"t": "step", "n": n, **step} for n, step in enumerate(steps, 1))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


class ScriptedStage:
    sends, asks = False, True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def _driver(self, *steps: dict[str, Any], delay_ms: int = 0) -> ScriptedDriver:
        self._count += 1
        path = write_script(self._folder / f"{self._count}.jsonl", *steps)
        return ScriptedDriver(ScriptedSpec(script=path, delay_ms=delay_ms))

    async def speaking(self, text: str) -> ScriptedDriver:
        return self._driver({"text": text})

    async def calling(self, name: str, args: dict[str, Any]) -> ScriptedDriver:
        return self._driver({"calls": [{"id": "c1", "name": name, "args": args}]}, {"text": "done"})

    async def hanging(self, text: str) -> ScriptedDriver:
        return self._driver({"text": text}, delay_ms=3_600_000)

    async def failing(self) -> list[ScriptedDriver]:
        # Over a megabyte, so that it is read again for each turn, and gone or changed by then.
        gone = self._driver(*({"text": "x" * 600_000} for _ in range(3)))
        changed = self._driver(*({"text": "y" * 600_000} for _ in range(3)))
        self._spoil(gone._spec.script, changed._spec.script)
        return [gone, changed]

    def _spoil(self, gone: str, changed: str) -> None:
        Path(gone).unlink()
        with open(changed, "a") as stream:
            stream.write("\n")

    def received(self) -> list[bytes]:
        return []

    def left_over(self) -> list[str]:
        return []


class ChatStage:
    sends, asks = True, True

    def __init__(self, endpoint: Endpoint, workspace: Path, *, api: Any = "chat-completions") -> None:
        self._api = api
        self._endpoint = endpoint
        self._workspace = workspace

    def _driver(self, *script: Reply, **more: Any) -> ChatDriver:
        replies = list(script)
        start = len(self._endpoint.requests)
        self._endpoint.script = lambda r: replies[min(r.number - start, len(replies)) - 1]
        spec = ChatSpec(base_url=self._endpoint.base_url, model="test", api=self._api)
        return ChatDriver("ses_suite", spec, str(self._workspace), retry=RetryPolicy(retries=0), **more)

    async def speaking(self, text: str) -> ChatDriver:
        return self._driver(say(text))

    async def calling(self, name: str, args: dict[str, Any]) -> ChatDriver:
        return self._driver(ask(Call(name, args)), say("done"))

    async def hanging(self, text: str) -> ChatDriver:
        return self._driver(say(text, hang_after=5))

    async def failing(self) -> list[ChatDriver]:
        base = self._endpoint.base_url
        faults = {
            "429": fail(429, retry_after="3600"),
            "401": fail(401),
            "404": fail(404),
            "500": fail(500),
            "529": fail(529),
            "302": fail(302),
            "break": say("some text", break_after=2),
            "break-first": say("some text", break_after=0),
            "error": say("", error={"message": "Overloaded"}),
            "malformed": Reply(raw=b"data: {nope\n\n"),
            "html": Reply(raw=b"<html>hello</html>"),
            "no-end": say("some text", done=False, raw=b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'),
            "nothing": Reply(output_tokens=0),
            "silent": say("x", hang_after=0),
        }
        self._endpoint.script = lambda r: faults[r.json["model"]]
        quick = Limits(first_s=0.3, silence_s=0.3, connect_s=0.3)
        drivers = [
            ChatDriver(
                "ses_suite",
                ChatSpec(base_url=base, model=name, api=self._api),
                str(self._workspace),
                retry=RetryPolicy(retries=0),
                limits=quick,
            )
            for name in faults
        ]
        nobody = [ChatSpec(base_url="http://127.0.0.1:9/v1", model="x", api=self._api)]
        return drivers + [
            ChatDriver("ses_suite", spec, None, retry=RetryPolicy(retries=0), limits=quick) for spec in nobody
        ]

    def received(self) -> list[bytes]:
        return [request.body for request in self._endpoint.requests]

    def left_over(self) -> list[str]:
        return ["a stream is open"] * self._endpoint.open_streams
