"""What goes wrong, and when: drawn from a seed before anything starts, so that it can be replayed."""

from __future__ import annotations

import random
from typing import NamedTuple

#: How often each kind is drawn.
WEIGHTS = {
    "kill worker": 5,
    "freeze worker": 4,
    "terminate worker": 2,
    "kill scheduler": 3,
    "freeze scheduler": 3,
    "cut postgres": 4,
    "cut redis": 4,
    "stall postgres": 2,
    "stall redis": 2,
    "wipe redis": 3,
    "decide": 8,
    "hold up": 1,
}
#: Only where the servers are embedded ones.
SERVERS = {"restart postgres": 1, "restart redis": 2}
_MEAN = 1.5  # seconds between two troubles
_LONG, _SHORT = (1.0, 25.0), (0.5, 4.0)  # seconds that something stays frozen, or stalled


class Trouble(NamedTuple):
    """One thing that goes wrong: `at` seconds from the start, for `lasts` seconds, to the `victim`-th of its kind."""

    at: float
    kind: str
    victim: int
    lasts: float


def plan(seed: int, seconds: float, *, servers: bool) -> list[Trouble]:
    """Draw the troubles of a run of chaos."""
    dice = random.Random(seed)  # noqa: S311 - to be replayed
    weights = WEIGHTS | (SERVERS if servers else {})
    planned, at = [], dice.expovariate(1 / _MEAN)
    while at < seconds:
        (kind,) = dice.choices(list(weights), list(weights.values()))
        lasts = dice.uniform(*(_LONG if kind.startswith("freeze") else _SHORT))
        planned.append(Trouble(at, kind, dice.randrange(1 << 16), lasts))
        at += dice.expovariate(1 / _MEAN)
    return planned
