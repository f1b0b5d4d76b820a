"""Slots one after the other, of whatever has them."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST_SPAN, _FACTOR = timedelta(minutes=5), 8
_LONGEST = timedelta(days=366 * 50)  # that is looked back


class HasSlots(Protocol):
    """A rule or a trigger."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot after an instant."""


def slots(rule: HasSlots, moment: datetime) -> Iterator[datetime]:
    """Yield the slots after an instant, in UTC."""
    while (found := rule.after(moment)) is not None:
        yield found
        moment = found


def between(rule: HasSlots, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the slots after one instant and before another."""
    return takewhile(lambda slot: slot < end, slots(rule, start))


def latest(rule: HasSlots, end: datetime, count: int, *, start: datetime | None = None) -> list[datetime]:
    """
    Return the last slots before an instant, at most `count` of them, the earliest first; none at or before `start`.

    A rule only knows what comes next, so that this looks at longer and longer times before `end`.
    """
    floor, span = start or end - _LONGEST, _FIRST_SPAN
    while True:
        begin = max(end - span, floor)
        found = deque(between(rule, begin, end), maxlen=count)
        if len(found) == count or begin == floor:
            return list(found)
        span *= _FACTOR
