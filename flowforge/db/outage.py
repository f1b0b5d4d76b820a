"""That the database was away: for how long, and how long ago that was."""

from __future__ import annotations

import math
import time


class Outage:
    """The latest time without the database, as the calls of this process have met it."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._ended, self._lasted = -math.inf, 0.0

    def begin(self) -> None:
        """Note that a call has failed for want of the database."""
        self._began = time.monotonic() if self._began is None else self._began

    def end(self) -> None:
        """Note that a call has come through."""
        began, self._began = self._began, None
        if began is not None:
            self._ended = time.monotonic()
            self._lasted = self._ended - began

    def echoes(self, at_most: float) -> bool:
        """Whether it lasts still, or ended less long ago than it had lasted and less than `at_most` seconds ago."""
        return self._began is not None or time.monotonic() < self._ended + min(self._lasted, at_most)
