"""
Local times and instants: what a clock change does to a fire time, decided once for every kind of rule.

A local time that a change leaves out stands for the first minute after it; one that comes twice, for its first pass.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from flowforge.errors import DefinitionError, did_you_mean

_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """Return the IANA time zone of that name. Raises `DefinitionError` with the nearest right one."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        near = did_you_mean(str(name), available_timezones())
        raise DefinitionError(
            f"timezone={name!r} is no IANA time zone{near}: write one such as 'Europe/Berlin', or 'UTC'"
        ) from None


def offset(moment: datetime, place: ZoneInfo) -> timedelta:
    """Return how far a zone's clocks are ahead of UTC at an instant."""
    ahead = moment.astimezone(place).utcoffset()
    assert ahead is not None
    return ahead


def local(moment: datetime, place: ZoneInfo) -> datetime:
    """Return what a zone's clocks show at an instant, without an offset."""
    return moment.astimezone(place).replace(tzinfo=None)


def instant(shown: datetime, place: ZoneInfo) -> datetime:
    """Return the instant, in UTC, that a local time stands for: see this module's text."""
    while not exists(shown, place):
        shown = shown.replace(second=0, microsecond=0) + _MINUTE
    return shown.replace(tzinfo=place, fold=0).astimezone(UTC)


def exists(shown: datetime, place: ZoneInfo) -> bool:
    """Whether a zone's clocks ever show this local time."""
    return local(shown.replace(tzinfo=place).astimezone(UTC), place) == shown


def comes_twice(shown: datetime, place: ZoneInfo) -> bool:
    """Whether a zone's clocks show this local time twice."""
    first, second = (shown.replace(tzinfo=place, fold=fold).utcoffset() for fold in (0, 1))
    return first != second and exists(shown, place)


def change(start: datetime, end: datetime, place: ZoneInfo) -> datetime | None:
    """Return the first minute after `start`, and no later than `end`, at which a zone's clocks are set."""
    before, low = offset(start, place), start
    while low < end:
        high = min(low + _DAY, end)
        if offset(high, place) != before:
            return _bisect(low, high, before, place)
        low = high
    return None


def _bisect(low: datetime, high: datetime, before: timedelta, place: ZoneInfo) -> datetime:
    while high - low > _MINUTE:
        middle = low + (high - low) / 2
        low, high = (middle, high) if offset(middle, place) == before else (low, middle)
    return high.replace(second=0, microsecond=0)
