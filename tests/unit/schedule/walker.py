"""
An independent oracle for cron: it looks at every minute that a zone's clocks show, and knows nothing of cronsim.

The written rule: where minute and hour are fixed, a local time that a clock change leaves out comes with the first
minute after it, and one that comes twice counts the first time. Where either begins with a star, every shown minute
counts.
"""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    import random

MINUTE = timedelta(minutes=1)
_DAYS = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}
_MONTHS = {
    name: number
    for number, name in enumerate(
        ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], 1
    )
}


class Shown(NamedTuple):
    """A minute of time, what clocks show in it, whether they showed that before, and what they left out before it."""

    at: datetime
    local: datetime
    again: bool
    left_out: list[datetime]


def walk(expression: str, minutes: list[Shown]) -> list[datetime]:
    """Return the minutes in which a job runs."""
    minute, hour, day, month, weekday = expression.upper().split()
    fixed = not minute.startswith("*") and not hour.startswith("*")
    numbers = _numbers(minute, 0, 59), _numbers(hour, 0, 23), _numbers(month, 1, 12, _MONTHS)

    def matches(local: datetime) -> bool:
        if local.minute not in numbers[0] or local.hour not in numbers[1] or local.month not in numbers[2]:
            return False
        return _is_right_day(day, weekday, local.date())

    def runs(shown: Shown) -> bool:
        if not fixed:
            return matches(shown.local)
        return (matches(shown.local) and not shown.again) or any(map(matches, shown.left_out))

    return [shown.at for shown in minutes if runs(shown)]


def _numbers(field: str, low: int, high: int, names: dict[str, int] | None = None) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            begin, end = low, high
        else:
            begin = (names or {}).get(first) or int((names or {}).get(first, first))
            end = int((names or {}).get(last, last or 0)) if dash else high if step else begin
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


@lru_cache(maxsize=4096)
def _is_right_day(day: str, weekday: str, local: date) -> bool:
    by_day, by_weekday = _is_day(day, local), _is_weekday(weekday, local)
    either = not day.startswith("*") and not weekday.startswith("*")
    return (by_day or by_weekday) if either else (by_day and by_weekday)


def _is_day(field: str, local: date) -> bool:
    parts = field.split(",")
    last = calendar.monthrange(local.year, local.month)[1]
    plain = [part for part in parts if part != "L"]
    return ("L" in parts and local.day == last) or (bool(plain) and local.day in _numbers(",".join(plain), 1, 31))


def _is_weekday(field: str, local: date) -> bool:
    today = (local.weekday() + 1) % 7
    for part in field.split(","):
        name, nth, number = part.partition("#")
        days = {day % 7 for day in _numbers(name, 0, 7, _DAYS)}
        if today in days and (not nth or (local.day - 1) // 7 + 1 == int(number)):
            return True
    return False


def minutes(zone: str, start: datetime, end: datetime) -> list[Shown]:
    """Return every minute after `start` and before `end`."""
    place, found = ZoneInfo(zone), list[Shown]()
    at, before = start + MINUTE, start.astimezone(place).replace(tzinfo=None)
    while at < end:
        there = at.astimezone(place)
        local = there.replace(tzinfo=None)
        skipped = max(round((local - before) / MINUTE) - 1, 0)
        found.append(Shown(at, local, there.fold == 1, [before + MINUTE * n for n in range(1, skipped + 1)]))
        at, before = at + MINUTE, local
    return found


def changes(zone: str, first_year: int, last_year: int) -> list[datetime]:
    """Return the minutes at which a zone's clocks are set."""
    place, found = ZoneInfo(zone), list[datetime]()
    at, end = datetime(first_year, 1, 1, tzinfo=UTC), datetime(last_year + 1, 1, 1, tzinfo=UTC)
    while at < end:
        after = at + timedelta(hours=1)
        if after.astimezone(place).utcoffset() != at.astimezone(place).utcoffset():
            ahead = (at + MINUTE * n for n in range(1, 61))
            found.append(next(m for m in ahead if m.astimezone(place).utcoffset() != at.astimezone(place).utcoffset()))
        at = after
    return found


def expression(dice: random.Random) -> str:
    """Return an expression; most of them have to do with the hours in which clocks are set."""
    hours = _field(dice, 0, 4, 0.2) if dice.random() < 0.6 else _field(dice, 0, 23, 0.2)
    day = "L" if dice.random() < 0.05 else _field(dice, 1, 31, 0.6)
    weekday = f"{dice.randint(0, 6)}#{dice.randint(1, 5)}" if dice.random() < 0.05 else _field(dice, 0, 7, 0.6)
    return " ".join([_field(dice, 0, 59, 0.1), hours, day, _field(dice, 1, 12, 0.8), weekday])


def _field(dice: random.Random, low: int, high: int, stars: float) -> str:
    kind = dice.random() - stars
    if kind < 0:
        return "*"
    if kind < 0.15:
        return f"*/{dice.randint(2, high // 2)}"
    if kind < 0.55:
        return str(dice.randint(low, high))
    if kind < 0.75:
        begin = dice.randint(low, high - 1)
        return f"{begin}-{dice.randint(begin + 1, high)}" + (f"/{dice.randint(1, 5)}" if dice.random() < 0.5 else "")
    return ",".join(str(number) for number in sorted(dice.sample(range(low, high + 1), 3)))
