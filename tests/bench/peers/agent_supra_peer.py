"""agent-supra: `evaluate` over all events so far, after each step, with its default policy.

Flag: a finding that was not there before. Stop: one for which `action_for` says "pause" once observation mode is off. It is
given what its SDK would report: model calls with tokens, finished tools with fingerprints, test reports
with the names of failing tests, and a revision that stands for the content of the work tree.
"""

import hashlib
import json
import re
import sys

from agent_supra import evaluate
from agent_supra.detector import action_for

ACTIVE = {"observation_mode": False}
TRANSIENT = re.compile(r"429|50[234]|timed out|overloaded|rate limit|too many requests", re.IGNORECASE)
FAILING = re.compile(r"\btest_\w+|expected [^,\n]+, received [^,\n]+")


def short(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def judged(case):
    events, rev, known, flags, stops = [], "r0", set(), [], []

    def add(kind, data):
        events.append({"seq": len(events) + 1, "event_id": f"e{len(events) + 1}", "type": kind, "data": data})

    for step in case["steps"]:
        usage = step["usage"] or {}
        add(
            "model.call",
            {
                "model": "m",
                "input_tokens": usage.get("input_tokens", 0),
                "output_tokens": usage.get("output_tokens", 0),
                "cost_micros": 0,
            },
        )
        if step["state"]:
            rev = step["state"]
        for call in step["calls"]:
            failed = call["ok"] is False
            if call["class"] == "edit" and not failed and not step["state"]:
                rev = short(call["args"])
            transient = failed and bool(TRANSIENT.search(call["result"] or ""))
            data = {"tool": call["name"], "args_fp": short(call["args"]), "ok": not failed, "rev": rev}
            if failed:
                data["error_fp"] = short(call["result"])
                data["error_class"] = "transient" if transient else None
            add("tool.finished", data)
            if call["class"] == "test" and not transient:
                failing = sorted(set(FAILING.findall(call["result"] or ""))) if failed else []
                if failed and not failing:
                    failing = [short(call["result"])]
                add("tests.reported", {"suite": failing, "failing": failing, "rev": rev})
        new = [finding for finding in evaluate(events) if finding.dedup_key not in known]
        known |= {finding.dedup_key for finding in new}
        if new:
            flags.append(step["n"])
        if any(action_for(finding, ACTIVE) == "pause" for finding in new):
            stops.append(step["n"])
    return flags, stops


for line in sys.stdin:
    case = json.loads(line)
    flags, stops = judged(case)
    print(json.dumps({"id": case["id"], "flags": flags, "stops": stops}), flush=True)
