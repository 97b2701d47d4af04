"""When is a cron expression due? Pure: the moment is handed in, time zones come from tzdata.

Daylight saving follows Debian's cron (as `cronsim` implements it): jobs with a fixed hour run once
on the day of a change, jobs with a wildcard hour follow the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from loopd_protocol.errors import Refused

LATE_MS = 60_000
"""An occurrence that is looked at later than this was missed: the daemon was down or asleep."""

ENUMERATED = 10_000
"""Missed moments of one job that are accounted one by one; a week of minutes is 10,080."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TWICE = timedelta(hours=3)
"""So long behind a change of the clocks the time of day may be one that comes twice."""


def _moments(expr: str, tz: str, after_ms: int) -> Iterator[datetime]:
    """Due moments strictly after `after_ms`, the same ones wherever it begins."""
    try:
        zone = ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Refused("invalid", f"time zone {tz!r} is not known", path="$.tz") from error
    after = _EPOCH + timedelta(milliseconds=after_ms)
    start, earlier = after.astimezone(zone), (after - _TWICE).astimezone(zone)
    if start.utcoffset() != earlier.utcoffset():
        start = earlier  # CronSim takes the second 02:30 of a day for the first, and would begin in the past
    try:
        moments = CronSim(expr, start)
    except CronSimError as error:
        raise Refused("invalid", f"cron expression {expr!r}: {error}", path="$.expr") from error
    return (moment for moment in moments if _ms(moment) > after_ms)


def next_due(expr: str, tz: str, after_ms: int) -> int | None:
    """First due moment strictly after `after_ms`, or None when there is none in 50 years.

    Raises:
        Refused: `invalid` for an expression or a time zone that does not exist.
    """
    moment = next(_moments(expr, tz, after_ms), None)
    return None if moment is None else _ms(moment)


def upcoming(expr: str, tz: str, after_ms: int, count: int) -> list[int]:
    """The next `count` due moments, fewer when the expression runs out."""
    moments = _moments(expr, tz, after_ms)
    return [_ms(moment) for moment, _ in zip(moments, range(count), strict=False)]


def due_between(expr: str, tz: str, first_ms: int, now: int) -> tuple[list[int], int | None, bool]:
    """Due moments from `first_ms` (which is one) up to `now`, the next one after, and if it was cut.

    At most `ENUMERATED` moments are listed: the oldest and, last, the newest, which a policy may still
    deliver. Then the third value is true and those between are not counted.
    """
    due = [first_ms]
    for moment in _moments(expr, tz, first_ms):
        at = _ms(moment)
        if at > now:
            return due, at, False
        if len(due) >= ENUMERATED:
            return [*due[:-1], _newest(expr, tz, now)], next_due(expr, tz, now), True
        due.append(at)
    return due, None, False


def _newest(expr: str, tz: str, now: int) -> int:
    """The last due moment up to `now`, looked for further and further back; there must be one."""
    span_ms = 60_000
    while True:
        newest = None
        for moment in _moments(expr, tz, now - span_ms):
            if _ms(moment) > now:
                break
            newest = _ms(moment)
        if newest is not None:
            return newest
        span_ms *= 2


def _ms(moment: datetime) -> int:
    return round((moment - _EPOCH).total_seconds() * 1000)
