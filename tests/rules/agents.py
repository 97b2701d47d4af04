"""Agents of a few words: logged steps for the judge, as short as the stories that tests tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from loopd.core.judge import Judge, Judgement, LoggedStep
from loopd.core.settings import settings_of
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Trigger

START_MS = 1_767_225_600_000


def call(
    name: str, args: Any = None, result: str | None = "", ok: bool | None = True, **more: Any
) -> ToolCall:
    return ToolCall(id="c", name=name, args={} if args is None else args, ok=ok, result=result, **more)


def sh(command: str, result: str | None = "", ok: bool | None = True, **more: Any) -> ToolCall:
    return call("bash", {"command": command}, result, ok, **more)


def read(path: str, result: str, **args: Any) -> ToolCall:
    return call("read_file", {"path": path, **args}, result)


def log(*steps: Any, triggers: dict[int, str] | None = None, gap_ms: int = 0) -> list[LoggedStep]:
    """Steps given as a text, a call, a list of calls, or whole; numbered from 1."""
    made: list[LoggedStep] = []
    for n, given in enumerate(steps, start=1):
        trigger = (triggers or {}).get(n)
        values: dict[str, Any] = {"n": n, "usage": Usage(input_tokens=100, output_tokens=10)}
        if trigger is not None:
            values["trigger"] = Trigger(trigger)
        if gap_ms:
            values["at_ms"] = START_MS + n * gap_ms
        if isinstance(given, dict):
            values |= given
        elif isinstance(given, str):
            values["text"] = given
        else:
            values["calls"] = tuple(given) if isinstance(given, list) else (given,)
        made.append(LoggedStep(**values))
    return made


def judged(
    steps: Iterable[LoggedStep], /, attended: bool = False, preset: str = "hardened", **overrides: Any
) -> Judgement:
    """`exact_repeat__soft=3` stands for `rules.exact_repeat.soft`; only the rule named by `only` is on."""
    only = overrides.pop("only", None)
    settings = {
        ("ladder." if key.startswith("ladder__") else "rules.")
        + key.removeprefix("ladder__").replace("__", "."): value
        for key, value in overrides.items()
    }
    if only is not None:
        rules = settings_of(preset, {}).rules
        settings |= {f"rules.{rule}.enabled": False for rule in rules.__struct_fields__ if rule != only}
    judge = Judge(settings_of(preset, settings), attended=attended)
    for step in steps:
        judge.step(step)
    judgement = judge.judgement()
    assert judgement.failures == ()
    return judgement


def fired(judgement: Judgement, rule: str, level: str | None = None) -> list[int]:
    """Steps at which a rule fired."""
    return [f.step for f in judgement.findings if f.rule == rule and level in {None, f.level}]
