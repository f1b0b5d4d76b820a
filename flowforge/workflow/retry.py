"""How often a task may start again and how long it waits before, with durations in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from flowforge.errors import DefinitionError

Duration = timedelta | float | str

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 366 * 86400.0
#: Option -> (its type, least, most), as the database holds it.
_BOUNDS = {"attempts": (int, 1, 1000), "lost": (int, 0, 1000), "factor": (int | float, 1, 100)}


def seconds(duration: Duration, name: str) -> float:
    """
    Return a duration in seconds: of a timedelta, a number of seconds, or a text such as `500ms`, `1.5s`, `10m`, `1d`.

    Raises `DefinitionError` that names the option and the value.
    """
    value = _seconds(duration)
    if value is None:
        raise DefinitionError(
            f"{name}={duration!r}: write seconds as a number, or a text such as '500ms', '1s', '10m', '2h'"
        )
    if not 0 <= value <= _LONGEST:
        raise DefinitionError(f"{name}={duration!r}: it must lie between 0 and {_LONGEST:.0f} seconds")
    return value


def positive(duration: Duration, name: str) -> float:
    """Return a duration in seconds. Raises `DefinitionError` unless it is more than none."""
    if (value := seconds(duration, name)) <= 0:
        raise DefinitionError(f"{name}={duration!r} must be positive")
    return value


def _seconds(duration: object) -> float | None:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, int | float):
        return float(duration)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", duration) if isinstance(duration, str) else None
    return float(match[1]) * _UNITS[match[2]] if match else None


@dataclass(frozen=True)
class Retry:
    """
    Starts and waits of one task.

    `attempts` counts all starts of a function that fails, `lost` the further starts when its worker is lost. The n-th
    retry waits `delay` x `factor`^(n-1), at most `max_delay`, less a random quarter so that failures spread.
    """

    attempts: int = 1
    lost: int = 2
    delay: Duration = "1s"
    factor: float = 2.0
    max_delay: Duration = "5m"

    def __post_init__(self) -> None:
        """Refuse what the database would refuse, with the name of the option."""
        for name, (kind, least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not (isinstance(value, kind) and least <= value <= most):
                number = "a whole number" if kind is int else "a number"
                raise DefinitionError(f"Retry({name}={value!r}): it must be {number} between {least} and {most}")
        delay, longest = seconds(self.delay, "delay"), seconds(self.max_delay, "max_delay")
        if delay > longest:
            raise DefinitionError(f"Retry(delay={self.delay!r}, max_delay={self.max_delay!r}): delay is the longer one")
