"""Runs conformance vectors of the published detectors against this implementation.

    python -m loopd.testing.vectors FILE...

A file is a JSON list (one check of ToolRepetition each) or an object of sections: `sequences`,
`fingerprints`, `config_validity`, `unresolved_tools`, `error_signatures`. Everything is judged by the
same code that judges live sessions. Needs runtime dependencies only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from loopd.core.records import CallRecord, StepRecord, canonical, step_record
from loopd.core.rules import RuleSettings, RulesState, observe_step, restart_scope, tool_repetition
from loopd.core.rules.tool_repetition import ToolRepetitionParameters
from loopd.core.settings import settings_of
from loopd.core.stops.signatures import error_signature
from loopd.core.stops.unresolved import unresolved_tools
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, TurnStep
from loopd_protocol.sources import Trigger

RATIO_TOLERANCE = Fraction(1, 10**9)
"""Ratios of the list form are decimal; no two ratios of a window of 50 are this close."""

_VERDICTS = {None: "no_stagnation", "nudge": "inject_prompt", "terminate": "terminate"}


class Malformed(Exception):
    """A vector does not have the shape that its section asks for."""


def _get(vector: Any, key: str, *kinds: type) -> Any:
    if not isinstance(vector, dict):
        raise Malformed(f"met {type(vector).__name__}; expected an object with {key!r}")
    if key not in vector:
        raise Malformed(f"{key!r} is missing")
    value = vector[key]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise Malformed(f"{key!r} is {value!r:.80}; expected {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def _rules(config: Mapping[str, Any]) -> RuleSettings:
    return settings_of(
        "published", {f"rules.tool_repetition.{key}": value for key, value in config.items()}
    ).rules


def _parameters(vector: Any) -> ToolRepetitionParameters:
    try:
        return _rules(_get(vector, "config", dict)).tool_repetition
    except Refused as refused:
        raise Malformed(f"config was refused: {refused}") from refused


def _turns(vector: Any) -> list[tuple[str, ...]]:
    turns = []
    for index, turn in enumerate(_get(vector, "turns", list)):
        if not isinstance(turn, list) or not all(isinstance(call, str) for call in turn):
            raise Malformed(f"turn {index} is {turn!r:.80}; expected a list of fingerprints")
        turns.append(tuple(turn))
    return turns


def _step(n: int, calls: Sequence[str]) -> StepRecord:
    return StepRecord(
        n=n,
        turn=1,
        trigger=Trigger.CONTINUATION,
        at_ms=0,
        calls=tuple(CallRecord(name=call.rpartition(":")[0], fingerprint=call) for call in calls),
    )


def _differences(expected: Mapping[str, Any], met: Mapping[str, Any]) -> Iterator[str]:
    for key, value in expected.items():
        if key not in met:
            yield f"unknown expectation {key!r}; known are {', '.join(met)}"
        elif isinstance(value, bool) or type(value) is not type(met[key]) or value != met[key]:
            yield f"{key} is {met[key]!r}; expected {value!r}"
    for key in met.keys() - expected.keys():
        yield f"nothing is expected of {key!r}"


def _check(vector: Any) -> Iterator[str]:
    """One check: a verdict about a given history with a given counter."""
    turns, parameters = _turns(vector), _parameters(vector)
    expected = dict(_get(vector, "expected", dict))
    wanted = _get(expected, "repetition_ratio", int, float)
    corrections = _get(vector, "corrections_injected", int)
    verdict = tool_repetition.check(turns, corrections, parameters)
    ratio = verdict.repetition_ratio
    if abs(Fraction(wanted) - ratio) > RATIO_TOLERANCE:
        yield f"repetition_ratio is {ratio}; expected {wanted}"
    del expected["repetition_ratio"]
    yield from _differences(expected, {"verdict": verdict.verdict, "cycle_length": verdict.cycle_length})
    # the live rule sees one step after the other; it must come to the same verdict
    state = RulesState(
        tool_repetition=tool_repetition.ToolRepetitionState(
            steps=tuple(
                tool_repetition.ToolStep(n, 0, turn)
                for n, turn in enumerate([turn for turn in turns if turn][:-1], start=1)
            )[-parameters.window_size :],
            corrections=corrections,
        )
    )
    last = next((turn for turn in reversed(turns) if turn), None)
    if last is not None:
        judged = observe_step(state, RuleSettings(tool_repetition=parameters), _step(len(turns), last))
        live = _live_verdict(judged.findings)
        if live != verdict.verdict:
            yield f"the live rule says {live}; expected {verdict.verdict} as by the single check"


def _live_verdict(findings: Sequence[Any]) -> str:
    ours = [finding for finding in findings if finding.rule == tool_repetition.ID]
    return _VERDICTS[ours[0].verdict if ours else None]


def _sequence(vector: Any) -> Iterator[str]:
    """Turns one by one, through the framework, as a session feeds them."""
    turns, parameters = _turns(vector), _parameters(vector)
    breaks = _get(vector, "scope_breaks", list)
    steps = _get(vector, "expected_steps", list)
    if len(steps) > len(turns):
        raise Malformed(f"{len(steps)} steps are expected of {len(turns)} turns")
    if wrong := [at for at in breaks if type(at) is not int or not 0 <= at < len(turns)]:
        raise Malformed(f"scope_breaks has {wrong[0]!r}; expected indices below {len(turns)}")
    settings = RuleSettings(tool_repetition=parameters)
    state = RulesState()
    for index, expected in enumerate(steps):
        if index in breaks:
            state = restart_scope(state)
        seen = state.tool_repetition.corrections
        judged = observe_step(state, settings, _step(index + 1, turns[index]))
        state = judged.state
        window = [step.calls for step in state.tool_repetition.steps]
        verdict = tool_repetition.check(window, seen, parameters)
        if not isinstance(expected, dict):
            raise Malformed(f"step {index} is {expected!r:.80}; expected an object")
        try:
            exact = str(Fraction(expected.get("ratio", "0")))
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise Malformed(
                f"ratio of step {index} is {expected['ratio']!r:.80}; expected a fraction"
            ) from error
        met = {
            "verdict": _live_verdict(judged.findings),
            "ratio": str(verdict.repetition_ratio),
            "cycle": verdict.cycle_length,
            "corrections_seen": seen,
        }
        for difference in _differences(
            {**expected, **({"ratio": exact} if "ratio" in expected else {})}, met
        ):
            yield f"step {index}: {difference}"


def _fingerprints(vector: Any) -> Iterator[str]:
    calls = _get(vector, "calls", list)
    made = []
    for index, call in enumerate(calls):
        name = _get(call, "name", str)
        if "arguments" not in call:
            raise Malformed(f"call {index} has no 'arguments'")
        made.append(ToolCall(id=f"c{index}", name=name, args=call["arguments"]))
    record = step_record(TurnStep(n=1, step=1, total=1, calls=tuple(made)), Trigger.CONTINUATION, 0)
    met = sorted(call.fingerprint for call in record.calls)
    expected = _get(vector, "expected_turn_fingerprints", list)
    if met != expected:
        yield f"fingerprints are {met}; expected {expected}"
    if "canonical" in vector:
        texts = [canonical(call.args).decode() for call in made]
        if texts != vector["canonical"]:
            yield f"canonical arguments are {texts}; expected {vector['canonical']}"


def _config_validity(vector: Any) -> Iterator[str]:
    config, valid = _get(vector, "config", dict), _get(vector, "valid", bool)
    try:
        _rules(config)
    except Refused as refused:
        if valid:
            yield f"refused ({refused}); expected to be accepted"
    else:
        if not valid:
            yield "accepted; expected to be refused"


def _unresolved(vector: Any) -> Iterator[str]:
    limit = _get(vector, "limit", int)
    turns = [(_get(turn, "asked", int), _get(turn, "resolved", int)) for turn in _get(vector, "turns", list)]
    try:
        met = unresolved_tools(turns, limit)
    except ValueError as error:
        raise Malformed(str(error)) from error
    expected = _get(vector, "expected", dict)
    yield from _differences(expected, {"streak": met.streak, "verdict": met.verdict})


def _signature(side: Any) -> str:
    exit_code = _get(side, "exit_code", int, type(None))
    stdout = _get(side, "stdout", str) if "stdout" in side else ""
    return error_signature(_get(side, "command", str), exit_code, _get(side, "stderr", str), stdout)


def _error_signatures(vector: Any) -> Iterator[str]:
    equal = _get(vector, "equal", bool)
    met = _signature(_get(vector, "a", dict)) == _signature(_get(vector, "b", dict))
    if met is not equal:
        yield f"signatures are {'equal' if met else 'different'}; expected {'equal' if equal else 'different'} ones"


Judge = Callable[[Any], Iterator[str]]

SECTIONS: dict[str, Judge] = {
    "sequences": _sequence,
    "fingerprints": _fingerprints,
    "config_validity": _config_validity,
    "unresolved_tools": _unresolved,
    "error_signatures": _error_signatures,
}
"""Section of an object file → what judges one of its vectors; yields a line for each mismatch."""


def _relations(vectors: Sequence[Any]) -> Iterator[str]:
    """`same_as` and `differs_from` among fingerprints."""
    known = {
        vector["label"]: vector.get("expected_turn_fingerprints")
        for vector in vectors
        if isinstance(vector, dict) and isinstance(vector.get("label"), str)
    }
    for vector in vectors:
        if not isinstance(vector, dict):
            continue
        mine = vector.get("expected_turn_fingerprints")
        for relation, equal in (("same_as", True), ("differs_from", False)):
            other = vector.get(relation)
            if other is None:
                continue
            if other not in known:
                yield f"{vector.get('label')}: {relation} names {other!r}, which is not here"
            elif (known[other] == mine) is not equal:
                yield f"{vector.get('label')}: {relation} {other!r} does not hold"


def _judge_all(section: str, vectors: Any, judge: Judge) -> tuple[int, list[str]]:
    if not isinstance(vectors, list):
        return 0, [f"{section}: met {type(vectors).__name__}; expected a list"]
    lines = []
    for index, vector in enumerate(vectors):
        named = vector if isinstance(vector, dict) else {}
        name = named.get("name") or named.get("label") or index
        try:
            lines += [f"{section} {name}: {difference}" for difference in judge(vector)]
        except Malformed as malformed:
            lines.append(f"{section} {name}: malformed: {malformed}")
    if judge is _fingerprints:
        lines += [f"{section} {line}" for line in _relations(vectors)]
    return len(vectors), lines


def mismatches(document: Any) -> tuple[int, list[str]]:
    """How many vectors a decoded file holds, and one line for each that does not hold."""
    if isinstance(document, list):
        return _judge_all("check", document, _check)
    if not isinstance(document, dict):
        return 0, [f"met {type(document).__name__}; expected a list or an object of sections"]
    count, lines = 0, []
    for section, vectors in document.items():
        judge = SECTIONS.get(section)
        if judge is None:
            lines.append(f"unknown section {section!r}; known are {', '.join(SECTIONS)}")
            continue
        more, found = _judge_all(section, vectors, judge)
        count += more
        lines += found
    return count, lines


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is there twice")
    return made


def run(path: Path) -> tuple[int, list[str]]:
    """Judge one file; a file that cannot be read is one mismatch."""
    try:
        document = json.loads(path.read_bytes(), object_pairs_hook=_unique)
    except OSError as error:
        return 0, [f"cannot be read: {error.strerror or error}"]
    except (ValueError, RecursionError) as error:
        return 0, [f"is not JSON: {error}"]
    return mismatches(document)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when all vectors hold, 1 when one does not or a file cannot be read, 2 for usage."""
    parser = argparse.ArgumentParser(
        prog="python -m loopd.testing.vectors",
        description="Run conformance vectors of the published detectors against this loopd.",
        epilog=(
            "examples:\n"
            "  python -m loopd.testing.vectors tests/vectors/tool_repetition.json\n"
            "  python -m loopd.testing.vectors tests/vectors/*.json\n\n"
            "exit code: 0 all hold; 1 a mismatch or an unreadable file, one line each; 2 wrong usage"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a JSON file of vectors")
    failed = False
    for path in parser.parse_args(argv).files:
        count, lines = run(path)
        failed = failed or bool(lines)
        for line in lines:
            print(f"{path}: {line}")
        if not lines:
            print(f"{path}: {count} vectors hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
