"""Attempts: the same command that fails the same way again, and edits that change nothing. Pure."""

from __future__ import annotations

import re

import msgspec

from loopd.core.records import CallRecord, StepRecord

ATTEMPTS = 32
CHECKS = 16
LABEL_CHARS = 100
COMMAND_CLASSES = frozenset({"exec", "test"})


_COMMAND = re.compile(r'[^({]*\(\{"(?:command|cmd|script)":"((?:[^"\\]|\\.)*)"\}\)\Z')


def command_text(label: str) -> str:
    """The command line that a call's label shows, or the label where it shows more than that."""
    found = _COMMAND.match(label)
    return (found[1].replace('\\"', '"') if found else label)[:LABEL_CHARS]


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """A command that failed with one signature.

    Attributes:
        command: identity of the command; `label` says it in words.
        same: failures in a row without a new state of the outside between them.
        total: failures since it passed last, whatever was edited between them.
        states: how many new states had been seen at its last failure.
        told: the agent was told that edits do not help.
    """

    command: str
    signature: str
    label: str
    same: int = 1
    total: int = 1
    states: int = 0
    told: bool = False


class Check(msgspec.Struct, frozen=True, array_like=True):
    """A check command (tool class `test`) as it ran last; the one that ran last comes last."""

    command: str
    label: str
    passes: bool


def failures(
    attempts: tuple[Attempt, ...], record: StepRecord, states: int
) -> tuple[tuple[Attempt, ...], Attempt | None]:
    """Follow the commands of a step.

    A command that passes is forgotten; failures of services and of tools that are no commands do not
    count, and one signature of one command counts once per step.

    Args:
        attempts: before it, the one that failed last at the end.
        record: the step.
        states: how many new states of the outside were seen so far, this step included.

    Returns:
        The attempts after it, and the one that failed in it (the most often repeated one).
    """
    made: dict[tuple[str, str], Attempt] = {}
    known = attempts
    for call in record.calls:
        if call.tool_class not in COMMAND_CLASSES or call.waits:
            continue
        if not call.failed:
            if call.ok or call.exit_code == 0 or (call.ok is None and call.result is not None):
                known = tuple(each for each in known if each.command != call.identity)
            continue
        if not call.error or (call.identity, call.error) in made:
            continue
        old = next((e for e in known if e.command == call.identity and e.signature == call.error), None)
        if old is None:
            new = Attempt(call.identity, call.error, command_text(call.label), states=states)
        else:
            same = old.same + 1 if old.states == states else 1
            new = Attempt(old.command, old.signature, old.label, same, old.total + 1, states, old.told)
        made[call.identity, call.error] = new
        known = (*(each for each in known if each is not old), new)[-ATTEMPTS:]
    failed = max(made.values(), key=lambda each: (each.same, each.total), default=None)
    return known, failed


def checks(known: tuple[Check, ...], calls: tuple[CallRecord, ...]) -> tuple[Check, ...]:
    """Follow the check commands of a step, as the daemon sees them; services' failures say nothing."""
    for call in calls:
        if call.tool_class != "test" or call.infra or call.result is None:
            continue
        new = Check(call.identity, command_text(call.label), not call.failed)
        known = (*(check for check in known if check.command != call.identity), new)[-CHECKS:]
    return known


class Edits(msgspec.Struct, frozen=True, array_like=True):
    """Edits in a row that changed nothing; `last` identifies the calls of the last edit."""

    noop: int = 0
    last: str = ""
    fingerprint: str = ""


def edits(before: Edits, record: StepRecord) -> tuple[Edits, bool]:
    """Follow the edits of a step; steps without an edit do not touch the count.

    Where a sensor knows the outside, an edit that left it as it was changed nothing. Where none does, only
    the same edit as the last one is known to change nothing more: unknown is never "no change".

    Returns:
        The state after it, and whether the count went up.
    """
    known = record.state_fingerprint or ""
    changed = bool(known and before.fingerprint and known != before.fingerprint)
    calls = [call for call in record.calls if call.tool_class == "edit"]
    fingerprint = known or before.fingerprint
    if not calls:
        if not changed and fingerprint == before.fingerprint:
            return before, False
        return Edits(0 if changed else before.noop, before.last, fingerprint), False
    identity = " ".join(sorted(call.identity for call in calls))
    idle = known == before.fingerprint if known and before.fingerprint else identity == before.last
    return Edits(before.noop + 1 if idle else 0, identity, fingerprint), idle
