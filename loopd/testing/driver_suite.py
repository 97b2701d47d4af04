"""What every driver must do, as a suite that each of them runs.

Give it a `Stage` that makes drivers and says how they end; each `check_*` is one promise of the
port. The checks raise `AssertionError` and nothing else when a promise is broken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from loopd.core.compaction import Plan, applied
from loopd.core.conversation import (
    AgentReply,
    AgentRequest,
    Directive,
    Message,
    StepDone,
    TurnEnd,
    TurnRequest,
)
from loopd.engine.ports import Driver
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall
from loopd_protocol.sources import Trigger

WAIT_S = 20.0


class RecordingHost:
    """A host that keeps all that a driver tells it, and answers as it is told to.

    Attributes:
        log: names of the port's methods in the order of their calls.
        partial: streamed text of the running step.
        directives: what `step` answers, in order; behind them the plain one, which hands the step's
            own messages back like the engine does.
        replies: what `ask` answers, by name of the tool.
        forbid: tools whose intent is refused.
    """

    def __init__(
        self,
        *,
        directives: list[Directive] | None = None,
        replies: dict[str, AgentReply] | None = None,
        forbid: frozenset[str] = frozenset(),
        on_delta: Callable[[str], None] | None = None,
    ) -> None:
        self.log: list[str] = []
        self.deltas: list[str] = []
        self.partial = ""
        self.steps: list[StepDone] = []
        self.plans: list[Plan] = []
        self.retries: list[tuple[int, str, int]] = []
        self.effects: list[tuple[str, str]] = []
        self.asked: list[AgentRequest] = []
        self.frames: list[bytes] = []
        self.memory: dict[str, str] = {}
        self.spoke = anyio.Event()
        self.intended = anyio.Event()
        self._directives = list(directives or [])
        self._replies = replies or {}
        self._forbid = forbid
        self._on_delta = on_delta

    def delta(self, text: str) -> bool:
        """Keep streamed text."""
        self.log.append("delta")
        self.deltas.append(text)
        self.partial += text
        self.spoke.set()
        if self._on_delta is not None:
            self._on_delta(text)
        return True

    def frame(self, line: bytes) -> None:
        """Keep a frame."""
        self.frames.append(line)

    async def remember(self, key: str, value: str) -> None:
        """Keep a fact."""
        await anyio.lowlevel.checkpoint()
        self.memory[key] = value

    async def retrying(self, *, attempt: int, cause: str, delay_ms: int) -> None:
        """Keep a retry; the partial text of the failed attempt is forgotten."""
        await anyio.lowlevel.checkpoint()
        self.log.append("retrying")
        self.partial = ""
        self.retries.append((attempt, cause, delay_ms))

    async def afford(self) -> None:
        """There is always a budget left."""
        await anyio.lowlevel.checkpoint()

    async def permit(self, call: ToolCall) -> None:
        """Permit what is not in `forbid`."""
        await anyio.lowlevel.checkpoint()
        if call.name in self._forbid:
            raise Refused("forbidden", f"{call.name} must not run")

    async def intent(self, call: ToolCall) -> None:
        """Keep an intent."""
        await anyio.lowlevel.checkpoint()
        self.log.append("intent")
        if call.name in self._forbid:
            raise Refused("forbidden", f"{call.name} must not run")
        self.effects.append((call.id, "intent"))
        self.intended.set()

    async def outcome(self, call: ToolCall, outcome: str) -> None:
        """Keep an outcome."""
        await anyio.lowlevel.checkpoint()
        self.log.append("outcome")
        self.effects.append((call.id, outcome))

    async def ask(self, request: AgentRequest) -> AgentReply:
        """Answer from `replies`."""
        await anyio.lowlevel.checkpoint()
        self.log.append("ask")
        self.asked.append(request)
        return self._replies.get(request.name, AgentReply(ok=True, text="noted"))

    async def compacted(self, plan: Plan, before: Sequence[Message]) -> tuple[Message, ...]:
        """Keep a plan and carry it out."""
        await anyio.lowlevel.checkpoint()
        self.log.append("compacted")
        self.plans.append(plan)
        return applied(before, plan, 10_000 + len(self.plans))

    async def step(self, done: StepDone) -> Directive:
        """Keep a step."""
        await anyio.lowlevel.checkpoint()
        self.log.append("step")
        self.steps.append(done)
        self.partial = ""
        if self._directives:
            return self._directives.pop(0)
        return Directive(messages=messages_of(done, len(self.steps)))


def messages_of(done: StepDone, ss: int) -> tuple[Message, ...]:
    """The messages that a step becomes: the assistant's, then one for each result."""
    said = Message(ss=ss, role="assistant", source="model", text=done.text, calls=done.calls)
    results = (
        Message(ss=ss, role="tool", source="tool", text=call.result or "", call_id=call.id)
        for call in done.calls
    )
    return (said, *results)


def turn(
    text: str = "go on",
    *,
    n: int = 1,
    seen: int = 0,
    workspace: str | None = None,
    withheld: bool = False,
    before: tuple[Message, ...] = (),
) -> TurnRequest:
    """A turn with one human message."""
    asked = Message(ss=n, role="user", source="human", text=text)
    return TurnRequest(
        sid="ses_suite",
        n=n,
        trigger=Trigger.HUMAN,
        messages=(*before, asked),
        workspace=workspace,
        tools_withheld=withheld,
        turns_seen=seen,
    )


class Stage(Protocol):
    """What a kind of driver brings to the suite.

    Attributes:
        sends: its turns send model requests, so `render` has bytes to promise.
        asks: its agent's own tools go through the driver; those of a hosted agent have their own way in.
    """

    sends: bool
    asks: bool

    async def speaking(self, text: str) -> Driver:
        """A driver whose next turn is one step that says `text`."""

    async def calling(self, name: str, args: dict[str, Any]) -> Driver:
        """A driver whose next turn begins with a step that calls a tool, and then says something."""

    async def hanging(self, text: str) -> Driver:
        """A driver whose next turn streams some of `text` and then takes for ever."""

    async def failing(self) -> list[Driver]:
        """Drivers whose next turn meets a fault, one for each kind of fault."""

    def received(self) -> list[bytes]:
        """Bodies of all model requests so far."""

    def left_over(self) -> list[str]:
        """Connections and processes that are still there, described."""


async def check_a_turn_ends_once_with_its_text(stage: Stage) -> None:
    """One step, one end; the streamed text is the step's text."""
    driver, host = await stage.speaking("all of it is done"), RecordingHost()
    end = await _take(driver, turn(), host)
    assert end.outcome == "completed", end
    assert [step.text for step in host.steps] == ["all of it is done"], host.steps
    assert "".join(host.deltas) == "all of it is done", host.deltas
    assert host.log[-1] == "step", host.log


async def check_render_is_what_is_sent(stage: Stage) -> None:
    """The rendered bytes are the received bytes, and the step carries their digest."""
    driver, host = await stage.speaking("fine"), RecordingHost()
    request = turn("what now?")
    promised, again = driver.render(request), driver.render(request)
    assert promised == again, "render gave different bytes for the same request"
    before = len(stage.received())
    await _take(driver, request, host)
    sent = stage.received()[before:]
    if not stage.sends:
        assert promised is None, promised
        assert sent == []
        return
    assert promised is not None
    assert sent == [promised], (promised, sent)
    assert host.steps[0].request_sha256 == hashlib.sha256(promised).hexdigest(), host.steps[0]


async def check_own_tools_are_asked_of_the_host(stage: Stage) -> None:
    """A call of `report_phase` reaches the host and carries its answer as result."""
    if not stage.asks:
        return
    driver = await stage.calling("report_phase", {"name": "build"})
    host = RecordingHost(replies={"report_phase": AgentReply(ok=True, text="phase is build")})
    end = await _take(driver, turn(), host)
    assert end.outcome == "completed", end
    assert [(r.name, r.args) for r in host.asked] == [("report_phase", {"name": "build"})], host.asked
    call = host.steps[0].calls[0]
    assert (call.name, call.ok, call.result) == ("report_phase", True, "phase is build"), call


async def check_idle_ends_the_turn_after_its_result(stage: Stage) -> None:
    """`ends_turn` ends the turn right after the step that asked."""
    if not stage.asks:
        return
    driver = await stage.calling("request_idle", {"max_idle_duration_secs": 600, "reason": "nothing to do"})
    host = RecordingHost(replies={"request_idle": AgentReply(ok=True, text="idle", ends_turn=True)})
    end = await _take(driver, turn(), host)
    assert end.outcome == "idle", end
    assert len(host.steps) == 1, host.steps
    assert host.steps[0].calls[0].ok is True


async def check_a_refused_own_tool_goes_on(stage: Stage) -> None:
    """A refusal is the call's result; the turn goes on."""
    if not stage.asks:
        return
    driver = await stage.calling("request_idle", {"max_idle_duration_secs": 1, "reason": ""})
    host = RecordingHost(replies={"request_idle": AgentReply(ok=False, text="expected 60 to 86400")})
    end = await _take(driver, turn(), host)
    assert end.outcome == "completed", end
    call = host.steps[0].calls[0]
    assert (call.ok, call.result) == (False, "expected 60 to 86400"), call


async def check_stop_ends_the_turn_at_this_step(stage: Stage) -> None:
    """After `stop` nothing is sent and no further step comes."""
    driver = await stage.calling("report_phase", {"name": "x"})
    host = RecordingHost(directives=[Directive(stop=True)])
    before = len(stage.received())
    end = await _take(driver, turn(), host)
    assert end.outcome == "stopped_by_rule", end
    assert len(host.steps) == 1, host.steps
    assert len(stage.received()) - before <= 1, "a model request was sent after stop"


async def check_withheld_tools_do_nothing(stage: Stage) -> None:
    """A call made while tools are withheld is reported as denied and reaches nobody."""
    driver, host = await stage.calling("update_goal", {"status": "complete"}), RecordingHost()
    await _take(driver, turn(withheld=True), host)
    assert host.asked == [], host.asked
    step = host.steps[0]
    assert step.tools_withheld is True
    assert [(call.ok, call.error_class) for call in step.calls] == [(False, "denied")], step.calls


async def check_cancel_stops_at_once_and_leaves_nothing(stage: Stage) -> None:
    """Cancelled while it streams: the partial text is known, nothing runs on, and it propagates."""
    driver, host = await stage.hanging("partial answer that never ends"), RecordingHost()
    ended: list[TurnEnd] = []
    started = anyio.current_time()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            ended.append(await driver.take_turn(turn(), host))

        tasks.start_soon(run)
        with anyio.fail_after(WAIT_S):
            await host.spoke.wait()
        started = anyio.current_time()
        tasks.cancel_scope.cancel()
    assert anyio.current_time() - started < 2.0, "the driver did not stop at once"
    assert ended == [], ended
    assert host.partial and "partial answer that never ends".startswith(host.partial), host.partial  # noqa: PT018
    assert host.steps == [], host.steps
    await _nothing_left(stage)


async def check_faults_are_ends_not_exceptions(stage: Stage) -> None:
    """Whatever goes wrong outside, `take_turn` returns `model_error` or `failed` and says why."""
    for driver in await stage.failing():
        host = RecordingHost()
        end = await _take(driver, turn(), host)
        assert end.outcome in {"model_error", "failed"}, end
        assert end.cause, end
        assert end.error, end
        assert host.log.count("step") == 0, host.log
    await _nothing_left(stage)


async def check_a_driver_takes_many_turns(stage: Stage) -> None:
    """Turn after turn on one driver, and closing twice is fine."""
    driver = await stage.speaking("again")
    for n in range(1, 6):
        end = await _take(driver, turn(n=n, seen=n - 1), RecordingHost())
        assert end.outcome == "completed", end
    await driver.aclose()
    await driver.aclose()
    await _nothing_left(stage)


CHECKS: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    check_a_turn_ends_once_with_its_text,
    check_render_is_what_is_sent,
    check_own_tools_are_asked_of_the_host,
    check_idle_ends_the_turn_after_its_result,
    check_a_refused_own_tool_goes_on,
    check_stop_ends_the_turn_at_this_step,
    check_withheld_tools_do_nothing,
    check_cancel_stops_at_once_and_leaves_nothing,
    check_faults_are_ends_not_exceptions,
    check_a_driver_takes_many_turns,
)


async def _take(driver: Driver, request: TurnRequest, host: RecordingHost) -> TurnEnd:
    with anyio.fail_after(WAIT_S):
        end = await driver.take_turn(request, host)
    assert isinstance(end, TurnEnd), end
    return end


async def _nothing_left(stage: Stage) -> None:
    # The other side notices a closed connection a moment later.
    with anyio.move_on_after(5):
        while stage.left_over():  # noqa: ASYNC110  # another process or socket: no event tells
            await anyio.sleep(0.01)
    assert stage.left_over() == []
