"""
Crontab's five fields in a time zone, by Debian's rules; cronsim knows the grammar, and which local times match.

What a clock change does (Debian's cron(8)): where minute and hour are both fixed, a time that a change leaves out comes
right after it, and one that comes twice, once. Where either begins with a star, every minute counts that is shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import dropwhile
from typing import TYPE_CHECKING

from cronsim import CronSim, CronSimError

from flowforge.errors import DefinitionError
from flowforge.once import once
from flowforge.schedule.zones import change, instant, local, offset, zone

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_LONGEST = 255  # characters of an expression
_SECOND = timedelta(seconds=1)
#: Position of a field -> the number of the first name, and the names.
_NAMES = {
    3: (1, ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]),
    4: (0, ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]),
}
_LONG_AGO = datetime(2000, 1, 1)  # noqa: DTZ001 - by no particular clocks
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True)
class Cron:
    """
    Five fields (minute, hour, day of month, month, day of week) and an IANA time zone.

    Names in any case (`MON-FRI`, `jan`); 0 and 7 are Sunday; `L` is the last day of the month, `FRI#2` its second
    Friday. Where both day fields are restricted, either may match; where one begins with a star, both must. Raises
    `DefinitionError` that names the field.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Refuse what cannot be read, and what never comes."""
        zone(self.timezone)
        _check(self.expression)

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot after an instant, in UTC."""
        return self._after_fixed(moment) if self._is_fixed else self._after_every(moment)

    @property
    def words(self) -> str:
        """What it says, in English."""
        return f"{CronSim(self.expression, _LONG_AGO).explain()}, {self.timezone}"

    @once
    def _is_fixed(self) -> bool:
        return not any(part.startswith("*") for part in self.expression.split()[:2])

    def _shown(self, shown: datetime) -> Iterator[datetime]:
        """Yield the local times after one that match, as if no clock was ever set."""
        return CronSim(self.expression, shown)

    def _after_fixed(self, moment: datetime) -> datetime | None:
        place = zone(self.timezone)
        instants = (instant(shown, place) for shown in self._shown(local(moment, place)))
        return next(dropwhile(lambda found: found <= moment, instants), None)

    def _after_every(self, moment: datetime) -> datetime | None:
        """Look on as if no clock was set; if one is, before what was found, look again from there by the new time."""
        place = zone(self.timezone)
        start, clock = moment, local(moment, place)
        while (shown := next(self._shown(clock), None)) is not None:
            found = shown.replace(tzinfo=UTC) - offset(start, place)
            changed = change(start, found, place)
            if changed is None:
                return found
            start, clock = changed, local(changed, place) - _SECOND
        return None


def _check(expression: str) -> None:
    """Raise `DefinitionError` unless it has five fields that can be read, with steps that fit, and days that come."""
    if not isinstance(expression, str) or len(expression) > _LONGEST:
        raise DefinitionError(f"cron expression {expression!r:.60}: it must be a text of at most {_LONGEST} characters")
    if remedy := _NICKNAMES.get(expression.strip().lower()):
        raise DefinitionError(f"cron expression {expression!r}: write its five fields, {remedy!r}")
    parts = expression.split()
    if len(parts) != len(_FIELDS):
        told = f"has {len(parts)} fields: write five, minute hour day-of-month month day-of-week"
        raise DefinitionError(f"cron expression {expression!r} {told}")
    for number, part in enumerate(parts):
        if problem := _problem(number, part):
            raise DefinitionError(f"cron expression {expression!r}: {_FIELDS[number]} {part!r} {problem}")
    if not _comes(expression):
        raise DefinitionError(f"cron expression {expression!r} never occurs: no month of it has such a day")


def _comes(expression: str) -> bool:
    try:
        return next(CronSim(expression, _LONG_AGO), None) is not None
    except CronSimError:  # as its fields can be read, it says that no month is that long
        return False


def _problem(number: int, part: str) -> str | None:
    """Say what is wrong with a field, if anything is."""
    lowest, highest = _BOUNDS[number]
    for step in re.findall(r"/(\d+)", part):
        if not 1 <= int(step) <= highest:
            return f"has the step {step}: it must lie between 1 and {highest}"
    for low, high in re.findall(r"(\d+)-(\d+)", _in_numbers(number, part)):
        if int(low) > int(high):
            return f"goes backwards: write two ranges, {low}-{highest} and {lowest}-{high}"
    alone = " ".join(part if position == number else "*" for position in range(len(_FIELDS)))
    try:
        CronSim(alone, _LONG_AGO)
    except CronSimError:
        return f"cannot be read: write a star, a number from {lowest} to {highest}, a range, or a list of those"
    return None


def _in_numbers(number: int, part: str) -> str:
    first, names = _NAMES.get(number, (0, []))
    return re.sub(r"[A-Z]{3}", lambda name: str(first + names.index(name[0])) if name[0] in names else "", part.upper())
