"""runbound, each case twice: with its default policy, and with `on_loop="escalate"`.

Flag: an anomaly under the default, graded policy, which only notifies. Stop: the first refusal under
`escalate`, its policy that stops an agent by itself. It sees the names and arguments of calls, whether they
failed, and tokens; by its design never a result or a text. Time is that of the log, not of the replay.
"""

import contextlib
import json
import sys
import time

NOW = [1_767_225_600.0]
time.time = lambda: NOW[0]
time.monotonic = lambda: NOW[0]

import logging  # noqa: E402

import runbound  # noqa: E402

logging.getLogger("runbound").setLevel(logging.CRITICAL)


class Failed(Exception):
    """The tool's own failure."""


def tool(name):
    outcome = {}

    @runbound.tool(name=name)
    def body(args):
        if outcome["ok"] is False:
            raise Failed

    return body, outcome


def replayed(case, **policy):
    """The steps with anomalies, and that of the first refusal, which ends the case."""
    seen, tools, flags = [], {}, []
    runbound.init(on_anomaly="raise", on_event=seen.append, **policy)
    with runbound.session(case["id"]):
        for step in case["steps"]:
            NOW[0] = step["at_ms"] / 1_000 if step["at_ms"] else NOW[0] + 20
            usage = step["usage"] or {}
            try:
                runbound.record_call("m", usage.get("input_tokens", 0), usage.get("output_tokens", 0))
                for call in step["calls"]:
                    if call["name"] not in tools:
                        tools[call["name"]] = tool(call["name"])
                    body, outcome = tools[call["name"]]
                    outcome["ok"] = call["ok"]
                    with contextlib.suppress(Failed):
                        body(json.dumps(call["args"], sort_keys=True))
            except runbound.ExecutionRefused:
                return flags, [step["n"]]
            if seen:
                flags.append(step["n"])
            seen.clear()
    return flags, []


def judged(case):
    flags, _ = replayed(case)
    runbound.reset()
    _, stops = replayed(case, on_loop="escalate")
    runbound.reset()
    return flags, stops


for line in sys.stdin:
    case = json.loads(line)
    flags, stops = judged(case)
    print(json.dumps({"id": case["id"], "flags": flags, "stops": stops}), flush=True)
