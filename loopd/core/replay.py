"""Replay: the recorded session is decided once more, and must come to the same events, byte for byte. Pure.

    rows ──▶ one decision's events ──▶ input and house recalled ──▶ advance ──▶ the same bytes?

Nothing is taken over from the record but the inputs and what only the shell knows: which manifest a turn
was shown, and which rules were interrupted because they took too long. The first difference ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from loopd.core.evolution import evolve
from loopd.core.recorded import CREATED, recalled
from loopd.core.session import advance
from loopd.core.settings import Settings, settings_for
from loopd.core.state import Session
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.event import Event

FIELDS_MAX = 20
_OF_THE_SHELL = ("given", "manifest", "frames")
"""Fields that the shell adds to what was decided: names of content, and the record of the input itself."""

SHOWN_CHARS = 400
_GONE: Any = object()


class Row(NamedTuple):
    """A stored event of the session; `body` None when its content was deleted."""

    seq: int
    ss: int
    at_ms: int
    kind: str
    body: bytes | None


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field in which a recorded event and the one that was decided now differ; JSON values, cut."""

    path: str
    recorded: Any = None
    replayed: Any = None


class Difference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where replay and record part.

    Attributes:
        what: in words.
        given: name of the input that was decided.
        rule: the rule that found something else, if one did.
        recorded, replayed: kinds of the two events; None where there is none.
        fields: what differs between them.
    """

    seq: int
    ss: int
    at_ms: int
    what: str
    given: str = ""
    rule: str | None = None
    recorded: str | None = None
    replayed: str | None = None
    fields: tuple[Field, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a replay came to.

    Attributes:
        status: `same`, `different`, or `ended` when the record does not go on: content was deleted, or the
            events were written by a version that did not record inputs.
        why: for `ended`.
        events, decisions: compared; `facts` were taken over because nothing decides about them.
        verdicts: findings of rules that came out the same.
        last_seq: up to where it is the same.
    """

    status: str
    events: int
    decisions: int
    facts: int
    verdicts: int
    last_seq: int
    why: str = ""
    difference: Difference | None = None


class Replay:
    """Takes a session's rows in order of `ss`; `finish` tells what came of it.

    Args:
        overrides: settings other than the recorded ones, for "what if": they hold from the beginning.
    """

    def __init__(self, overrides: Mapping[str, Any] | None = None) -> None:
        self._overrides = dict(overrides or {})
        self._rows: list[Row] = []
        self._events: list[Event] = []
        self._session: Session | None = None
        self._ended = ""
        self._difference: Difference | None = None
        self._counts = {"events": 0, "decisions": 0, "facts": 0, "verdicts": 0, "last_seq": 0}

    @property
    def done(self) -> bool:
        """Nothing that follows matters any more."""
        return self._difference is not None or bool(self._ended)

    @property
    def session(self) -> Session | None:
        """The state as far as it was decided again."""
        return self._session

    def feed(self, rows: Iterable[Row]) -> bool:
        """Take in more rows; false when the rest does not matter any more."""
        for row in rows:
            if self.done:
                break
            self._take(row)
        return not self.done

    def finish(self) -> Outcome:
        """Decide what is left, and tell."""
        if not self.done:
            self._decide()
        status = "same" if not self.done else "different" if self._difference is not None else "ended"
        return Outcome(status=status, why=self._ended, difference=self._difference, **self._counts)

    def _take(self, row: Row) -> None:
        if row.body is None:
            self._decide()
            self._ended = (
                self._ended or f"the content of seq {row.seq} is not whole: retention or redaction took it"
            )
            return
        if row.kind not in ev.EVENT_TYPES:
            self._decide()
            self._ended = self._ended or f"seq {row.seq} is of kind {row.kind!r}, unknown to this version"
            return
        event = ev.decode(row.body)
        if event.given is not None:
            self._decide()
            if self.done:
                return
        elif not self._events:
            self._ended = f"seq {row.seq} ({row.kind}) was written before loopd recorded inputs"
            return
        self._rows.append(row)
        self._events.append(event)

    # -- one decision -----------------------------------------------------------------------------

    def _decide(self) -> None:
        rows, events = self._rows, self._events
        if not rows:
            return
        self._rows, self._events = [], []
        first = events[0]
        given = str((first.given or {}).get("t"))
        if isinstance(first, ev.SessionCreated):
            if self._overrides:
                first = replace(first, settings={**first.settings, **self._overrides})
            self._session = evolve(None, first, ss=rows[0].ss, at_ms=rows[0].at_ms)
            self._account(rows[:1], facts=1)
            if len(rows) > 1:
                self._part(rows[1], given, "an event that nothing led to", recorded=rows[1].kind)
            return
        if self._session is None:
            self._part(rows[0], given, f"the session begins with {rows[0].kind!r}", recorded=rows[0].kind)
            return
        settings = settings_for(self._session.preset, self._session.overrides)
        try:
            known = recalled(events, settings)
        except ValueError as error:
            self._part(rows[0], given, str(error), recorded=rows[0].kind)
            return
        if known is None:
            if given != CREATED:
                self._follow(rows, events)
            return
        try:
            done = advance(self._session, known[0], rows[0].at_ms, known[1])
        except Refused as refused:
            self._part(rows[0], given, f"the input is refused now: {refused.message}", recorded=rows[0].kind)
            return
        self._compare(rows, events, done.events, given, settings)
        if not self.done:
            self._session = done.session
            self._counts["decisions"] += 1

    def _follow(self, rows: list[Row], events: list[Event]) -> None:
        """Events that no decision led to: they change the state as they say."""
        try:
            for row, event in zip(rows, events, strict=True):
                self._session = evolve(self._session, event, ss=row.ss, at_ms=row.at_ms)
        except ValueError as error:
            self._part(rows[0], "", f"it does not follow: {error}", recorded=rows[0].kind)
            return
        self._account(rows, facts=len(rows))

    def _compare(
        self, rows: list[Row], recorded: list[Event], made: tuple[Event, ...], given: str, settings: Settings
    ) -> None:
        del settings
        for place, row in enumerate(rows):
            if place >= len(made):
                self._part(
                    row,
                    given,
                    f"the record has {row.kind!r}; nothing is decided now",
                    recorded=row.kind,
                    rule=_rule(recorded[place]),
                    fields=_fields(msgspec.json.decode(row.body or b"{}"), {}),
                )
                return
            mine = _restored(recorded[place], made[place])
            body = msgspec.json.encode(mine)
            if body != row.body:
                self._differ(row, given, recorded[place], mine, body)
                return
            self._counts["verdicts"] += isinstance(mine, ev.DegenerationDetected)
        if len(made) > len(rows):
            more = made[len(rows)]
            what = f"{more.kind!r} is decided now; the record has nothing here"
            self._part(
                rows[-1],
                given,
                what,
                replayed=more.kind,
                rule=_rule(more),
                fields=_fields({}, msgspec.to_builtins(more)),
            )
            return
        self._account(rows)

    def _differ(self, row: Row, given: str, recorded: Event, made: Event, body: bytes) -> None:
        if made.kind == row.kind:
            fields = _fields(msgspec.json.decode(row.body or b"{}"), msgspec.json.decode(body))
            named = ", ".join(field.path for field in fields) or "its bytes"
            what = f"{row.kind!r} differs in {named}"
        else:
            fields = _both(msgspec.json.decode(row.body or b"{}"), msgspec.json.decode(body))
            what = f"the record has {row.kind!r}; decided now is {made.kind!r}"
        self._part(
            row,
            given,
            what,
            recorded=row.kind,
            replayed=made.kind,
            rule=_rule(made) or _rule(recorded),
            fields=fields,
        )

    def _account(self, rows: list[Row], *, facts: int = 0) -> None:
        self._counts["events"] += len(rows)
        self._counts["facts"] += facts
        self._counts["last_seq"] = rows[-1].seq

    def _part(self, row: Row, given: str, what: str, **more: Any) -> None:
        self._difference = Difference(seq=row.seq, ss=row.ss, at_ms=row.at_ms, what=what, given=given, **more)


def replay(rows: Iterable[Row], overrides: Mapping[str, Any] | None = None) -> Outcome:
    """Replay a whole session at once."""
    work = Replay(overrides)
    work.feed(rows)
    return work.finish()


def _restored(recorded: Event, made: Event) -> Event:
    """The decided event with what the shell added to the recorded one."""
    added = {
        name: getattr(recorded, name)
        for name in _OF_THE_SHELL
        if getattr(recorded, name, None) is not None and hasattr(made, name)
    }
    return replace(made, **added) if added else made


def _rule(event: Event) -> str | None:
    rule = getattr(event, "rule", None)
    if isinstance(rule, str):
        return rule
    if isinstance(event, ev.GateChanged) and event.added is not None:
        found = getattr(event.added, "rule", None)
        return found if isinstance(found, str) and found else None
    return None


def _fields(recorded: Any, replayed: Any) -> tuple[Field, ...]:
    found: list[Field] = []
    _walk("", recorded, replayed, found)
    return tuple(found[:FIELDS_MAX])


def _both(recorded: dict[str, Any], replayed: dict[str, Any]) -> tuple[Field, ...]:
    """Two events of different kinds side by side: nothing of one answers to anything of the other."""
    names = [name for name in dict.fromkeys((*recorded, *replayed)) if name not in _OF_THE_SHELL]
    return tuple(
        Field(
            path=name, recorded=_shown(recorded.get(name, _GONE)), replayed=_shown(replayed.get(name, _GONE))
        )
        for name in names[:FIELDS_MAX]
    )


def _walk(path: str, recorded: Any, replayed: Any, found: list[Field]) -> None:
    if len(found) >= FIELDS_MAX or (type(recorded) is type(replayed) and recorded == replayed):
        return
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for name in dict.fromkeys((*recorded, *replayed)):
            _walk(
                f"{path}.{name}" if path else str(name),
                recorded.get(name, _GONE),
                replayed.get(name, _GONE),
                found,
            )
        return
    if isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        for place, (one, other) in enumerate(zip(recorded, replayed, strict=True)):
            _walk(f"{path}[{place}]", one, other, found)
        return
    found.append(Field(path=path or "$", recorded=_shown(recorded), replayed=_shown(replayed)))


def _shown(value: Any) -> Any:
    if value is _GONE:
        return None
    if isinstance(value, str) and len(value) > SHOWN_CHARS:
        return value[:SHOWN_CHARS] + "…"
    return value
