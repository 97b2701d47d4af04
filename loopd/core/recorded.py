"""What of an input the journal keeps, so that it can be decided again. Pure.

A decision follows from the state, the input, the moment and the house. State and moment are in the
journal; the first event of each decision carries the rest in its field `given`: the name of the input,
and of its fields those that this event does not say itself. `recalled` puts the input together again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

import msgspec
from msgspec.structs import replace

from loopd.core import rules
from loopd.core.inputs import House, Input
from loopd.core.settings import Settings
from loopd_protocol import events as ev
from loopd_protocol.event import Event

CREATED = "SessionCreated"
"""Name of what leads to `session.created`: not an input, for there is no session to decide about."""

FORKED = "Forked"
"""Name of what leads to `session.forked`: a fact of the shell."""

NOTED = "Noted"
"""Name of what leads to a note: nothing was decided, and nothing follows from it."""

INPUTS: dict[str, type[msgspec.Struct]] = {kind.__name__: kind for kind in Input.__args__}
"""Name of an input → its type."""

_OF_EVENTS = frozenset({"settings", "partial", "partial_blob", "phase", "failed"})
"""Of the house: what the session or the events say."""

_JUNK_CHARS = 8_192
"""Longer arguments of an agent's request lead to nothing: no tool takes a text of that length."""

_MISSING: Any = object()


def marked(given: Input, house: House, events: Sequence[Event]) -> tuple[Event, ...]:
    """The events of a decision, the first one with the input that led to them."""
    if not events:
        return ()
    return (replace(events[0], given=_of_input(given, house, events[0])), *events[1:])


def founding(event: ev.SessionCreated) -> ev.SessionCreated:
    """A creation, marked as such."""
    return replace(event, given={"t": CREATED})


def fact(event: Event, name: str) -> Event:
    """An event that no decision of the core led to; replay takes it as it is."""
    return replace(event, given={"t": name})


def _of_input(given: Input, house: House, first: Event) -> dict[str, Any]:
    body: dict[str, Any] = {"t": type(given).__name__}
    rest = _rest(given, first)
    if rest:
        body["in"] = rest
    around = {
        name: _listed(msgspec.to_builtins(value))
        for name, default in _fields(House)
        if name not in _OF_EVENTS and (value := getattr(house, name)) != default
    }
    if around:
        body["house"] = around
    return body


def _rest(value: msgspec.Struct, first: Event) -> dict[str, Any]:
    """Fields of a struct that neither its defaults nor the equally named fields of the event say."""
    said = _names(type(first))
    rest: dict[str, Any] = {}
    for name, default in _fields(type(value)):
        mine = getattr(value, name)
        if name in said:
            if _same(mine, getattr(first, name)):
                continue
        elif mine is default or _same(mine, default):
            continue
        if isinstance(mine, msgspec.Struct) and not _is_tagged(type(mine)):
            inner = _rest(mine, first)
            if inner or default is not _MISSING:
                rest[name] = inner
        elif callable(mine) or isinstance(mine, bytes):
            continue  # makes words that are made already; content that the events name by its digest
        else:
            rest[name] = _without_junk(_listed(msgspec.to_builtins(mine)))
    return rest


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other))


def _listed(value: Any) -> Any:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _without_junk(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if not (isinstance(v, str) and len(v) > _JUNK_CHARS)}


# -- and back -----------------------------------------------------------------------------------


def recalled(events: Sequence[Event], settings: Settings) -> tuple[Input, House] | None:
    """The input that led to recorded events, and its house; None for what is a fact without a decision.

    Raises:
        ValueError: the record cannot be read: it was written by another version.
    """
    given = events[0].given
    kind = None if given is None else INPUTS.get(str(given.get("t")))
    if given is None or kind is None:
        return None
    try:
        value = _whole(kind, given.get("in") or {}, events[0])
        return value, _house(given.get("house") or {}, events, settings)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"the recorded {kind.__name__} cannot be read: {error}") from error


def _whole(kind: type[msgspec.Struct], stored: Mapping[str, Any], first: Event) -> Any:
    said = _names(type(first))
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for name, default in _fields(kind):
        inner = hints[name]
        nested = isinstance(inner, type) and issubclass(inner, msgspec.Struct) and not _is_tagged(inner)
        if name in stored and nested:
            values[name] = _whole(inner, stored[name], first)
        elif name in stored:
            values[name] = msgspec.convert(stored[name], inner)
        elif name in said:
            values[name] = getattr(first, name)
        elif default is _MISSING and nested:
            values[name] = _whole(inner, {}, first)
    return kind(**values)


def _house(stored: Mapping[str, Any], events: Sequence[Event], settings: Settings) -> House:
    hints = _hints(House)
    values: dict[str, Any] = {name: msgspec.convert(value, hints[name]) for name, value in stored.items()}
    for event in events:
        if isinstance(event, ev.TurnInterrupted):
            values |= {"partial": event.partial, "partial_blob": event.partial_blob, "phase": event.phase}
    failed = tuple(
        rules.Failure(rule=event.rule, error=event.error)
        for event in events
        if isinstance(event, ev.DetectorFailed)
    )
    return House(settings=settings, failed=failed, **values)


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """(name, default) of each field; `_MISSING` for those that have none."""
    return tuple(
        (
            field.name,
            field.default
            if field.default is not msgspec.NODEFAULT
            else field.default_factory()
            if field.default_factory is not msgspec.NODEFAULT
            else _MISSING,
        )
        for field in msgspec.structs.fields(kind)
        if field.name != "say"
    )


@functools.cache
def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__) - {"given"}


@functools.cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@functools.cache
def _is_tagged(kind: type[msgspec.Struct]) -> bool:
    """A member of a tagged union, for example a hold: kept whole, so that its tag is."""
    return kind.__struct_config__.tag is not None
