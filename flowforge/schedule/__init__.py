"""
When triggers fire: pure functions of a rule and an instant. No I/O, and no clock.

An instant is an aware datetime, and comes back in UTC. A rule is known by `after`: the first slot after an instant.
From any instant the same slots follow, each later than the one before.
"""

from __future__ import annotations

from flowforge.schedule.cron import Cron
from flowforge.schedule.preview import Upcoming, preview
from flowforge.schedule.rules import At, Calendar, Every
from flowforge.schedule.slots import SLOT, SlotValue
from flowforge.schedule.stored import Rule
from flowforge.schedule.trigger import Trigger

__all__ = [
    "SLOT",
    "At",
    "Calendar",
    "Cron",
    "Every",
    "Rule",
    "SlotValue",
    "Trigger",
    "Upcoming",
    "preview",
]
