"""The publishing loop: blocks on the wake list, publishes, and looks by itself now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flowforge.loop import Loop
from flowforge.outbox import Publisher

if TYPE_CHECKING:
    from flowforge.broker import Runway
    from flowforge.db import Database

_IDLE = 0.25  # seconds between looks when nobody wakes us
_EAGER = 0.01  # … for a while after a start in a transaction that was still open
_EAGER_FOR = 1.0


class PublishingLoop:
    """Publishes as soon as anything may be due."""

    def __init__(self, database: Database, runway: Runway, *, limit: int) -> None:
        self._runway = runway
        self._publisher = Publisher(database, runway, limit=limit)
        self._eager_until = 0.0
        self.loop = Loop("flowforge-publisher", self.turn)

    def turn(self) -> None:
        """Publish until nothing more can be published, then wait for a wake."""
        while self._publisher.publish():
            pass
        eager = time.monotonic() < self._eager_until
        if b"soon" in self._runway.wait(_EAGER if eager else _IDLE):
            self._eager_until = time.monotonic() + _EAGER_FOR
