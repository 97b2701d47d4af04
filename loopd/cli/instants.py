"""Durations and moments as people write and read them."""

from __future__ import annotations

import re
import time

SECOND, MINUTE, HOUR, DAY, WEEK = 1_000, 60_000, 3_600_000, 86_400_000, 604_800_000
_UNITS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}
_PART = re.compile(r"([0-9]{1,15})(ms|[smhdw])")
_WHOLE = re.compile(r"(?:[0-9]{1,15}(?:ms|[smhdw]))+\Z")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MAX_MS = 2**53 - 1

DURATION_EXPECTED = "a duration such as 90s, 5m, 1h30m, 2d"
MOMENT_EXPECTED = "a moment such as 30m, +2h, 18:00, 'tomorrow 09:00', 2026-11-22T09:00Z or @1795338000"
PAST_EXPECTED = (
    "a moment such as 8h (ago), 18:00, 'yesterday 09:00', monday, 2026-11-21T18:00Z or @1795200000"
)


def now_ms() -> int:
    """The wall clock of this machine: the operator says "in two hours" here, not on the daemon."""
    return time.time_ns() // 1_000_000


def duration_ms(text: str) -> int:
    """Parse a duration: units `ms s m h d w`, largest first or not, no spaces.

    Raises:
        ValueError: with what was met and what was expected.
    """
    word = text.strip().lower()
    if not _WHOLE.match(word):
        raise ValueError(f"{text!r} is no duration; expected {DURATION_EXPECTED}")
    total = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(word))
    if total > MAX_MS:
        raise ValueError(f"{text!r} is longer than {MAX_MS} ms")
    return total


def moment_ms(text: str, now: int) -> int:
    """Parse a moment to milliseconds since the epoch. Clock times are local.

    Accepts a duration from `now` (with or without `+`), `HH:MM[:SS]` (the next one to come),
    `today|tomorrow|monday… [HH:MM]`, ISO 8601 (local without an offset) and `@SECONDS`.

    Raises:
        ValueError: unreadable, or not after `now`.
    """
    found = _moment(text.strip(), now)
    if found is None:
        raise ValueError(f"{text!r} is no moment; expected {MOMENT_EXPECTED}")
    if found > MAX_MS:
        raise ValueError(f"{text!r} is too far away")
    if found <= now:
        raise ValueError(f"{text!r} is {span(now - found)} ago; expected a moment to come")
    return found


def past_ms(text: str, now: int) -> int:
    """Parse a moment that lies behind us, to milliseconds since the epoch. Clock times are local.

    Accepts a duration (that long ago), `HH:MM[:SS]` (the last one), `today|yesterday|monday… [HH:MM]`,
    ISO 8601 (local without an offset) and `@SECONDS`.

    Raises:
        ValueError: unreadable, or not before `now`.
    """
    word = text.strip().lower()
    day, _, rest = word.partition(" ")
    found: int | None
    if _WHOLE.match(word):
        found = now - duration_ms(word)
    elif _CLOCK.match(word):
        found = _local(now, 0, word)
        if found is not None and found > now:
            found = _local(now, -1, word)
    elif day in {"today", "yesterday"}:
        found = _local(now, 0 if day == "today" else -1, rest.strip() or "00:00")
    elif day in _DAYS:
        behind = (time.localtime(now // 1_000).tm_wday - _DAYS.index(day)) % 7
        found = _local(now, -behind, rest.strip() or "00:00")
        if found is not None and found > now:
            found = _local(now, -behind - 7, rest.strip() or "00:00")
    else:
        found = _moment(text.strip(), now)
    if found is None:
        raise ValueError(f"{text!r} is no moment; expected {PAST_EXPECTED}")
    if found > now:
        raise ValueError(f"{text!r} is still to come in {span(found - now)}; expected a moment behind us")
    return found


def _moment(text: str, now: int) -> int | None:
    word = text.lower()
    if _WHOLE.match(word.removeprefix("+")):
        return now + duration_ms(word.removeprefix("+"))
    if word.startswith("@"):
        return int(word[1:]) * 1_000 if word[1:].isascii() and word[1:].isdigit() and len(word) < 14 else None
    if _DATE.match(word):
        return _iso(text)
    day, _, rest = word.partition(" ")
    if _CLOCK.match(word):
        at = _local(now, 0, word)
        return _local(now, 1, word) if at is not None and at <= now else at
    if day == "today":
        return _local(now, 0, rest.strip())
    if day == "tomorrow":
        return _local(now, 1, rest.strip() or "00:00")
    if day in _DAYS:
        ahead = (_DAYS.index(day) - time.localtime(now // 1_000).tm_wday) % 7
        at = _local(now, ahead, rest.strip() or "00:00")
        return _local(now, ahead + 7, rest.strip() or "00:00") if at is not None and at <= now else at
    return None


def _local(now: int, days: int, clock: str) -> int | None:
    match = _CLOCK.match(clock)
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    today = time.localtime(now // 1_000)
    stamp = (today.tm_year, today.tm_mon, today.tm_mday + days, hours, minutes, seconds, 0, 0, -1)
    return int(time.mktime(stamp)) * 1_000


def _iso(text: str) -> int | None:
    from datetime import datetime

    try:
        parsed = datetime.fromisoformat(text)
        return int(parsed.timestamp() * 1_000)  # without an offset: local time
    except (ValueError, OverflowError, OSError):
        return None


def span(ms: int) -> str:
    """A duration for people, in at most two units: `0.4s`, `59s`, `3m 20s`, `2h 5m`, `3d 4h`."""
    if ms < 0:
        return f"-{span(-ms)}"
    if ms < 10 * SECOND:
        return f"{ms / SECOND:.1f}s".replace(".0s", "s")
    for big, small, big_ms, small_ms in (
        ("d", "h", DAY, HOUR),
        ("h", "m", HOUR, MINUTE),
        ("m", "s", MINUTE, SECOND),
    ):
        if ms >= big_ms:
            rest = ms % big_ms // small_ms
            return f"{ms // big_ms}{big} {rest}{small}" if rest else f"{ms // big_ms}{big}"
    return f"{ms // SECOND}s"


def clock(at: int, now: int) -> str:
    """A moment in local time: `18:05` within twelve hours, else with its date."""
    near = abs(at - now) < 12 * HOUR  # too near for two moments with the same clock time
    return time.strftime("%H:%M" if near else "%Y-%m-%d %H:%M", _struct(at))


def until(at: int | None, now: int) -> str:
    """What stands after "until": `18:05 (in 58m)`, `18:05 (12s overdue)`; None is `you lift it`."""
    if at is None:
        return "you lift it"
    left = f"in {span(at - now)}" if at >= now else f"{span(now - at)} overdue"
    return f"{clock(at, now)} ({left})"


def stamp(at: int) -> str:
    """Local wall time of an event line: `2026-11-21 18:05:09`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", _struct(at))


def _struct(ms: int) -> time.struct_time:
    return time.localtime(min(ms // 1_000, 253_402_214_400))  # the last day of year 9999
