"""Whatever an agent says, in whatever order: one end, each call in one step, each intent with one outcome."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.conversation import Directive, Message, TurnEnd
from loopd.drivers.acp.agent import Agent
from loopd.drivers.acp.connection import AgentGone, Connection
from loopd.drivers.acp.kinds import AgentKind, Capabilities, Patience
from loopd.drivers.acp.process import AgentProcess
from loopd.drivers.acp.turn import HostedTurn
from loopd.drivers.acp.usage import UsageMeter
from loopd.testing.driver_suite import RecordingHost

pytestmark = pytest.mark.anyio
KIND = AgentKind(
    name="any",
    command=("any",),
    capabilities=Capabilities(usage_scope="turn", late_ms=0),
    patience=Patience(silence_s=5, grace_s=1),
)
IDS = st.sampled_from(["a", "b", "c"])
SAID = st.one_of(
    st.fixed_dictionaries({"sessionUpdate": st.just("agent_message_chunk"), "content": st.fixed_dictionaries(
        {"type": st.just("text"), "text": st.sampled_from(["x", "yes. ", ""])})}),
    st.fixed_dictionaries({"sessionUpdate": st.just("agent_thought_chunk"), "content": st.just({"text": "hm"})}),
    st.fixed_dictionaries(
        {"sessionUpdate": st.sampled_from(["tool_call", "tool_call_update"]), "toolCallId": IDS},
        optional={"status": st.sampled_from(["pending", "in_progress", "completed", "failed", "odd"]),
                  "title": st.sampled_from(["shell", "Read a file"]), "kind": st.sampled_from(["execute", "read"]),
                  "rawInput": st.just({"command": "ls"}), "rawOutput": st.just("out")}),
    st.fixed_dictionaries({"sessionUpdate": st.just("plan"), "entries": st.just([])}),
)  # fmt: skip
ACTION = st.one_of(
    st.tuples(st.just("update"), SAID),
    st.tuples(st.just("update"), SAID),
    st.tuples(st.just("ask"), IDS),
    st.tuples(st.just("raw"), st.sampled_from(["hello", "{", "[]", '{"id":77,"result":{}}'])),
)
ENDING = st.sampled_from(["end_turn", "cancelled", "refusal", "error", "death", "usage"])
DIRECTIVES = st.lists(
    st.sampled_from(["go", "go", "stop", "idle", "note", "withhold"]), max_size=4
)  # fmt: skip
OPTIONS = [{"optionId": "n", "kind": "reject_once"}, {"optionId": "y", "kind": "allow_once"}]


class AnyAgent:
    """An agent in memory: it plays its actions for each prompt and then ends as it is told."""

    def __init__(self, prompts: list[tuple[list[tuple[str, Any]], str]]) -> None:
        self.prompts = prompts
        self.began = 0
        self.open()

    def open(self) -> None:
        self.connection = Connection(self._heard, lambda: None, lambda: None)

    def _heard(self, data: bytes) -> None:
        message = json.loads(data)
        if message.get("method") == "session/prompt":
            self._play(message["id"])
        elif message.get("method") == "session/cancel":
            self._say({"id": self.number, "result": {"stopReason": "cancelled"}})

    def _play(self, number: int) -> None:
        self.number = number
        actions, ending = self.prompts[min(self.began, len(self.prompts) - 1)]
        self.began += 1
        for place, (what, value) in enumerate(actions):
            match what:
                case "update":
                    self._say({"method": "session/update", "params": {"sessionId": "s", "update": value}})
                case "ask":
                    call = {"toolCallId": value, "title": "May I?"}
                    params = {"toolCall": call, "options": OPTIONS}
                    self._say({"id": 1_000 + place, "method": "session/request_permission", "params": params})
                case _:
                    self.connection.feed(value.encode() + b"\n")
        match ending:
            case "death":
                self.connection.end(AgentGone("agent_died", "it died"))
            case "error":
                self._say({"id": number, "error": {"code": -1, "message": "429"}})
            case "usage":
                usage = {"inputTokens": 5, "outputTokens": 2}
                self._say({"id": number, "result": {"stopReason": "end_turn", "usage": usage}})
            case _:
                self._say({"id": number, "result": {"stopReason": ending}})

    def _say(self, message: dict[str, Any]) -> None:
        self.connection.feed(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def directive(word: str) -> Directive:
    note = Message(ss=1, role="user", source="system", text="think again")
    return {
        "go": Directive(),
        "stop": Directive(stop=True),
        "idle": Directive(idle=True),
        "note": Directive(messages=(note,)),
        "withhold": Directive(messages=(note,), tools_withheld=True),
    }[word]


@given(
    st.lists(st.tuples(st.lists(ACTION, max_size=10), ENDING), min_size=1, max_size=3),
    DIRECTIVES,
    st.booleans(),
    st.booleans(),
)
async def test_any_agent_leaves_one_end_whole_steps_and_settled_effects(
    prompts: list[tuple[list[tuple[str, Any]], str]], words: list[str], withheld: bool, forbidden: bool
) -> None:
    fake = AnyAgent(prompts)
    stops = [*words, "stop"]  # a fourth prompt and more would only say the same again
    host = RecordingHost(
        directives=[directive(word) for word in stops] + [Directive(stop=True)] * 40,
        forbid=frozenset({"shell"}) if forbidden else frozenset(),
    )

    async def opened() -> Agent:
        if fake.connection.gone is not None:
            fake.open()
        process = cast("AgentProcess", type("P", (), {"connection": fake.connection})())
        return Agent(process, "s", {}, resumed=True)

    async def retired() -> None:
        fake.connection.end(AgentGone("agent_ended", "ended"))

    turn = HostedTurn(
        agent=opened,
        retire=retired,
        host=host,
        kind=KIND,
        sensor=None,
        meter=UsageMeter("turn"),
        silence_s=5,
        preface=[],
    )
    with anyio.fail_after(20):
        end = await turn.run("go on", withheld=withheld)
    assert isinstance(end, TurnEnd)
    assert end.outcome in {"model_error", "failed"} or not end.error
    calls = [call.id for step in host.steps for call in step.calls]
    assert not [call for call, times in Counter(calls).items() if times > 1], "a call is in two steps"
    for step in host.steps:
        assert step.usage is not None
        if step.tools_withheld:
            assert all(call.error_class == "denied" for call in step.calls)
    intents = [call for call, what in host.effects if what == "intent"]
    outcomes = [call for call, what in host.effects if what != "intent"]
    assert sorted(intents) == sorted(outcomes)
    assert all(host.effects.index((call, "intent")) < next(
        place for place, (name, what) in enumerate(host.effects) if name == call and what != "intent"
    ) for call in intents)  # fmt: skip
    if withheld and prompts[0][0] and any(w == "update" and "toolCallId" in v for w, v in prompts[0][0]):
        assert not intents
