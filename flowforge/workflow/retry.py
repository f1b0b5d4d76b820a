"""How often a task may start again, and how long it waits before."""

from __future__ import annotations

from dataclasses import dataclass

from flowforge.durations import Duration, seconds
from flowforge.errors import DefinitionError

#: Option -> (its type, least, most), as the database holds it.
_BOUNDS = {"attempts": (int, 1, 1000), "lost": (int, 0, 1000), "factor": (int | float, 1, 100)}


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
