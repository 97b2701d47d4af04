"""What an agent is told about loopd's own tools: names, descriptions and JSON Schemas of their arguments.

Plain data without imports: the MCP server of a hosted agent starts with it in a few milliseconds.
The bounds are those of `loopd.core.agent_tools`; a test compares them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _tool(name: str, description: str, required: tuple[str, ...], /, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": name, "description": description, "schema": schema}


def _text(description: str, most: int, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": most, "description": description, **more}


AGENT_TOOLS: tuple[dict[str, Any], ...] = (
    _tool(
        "request_idle",
        "End this turn and be left alone for a while, because there is nothing useful to do now: you wait for "
        "something outside of your control. The goal stays active; any message wakes you earlier. After this "
        "call, stop: do nothing more in this turn.",
        ("max_idle_duration_secs", "reason"),
        max_idle_duration_secs={
            "type": "integer",
            "minimum": 60,
            "maximum": 86_400,
            "description": "how long, at most, in seconds",
        },
        reason=_text("what is being waited for", 4_000),
    ),
    _tool(
        "update_goal",
        "Say that the goal is complete, cannot be reached, or is blocked by something that you cannot change. "
        "Use it as soon as one of these is true instead of repeating yourself.",
        ("status",),
        status={
            "type": "string",
            "enum": ["complete", "infeasible", "blocked", "paused"],
            "description": "the goal's new status",
        },
        note=_text("what was achieved, or what stands in the way", 4_000),
    ),
    _tool(
        "wake_me",
        "Ask to be woken later: once after some seconds, or by a cron expression. Give exactly one of the two.",
        ("note",),
        after_secs={
            "type": "integer",
            "minimum": 60,
            "maximum": 2_678_400,
            "description": "seconds from now",
        },
        cron=_text("five-field cron expression, UTC", 200),
        note=_text("what to do then", 4_000),
    ),
    _tool(
        "report_phase",
        "Say which phase of the work begins now.",
        ("name",),
        name=_text("a short name, for example build or review", 64, minLength=1),
    ),
    _tool(
        "report_progress",
        "Report the value of a metric that shows progress, each time it moved.",
        ("metric", "value"),
        metric=_text("name of the metric, for example tests_passing", 64, minLength=1),
        value={"type": "number", "description": "its value now"},
    ),
)
