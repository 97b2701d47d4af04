"""trajectory-fuse with its defaults. Cases as JSON lines on standard input, one answer each on standard output.

It sees calls with their results, not texts. `observe` raises at a deadlock; that is both flag and stop. The log goes on.
"""

import json
import sys

from trajectory_fuse import Action, AgentFuse, DeadlockDetected


def judged(case):
    fuse, steps = AgentFuse(), []
    for step in case["steps"]:
        for call in step["calls"]:
            try:
                fuse.observe(
                    Action(tool=call["name"], args=call["args"], result=call["result"], success=call["ok"])
                )
            except DeadlockDetected:
                steps.append(step["n"])
    return steps, steps


for line in sys.stdin:
    case = json.loads(line)
    flags, stops = judged(case)
    print(json.dumps({"id": case["id"], "flags": flags, "stops": stops}), flush=True)
