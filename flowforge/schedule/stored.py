"""Rules as they are stored: a kind, and plain JSON data."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any, NamedTuple

from flowforge.errors import DefinitionError
from flowforge.schedule.cron import Cron
from flowforge.schedule.rules import At, Calendar, Every

Rule = Cron | Every | Calendar | At

_INTERVALS = ("years", "months", "weeks", "days")


class Stored(NamedTuple):
    """A rule's kind, its data and its time zone."""

    kind: str
    data: dict[str, Any]
    timezone: str


def store(rule: Rule) -> Stored:
    """Return what is stored of a rule."""
    match rule:
        case Cron():
            data: dict[str, Any] = {"expression": " ".join(rule.expression.split())}
        case Every():
            assert isinstance(rule.interval, timedelta)
            data = {"seconds": rule.interval.total_seconds(), "anchor": rule.anchor.isoformat()}
        case Calendar():
            interval = {name: getattr(rule, name) for name in _INTERVALS if getattr(rule, name)}
            data = {"first": rule.first.isoformat(), "at": rule.at.isoformat(), **interval}
        case At():
            data = {"moment": rule.moment.isoformat()}
    return Stored(type(rule).__name__.lower(), data, rule.timezone)


def load(stored: Stored) -> Rule:
    """Return the rule that was stored. Raises `DefinitionError` for what is none."""
    kind, data, timezone = stored
    try:
        match kind:
            case "cron":
                return Cron(data["expression"], timezone)
            case "every":
                return Every(data["seconds"], datetime.fromisoformat(data["anchor"]), timezone)
            case "calendar":
                interval = {name: data.get(name, 0) for name in _INTERVALS}
                first, at = date.fromisoformat(data["first"]), time.fromisoformat(data["at"])
                return Calendar(first, **interval, at=at, timezone=timezone)
            case "at":
                return At(datetime.fromisoformat(data["moment"]), timezone)
    except (KeyError, TypeError, ValueError) as error:
        raise DefinitionError(f"stored rule {stored} cannot be read: {error!r}") from error
    raise DefinitionError(f"stored rule {stored} has an unknown kind: this release is older than who stored it")
