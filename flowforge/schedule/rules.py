"""The kinds of rules beside crontab's: every so often, by the calendar, and once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import dropwhile
from typing import TYPE_CHECKING

from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger

from flowforge.durations import Duration, positive
from flowforge.errors import DefinitionError
from flowforge.schedule.zones import instant, local, zone

if TYPE_CHECKING:
    from collections.abc import Iterator

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORTEST = timedelta(seconds=1)
_MOST = {"years": 100, "months": 1_200, "weeks": 5_200, "days": 36_500}


def aware(moment: datetime, name: str) -> datetime:
    """Return an instant in UTC. Raises `DefinitionError` for a time without offset, which is another in each place."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise DefinitionError(f"{name}={moment!r}: give a datetime with an offset, as datetime(…, tzinfo=UTC)")
    return moment.astimezone(UTC)


@dataclass(frozen=True)
class Every:
    """
    Every `interval` of at least a second, counted from `anchor`: so no restart and no deploy moves it.

    Time that passes is what counts, not what clocks show: for "each day at nine" there is `Cron`.
    """

    interval: Duration
    anchor: datetime = _EPOCH
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Refuse what is no duration, and an instant that is none."""
        interval = timedelta(seconds=positive(self.interval, "interval"))
        if interval < _SHORTEST:
            raise DefinitionError(f"interval={self.interval!r}: it must be at least a second")
        object.__setattr__(self, "interval", interval)
        object.__setattr__(self, "anchor", aware(self.anchor, "anchor"))
        zone(self.timezone)

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot after an instant, in UTC."""
        assert isinstance(self.interval, timedelta)
        return self.anchor + ((moment - self.anchor) // self.interval + 1) * self.interval

    @property
    def words(self) -> str:
        """What it says, in English."""
        return f"Every {self.interval}, counted from {self.anchor.isoformat()}"


@dataclass(frozen=True)
class Calendar:
    """
    At `at` by the zone's clocks, on the day `first` and then each time so many years, months, weeks and days later.

    The day of the month stays: from the 31st, months without one are left out. A time that a clock change leaves out
    comes right after it, and one that comes twice, once.
    """

    first: date
    years: int = 0
    months: int = 0
    weeks: int = 0
    days: int = 0
    at: time = time()
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Refuse an interval that is none, or longer than a century."""
        zone(self.timezone)
        if not isinstance(self.first, date) or isinstance(self.first, datetime):
            raise DefinitionError(f"first={self.first!r}: give a date")
        if not isinstance(self.at, time) or self.at.tzinfo is not None:
            raise DefinitionError(f"at={self.at!r}: give a time without an offset, because timezone says where")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= most:
                raise DefinitionError(f"{name}={value!r}: it must be a whole number between 0 and {most}")
        if not any(getattr(self, name) for name in _MOST):
            raise DefinitionError("a calendar rule needs years, months, weeks or days")

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot after an instant, in UTC."""
        place = zone(self.timezone)
        instants = (instant(datetime.combine(day, self.at), place) for day in self._days(local(moment, place).date()))
        return next(dropwhile(lambda found: found <= moment, instants), None)

    @property
    def words(self) -> str:
        """What it says, in English."""
        span = ", ".join(f"{getattr(self, name)} {name}" for name in _MOST if getattr(self, name))
        return f"At {self.at.isoformat('minutes')} every {span} from {self.first}, {self.timezone}"

    def _days(self, near: date) -> Iterator[date]:
        """Yield the days of the rule: from the first, or, where that is the same, from one shortly before `near`."""
        interval = {name: getattr(self, name) for name in _MOST}
        days, first = self.weeks * 7 + self.days, self.first
        if not (self.years or self.months) and near > first:
            first += timedelta(days=max((near - first).days // days - 1, 0) * days)
        days_of = CalendarIntervalTrigger(**interval, start_date=first, timezone=UTC)
        found = None
        while (found := days_of.get_next_fire_time(found, _EPOCH)) is not None:
            yield found.date()


@dataclass(frozen=True)
class At:
    """Once."""

    moment: datetime
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Refuse a time without an offset."""
        object.__setattr__(self, "moment", aware(self.moment, "moment"))
        zone(self.timezone)

    def after(self, moment: datetime) -> datetime | None:
        """Return the slot, unless it is over."""
        return self.moment if self.moment > moment else None

    @property
    def words(self) -> str:
        """What it says, in English."""
        return f"Once, at {self.moment.astimezone(zone(self.timezone)).isoformat()}"
