"""Durations as people write them: a number of seconds, a timedelta, or a text such as `90s` and `2h`."""

from __future__ import annotations

import re
from datetime import timedelta

from flowforge.errors import DefinitionError

Duration = timedelta | float | str

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 366 * 86400.0


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
