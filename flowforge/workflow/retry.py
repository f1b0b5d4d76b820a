"""How often a task may start again and how long it waits before, with durations in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from flowforge.errors import DefinitionError

Duration = timedelta | float | str

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST = {"attempts": 1000, "lost": 1000, "factor": 100}


def seconds(duration: Duration, name: str) -> float:
    """
    Return a duration in seconds: a timedelta, a number of seconds, or a text such as `500ms`, `1.5s`, `10m`, `2h`, `1d`.

    Raises `DefinitionError` that names the option and the value.
    """
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, int | float):
        return float(duration)
    if match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", duration):
        return float(match[1]) * _UNITS[match[2]]
    raise DefinitionError(
        f"{name}={duration!r}: write seconds as a number, or a text such as '500ms', '1s', '10m', '2h'"
    )


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
        for name, least in (("attempts", 1), ("lost", 0), ("factor", 1)):
            value, most = getattr(self, name), _MOST[name]
            if not least <= value <= most:
                raise DefinitionError(f"Retry({name}={value!r}): it must lie between {least} and {most}")
        delay, longest = seconds(self.delay, "delay"), seconds(self.max_delay, "max_delay")
        if not 0 <= delay <= longest:
            raise DefinitionError(f"Retry(delay={self.delay!r}, max_delay={self.max_delay!r}): 0 <= delay <= max_delay")
