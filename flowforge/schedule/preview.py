"""The next slots, as people want to see them before they believe in a rule."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from flowforge.schedule.sequence import slots
from flowforge.schedule.zones import comes_twice, local, offset, zone

if TYPE_CHECKING:
    from flowforge.schedule.sequence import HasSlots

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Upcoming:
    """A slot: in UTC, by the zone's clocks, and what a change of those does to it, if anything."""

    slot: datetime
    local: datetime
    note: str


def preview(rule: HasSlots, moment: datetime, timezone: str, *, count: int) -> list[Upcoming]:
    """Return the next slots after an instant."""
    place = zone(timezone)
    return [
        Upcoming(slot, slot.astimezone(place), _note(slot, timezone)) for slot in islice(slots(rule, moment), count)
    ]


def _note(slot: datetime, timezone: str) -> str:
    place = zone(timezone)
    if offset(slot, place) > offset(slot - _MINUTE, place):
        return "clocks have just gone forward"
    if comes_twice(local(slot, place), place):
        which = "second" if slot.astimezone(place).fold else "first"
        return f"clocks go back: this time comes twice, and this is the {which}"
    return ""
