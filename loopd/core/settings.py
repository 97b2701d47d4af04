"""Settings of a session: presets, dotted overrides, and what is refused.

One grammar everywhere, in TOML and in `--set`: `rules.<id>.<parameter>`, `continuation.…`, `gate.…`,
`turn.…`, `stop.…`. What is not bounded by the published detectors themselves is bounded here.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

import msgspec

from loopd.core.rules import LadderSettings, RuleSettings, contradiction, lanes, tool_repetition
from loopd.core.stops import limits
from loopd.core.stops.limits import StopSettings
from loopd_protocol.errors import Refused

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=86_400_000)]
"""A duration of at most a day."""
SomeMilliseconds = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
"""A duration of at least a millisecond and at most a day."""
BackoffSeconds = Annotated[int, msgspec.Meta(ge=1, le=86_400)]


class ContinuationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon's own re-prompt while a goal is active.

    Attributes:
        min_gap_ms: never sooner than this after the last turn, the goal's setting or creation.
        backoff_after: the first tool-less continuation in a row that is followed by a gap.
        backoff_s: gaps of `ContinuationBackoff`, one per tool-less continuation in a row from
            the `backoff_after`th on; the last one repeats. Empty: off (preset `published`).
        text: what the model is told; `{goal}` is replaced by the goal.
    """

    min_gap_ms: Milliseconds = 2_000
    backoff_after: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 5
    backoff_s: Annotated[tuple[BackoffSeconds, ...], msgspec.Meta(max_length=16)] = ()
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=10_000)] = (
        "Continue with the task until it is complete.\n\nGoal: {goal}"
    )


class GateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the gate.

    Attributes:
        inbox_cap: envelopes that may wait; over it the oldest is dropped, with an event.
        interrupt_for_ms: how long an interrupt keeps automatic work out, unless told otherwise.
        pass_gap_ms: at most one `pass` turn in this time.
        provider_backoff_ms: first hold after a model endpoint failed; it doubles from there.
        provider_backoff_max_ms: longest such hold; at least `provider_backoff_ms`.
    """

    inbox_cap: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    interrupt_for_ms: SomeMilliseconds = 300_000
    pass_gap_ms: Milliseconds = 60_000
    provider_backoff_ms: SomeMilliseconds = 30_000
    provider_backoff_max_ms: SomeMilliseconds = 3_600_000


class TurnSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one turn.

    Attributes:
        deadline_ms: a longer turn is cancelled with outcome `deadline`.
        max_steps: model calls in one turn.
    """

    deadline_ms: SomeMilliseconds = 3_600_000
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200


class ApprovalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to tool calls that no rule of the session's policy decides about, and to questions.

    Attributes:
        default: `allow`, `ask` or `deny`.
        wait_s: how long a question waits for a person; then it is denied.
        on_deny: `tell` the agent and go on, or `end` the session as `aborted_constraint`.
    """

    default: Literal["allow", "ask", "deny"] = "allow"
    wait_s: Annotated[int, msgspec.Meta(ge=1, le=604_800)] = 86_400
    on_deny: Literal["tell", "end"] = "tell"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set for one session under the keys `rules.*`, `continuation.*` and so on."""

    rules: RuleSettings = RuleSettings()
    ladder: LadderSettings = LadderSettings()
    continuation: ContinuationSettings = ContinuationSettings()
    gate: GateSettings = GateSettings()
    turn: TurnSettings = TurnSettings()
    stop: StopSettings = StopSettings()
    approvals: ApprovalSettings = ApprovalSettings()


PUBLISHED_RULES = ("repeated_text", "barren_streak", "tool_repetition", "progress_stall")
"""The four published detectors; preset `hardened` has two-level rules in their place."""

_BACKOFF_S = (60, 300, 900, 3_600)


def _hardened() -> Settings:
    base = RuleSettings()
    changed = dict.fromkeys(PUBLISHED_RULES, False) | dict.fromkeys((*lanes.IDS, "chanting"), True)
    rules = {
        rule: msgspec.structs.replace(getattr(base, rule), enabled=enabled)
        for rule, enabled in changed.items()
    }
    return Settings(
        rules=msgspec.structs.replace(base, **rules),
        continuation=ContinuationSettings(backoff_after=5, backoff_s=_BACKOFF_S),
        stop=StopSettings(enabled=True, edge_counts="since_progress"),
    )


PRESETS: MappingProxyType[str, Settings] = MappingProxyType(
    {"published": Settings(), "hardened": _hardened()}
)
"""Presets by name: what holds before any override."""

DEFAULT_PRESET = "hardened"
"""What holds where nobody named a preset."""

ALIASES: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "degeneration_duplicate_text_threshold": ("rules.repeated_text.threshold",),
        "degeneration_barren_threshold": ("rules.barren_streak.threshold",),
        "degeneration_wake_after_secs": (
            "rules.repeated_text.wake_after_s",
            "rules.barren_streak.wake_after_s",
        ),
        "progress_stall_threshold": ("rules.progress_stall.threshold",),
        "progress_min_info_gain_length": ("rules.progress_stall.min_info_gain_chars",),
    }
)
"""Published key names → the keys they stand for; accepted bare and behind `rules.`."""

_DEEPEST = 8


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One key that can be set, as references and errors show it.

    Attributes:
        kind: `integer`, `number`, `boolean`, `text`, `choice` or `integers`.
        minimum, maximum: inclusive bounds; of a text or a list they bound its length.
        choices: the words of a `choice`.
        item_minimum, item_maximum: inclusive bounds of each of `integers`.
    """

    key: str
    kind: str
    default: Any
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    item_minimum: int | None = None
    item_maximum: int | None = None

    @property
    def expected(self) -> str:
        """The accepted values in words, for error messages."""
        span = f" from {_number(self.minimum)} to {_number(self.maximum)}"
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.kind == "boolean":
            return "true or false"
        if self.kind == "text":
            return f"a text of {_number(self.minimum)} to {_number(self.maximum)} characters"
        if self.kind == "integers":
            return (
                f"a list of at most {_number(self.maximum)} integers "
                f"from {self.item_minimum} to {self.item_maximum}"
            )
        return ("an integer" if self.kind == "integer" else "a number") + span


def _number(value: float | None) -> str:
    return "any" if value is None else f"{value:,}".replace(",", "_") if value == int(value) else str(value)


@functools.cache
def setting_keys() -> Mapping[str, Setting]:
    """All keys that can be set, in the order of the structs; defaults are those of `published`."""
    return MappingProxyType({setting.key: setting for setting in _describe("", Settings)})


def _describe(prefix: str, struct: type[msgspec.Struct]) -> Iterator[Setting]:
    info = cast("msgspec.inspect.StructType", msgspec.inspect.type_info(struct))
    for field in info.fields:
        key = f"{prefix}{field.name}"
        kind = field.type
        if isinstance(kind, msgspec.inspect.StructType):
            yield from _describe(f"{key}.", kind.cls)
        elif isinstance(kind, msgspec.inspect.BoolType):
            yield Setting(key=key, kind="boolean", default=field.default)
        elif isinstance(kind, (msgspec.inspect.IntType, msgspec.inspect.FloatType)):
            name = "integer" if isinstance(kind, msgspec.inspect.IntType) else "number"
            yield Setting(key=key, kind=name, default=field.default, minimum=kind.ge, maximum=kind.le)
        elif isinstance(kind, msgspec.inspect.StrType):
            yield Setting(
                key=key,
                kind="text",
                default=field.default,
                minimum=kind.min_length or 0,
                maximum=kind.max_length,
            )
        elif isinstance(kind, msgspec.inspect.LiteralType):
            yield Setting(key=key, kind="choice", default=field.default, choices=tuple(map(str, kind.values)))
        elif isinstance(kind, msgspec.inspect.VarTupleType):
            item = cast("msgspec.inspect.IntType", kind.item_type)
            yield Setting(
                key=key,
                kind="integers",
                default=field.default,
                minimum=kind.min_length or 0,
                maximum=kind.max_length,
                item_minimum=item.ge,
                item_maximum=item.le,
            )
        else:
            raise TypeError(f"{key} has type {kind}; no rule to check it")


def settings_of(preset: str, overrides: Mapping[str, Any]) -> Settings:
    """Build settings from a preset and overrides; aliases of published keys are accepted.

    Args:
        preset: `published` or `hardened`.
        overrides: dotted keys, nested tables, or both. A text given for anything but a text is read as
            a JSON or TOML value, so that `--set KEY=VALUE` needs no types.

    Raises:
        Refused: `unknown_field` with the nearest key, or `invalid` with the numbers.
    """
    base = PRESETS.get(preset)
    if base is None:
        raise Refused(
            "invalid",
            f"preset is {preset!r}; expected one of {', '.join(map(repr, PRESETS))}",
            path="$.preset",
        )
    if not overrides:
        return base
    given: dict[str, tuple[str, Any]] = {}
    for key, value in _flatten("", overrides, 0):
        for target in _targets(key):
            checked = _checked(key, setting_keys()[target], value)
            if target in given and given[target][1] != checked:
                raise Refused(
                    "invalid",
                    f"{target} is set twice: {given[target][0]} says {given[target][1]!r}, "
                    f"{key} says {checked!r}",
                )
            given[target] = (key, checked)
    plain = msgspec.to_builtins(base)
    for target, (_, checked) in given.items():
        *tables, leaf = target.split(".")
        table = plain
        for name in tables:
            table = table[name]
        table[leaf] = checked
    settings = msgspec.convert(plain, Settings)
    _refuse_contradictions(settings)
    return settings


def settings_for(preset: str, overrides: Mapping[str, Any]) -> Settings:
    """Like `settings_of`, remembering the result: for settings that were accepted once.

    Raises:
        Refused: as `settings_of`, for a session that another version of loopd created.
    """
    if not overrides:
        return settings_of(preset, {})
    return _remembered(preset, msgspec.json.encode(overrides, order="deterministic"))


@functools.lru_cache(maxsize=1_024)
def _remembered(preset: str, overrides: bytes) -> Settings:
    return settings_of(preset, msgspec.json.decode(overrides))


@functools.lru_cache(maxsize=1_024)
def config_revision(settings: Settings) -> str:
    """16 hex digits that change iff a setting changes."""
    return hashlib.sha256(msgspec.json.encode(settings, order="deterministic")).hexdigest()[:16]


def _flatten(prefix: str, table: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _DEEPEST:
        raise Refused("invalid", f"settings are nested deeper than {_DEEPEST} tables at {prefix[:100]!r}")
    for name, value in table.items():
        if not isinstance(name, str):
            raise Refused("invalid", f"key {name!r} is no text; expected a dotted key")
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flatten(f"{key}.", value, depth + 1)
        else:
            yield key, value


def _targets(key: str) -> tuple[str, ...]:
    if key in setting_keys():
        return (key,)
    published = key.removeprefix("rules.")
    if published in ALIASES:
        return ALIASES[published]
    known = [*setting_keys(), *ALIASES]
    if any(each.startswith(f"{key}.") for each in known):
        raise Refused("invalid", f"{key} is a table; expected a value for one of its keys", path=f"$.{key}")
    nearest = difflib.get_close_matches(key[:200], known, n=1, cutoff=0.0)[0]
    raise Refused(
        "unknown_field",
        f"unknown setting {key[:200]!r}; the nearest known one is {nearest!r}",
        path=f"$.{key[:200]}",
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return document["value"] if len(document) == 1 else text


def _checked(key: str, setting: Setting, value: Any) -> Any:
    if isinstance(value, str) and setting.kind not in {"text", "choice"}:
        value = _parsed(value)
    if isinstance(value, list):
        value = tuple(value)
    if not _fits(setting, value):
        shown = repr(value) if not isinstance(value, tuple) else repr(list(value))
        name = key if key == setting.key else f"{key} ({setting.key})"
        raise Refused(
            "invalid", f"{name} is {shown[:200]}; expected {setting.expected}", path=f"$.{setting.key}"
        )
    return value


def _fits(setting: Setting, value: Any) -> bool:
    if setting.kind == "boolean":
        return isinstance(value, bool)
    if setting.kind == "choice":
        return value in setting.choices
    if setting.kind == "text":
        return isinstance(value, str) and _within(len(value), setting.minimum, setting.maximum)
    if setting.kind == "integers":
        return (
            isinstance(value, tuple)
            and _within(len(value), setting.minimum, setting.maximum)
            and all(
                type(item) is int and _within(item, setting.item_minimum, setting.item_maximum)
                for item in value
            )
        )
    if type(value) is int or (setting.kind == "number" and type(value) is float):
        return _within(value, setting.minimum, setting.maximum)
    return False


def _within(value: float, minimum: float | None, maximum: float | None) -> bool:
    # not-a-number compares false with any bound, so it fits nowhere
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def _refuse_contradictions(settings: Settings) -> None:
    wrong = tool_repetition.contradiction(settings.rules.tool_repetition)
    if wrong is not None:
        raise Refused("invalid", wrong, path="$.rules.tool_repetition.min_tool_turns")
    found = contradiction(settings.rules)
    if found is not None:
        raise Refused("invalid", found[1], path=f"$.rules.{found[0]}")
    stop = limits.contradiction(settings.stop)
    if stop is not None:
        raise Refused("invalid", stop[1], path=f"$.stop.{stop[0]}")
    gate = settings.gate
    if gate.provider_backoff_ms > gate.provider_backoff_max_ms:
        raise Refused(
            "invalid",
            f"gate.provider_backoff_ms is {gate.provider_backoff_ms}; expected at most "
            f"gate.provider_backoff_max_ms, which is {gate.provider_backoff_max_ms}",
            path="$.gate.provider_backoff_ms",
        )
