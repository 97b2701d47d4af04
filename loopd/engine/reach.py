"""Which sessions exist for a caller: a token with labels reaches only those that have all of them.

A session out of reach is not *forbidden*, it is not found, in the same words as one that never was: an
answer must not tell that it exists. What is about the whole house is forbidden to such a caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from loopd.core.access import Caller
from loopd.core.writes import PassiveRow
from loopd.engine.router import Router
from loopd.engine.selection import has_labels
from loopd_protocol import commands as cm
from loopd_protocol.errors import Refused
from loopd_protocol.policy_commands import ApprovalList

REFERENCES = ("sid", "other_sid", "parent")
"""Fields that name one session, in all commands."""
WITHOUT_SESSION = frozenset(
    {
        "session.create",
        "session.list",
        "batch",
        "daemon.status",
        "cron.list",
        "cron.next",
        "consumer.create",
        "consumer.ack",
        "consumer.list",
        "consumer.delete",
        "agent.ask",
        "approval.list",
    }
)
"""What a caller with labels may ask without naming a session: each is narrowed or tells of none."""
LABELS_KEPT = 256


class Reaches:
    """Narrows commands and events to what a caller reaches."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._by_labels: dict[tuple[tuple[str, str], ...], Callable[[str | None, str], bool]] = {}

    def narrow(self, command: cm.Command, caller: Caller) -> cm.Command:
        """The command as this caller may have it carried out.

        Raises:
            Refused: `not_found` for a session out of reach, `forbidden` for the whole house.
        """
        if not caller.labels:
            return command
        named = False
        for field in REFERENCES:
            ref = getattr(command, field, None)
            if ref is not None:
                self._found(str(ref), caller.labels)
                named = True
        if not named and command.type not in WITHOUT_SESSION:
            raise Refused(
                "forbidden",
                f"{command.type} is about all sessions; {caller.principal} reaches only those with {_said(caller)}",
            )
        match command:
            case cm.SessionCreate():
                return msgspec.structs.replace(command, labels=_merged(command.labels, caller))
            case cm.SessionList() | cm.Batch():
                selector = self._selector(command.selector, caller)
                return msgspec.structs.replace(command, selector=selector)
        for ref in getattr(command, "sids", ()):
            self._found(str(ref), caller.labels)
        return command

    def prune(self, command: cm.Command, result: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Take out of an answer what lies out of reach."""
        if not caller.labels:
            return result
        match command:
            case cm.DaemonStatus():
                return self._status(result, caller.labels)
            case cm.CronList():
                jobs = [job for job in result["jobs"] if self.sees(job["sid"], caller.labels)]
                return {**result, "jobs": jobs}
            case ApprovalList():
                asked = [each for each in result["approvals"] if self.sees(each["sid"], caller.labels)]
                return {**result, "approvals": asked}
        return result

    def sees(self, sid: str, labels: Mapping[str, str]) -> bool:
        """Whether a session has these labels; they are given at its creation and never change."""
        row = self._router.rows.get(sid)
        return row is not None and has_labels(row, labels)

    def events(self, caller: Caller) -> Callable[[str | None, str], bool] | None:
        """Which events `(sid, kind)` exist for the caller, or None for all. The same object for the same labels."""
        if not caller.labels:
            return None
        labels = dict(caller.labels)
        place = tuple(sorted(labels.items()))
        known = self._by_labels.get(place)
        if known is None:

            def passes(sid: str | None, kind: str) -> bool:
                return kind.startswith("daemon.") if sid is None else self.sees(sid, labels)

            if len(self._by_labels) >= LABELS_KEPT:
                self._by_labels.clear()
            known = self._by_labels[place] = passes
        return known

    def _found(self, ref: str, labels: Mapping[str, str]) -> None:
        if not self.sees(self._router.resolve(ref), labels):
            raise unknown(ref)

    def _selector(self, selector: cm.Selector, caller: Caller) -> cm.Selector:
        for ref in selector.sids:
            self._found(ref, caller.labels)
        return msgspec.structs.replace(selector, labels=_merged(selector.labels, caller))

    def _status(self, result: dict[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
        rows: list[PassiveRow] = [row for row in self._router.rows.values() if has_labels(row, labels)]
        live = [row for row in rows if row.status == "live"]
        holds: dict[str, int] = {}
        for row in live:
            for kind in row.holds.split(",") if row.holds else ():
                holds[kind] = holds.get(kind, 0) + 1
        shown = ("version", "uptime_ms", "log", "head", "frozen", "draining", "ready", "isolation")
        return {
            **{name: result[name] for name in shown if name in result},
            "sessions": {
                "live": len(live),
                "ended": len(rows) - len(live),
                "running": sum(1 for row in live if row.running),
                "closed": sum(1 for row in live if row.holds),
            },
            "holds": holds,
            "labels": dict(labels),
        }


def unknown(ref: str) -> Refused:
    """The refusal of a name that means nothing to the caller, as the router says it."""
    return Refused("not_found", f"no session {ref!r}; `loopctl ps` lists them", path="$.sid")


def _merged(labels: Mapping[str, str], caller: Caller) -> dict[str, str]:
    for name, value in caller.labels.items():
        if labels.get(name, value) != value:
            raise Refused(
                "forbidden",
                f"label {name}={labels[name]!r}; {caller.principal} reaches only sessions with {_said(caller)}",
            )
    return {**labels, **caller.labels}


def _said(caller: Caller) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(caller.labels.items()))
