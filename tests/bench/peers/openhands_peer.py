"""openhands-sdk: its StuckDetector with default thresholds, asked after each step.

Flag: its nudge about a repeated error, or stuck. Stop: `is_stuck()` turns true. The detector reads its events from
`state.active_branch(limit=…)`; a list stands in for the conversation. Human input is a user message;
wake-ups and continuations are not, or they would reset it.
"""

import json
import logging
import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace

os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"
logging.disable(logging.CRITICAL)
answers = sys.stdout
sys.stdout = sys.stderr

from openhands.sdk import Action, Message, Observation, TextContent  # noqa: E402
from openhands.sdk.conversation.stuck_detector import StuckDetector  # noqa: E402
from openhands.sdk.event import ActionEvent, AgentErrorEvent, MessageEvent, ObservationEvent  # noqa: E402
from openhands.sdk.llm import MessageToolCall  # noqa: E402


class CalledAction(Action):
    args: str


class SeenObservation(Observation):
    seen: str

    @property
    def to_llm_content(self) -> Sequence[TextContent]:
        return [TextContent(text=self.seen)]


def message(source, text):
    role = "user" if source == "user" else "assistant"
    return MessageEvent(source=source, llm_message=Message(role=role, content=[TextContent(text=text)]))


def judged(case):
    events = []
    state = SimpleNamespace(active_branch=lambda limit=None: events[-limit:] if limit else list(events))
    detector = StuckDetector(state)
    flags, stops, was_stuck = [], [], False
    for step in case["steps"]:
        if step["trigger"] == "human":
            events.append(message("user", "go on"))
        if not step["calls"]:
            events.append(message("agent", step["text"]))
        results = []
        for index, call in enumerate(step["calls"]):
            identity = f"{step['n']}.{index}"
            args = json.dumps(call["args"], sort_keys=True)
            thought = [TextContent(text=step["text"])] if step["text"] and not index else []
            action = ActionEvent(
                source="agent",
                thought=thought,
                action=CalledAction(args=args),
                tool_name=call["name"],
                tool_call_id=identity,
                tool_call=MessageToolCall(
                    id=identity, name=call["name"], arguments=args, origin="completion"
                ),
                llm_response_id=str(step["n"]),
            )
            events.append(action)
            text = call["result"] or ""
            if call["error_class"] == "schema":
                results.append(AgentErrorEvent(error=text, tool_name=call["name"], tool_call_id=identity))
            else:
                results.append(
                    ObservationEvent(
                        source="environment",
                        observation=SeenObservation(seen=text, is_error=call["ok"] is False),
                        action_id=action.id,
                        tool_name=call["name"],
                        tool_call_id=identity,
                    )
                )
        events += results
        del events[:-200]
        nudged, stuck = bool(detector.get_action_error_nudge()), detector.is_stuck()
        if stuck and not was_stuck:
            stops.append(step["n"])
        if nudged or (stuck and not was_stuck):
            flags.append(step["n"])
        was_stuck = stuck
    return flags, stops


for line in sys.stdin:
    case = json.loads(line)
    flags, stops = judged(case)
    print(json.dumps({"id": case["id"], "flags": flags, "stops": stops}), file=answers, flush=True)
