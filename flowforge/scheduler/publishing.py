"""The publishing loop: blocks on the wake list, publishes, and looks by itself now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flowforge.loop import Loop
from flowforge.outbox import Publisher

if TYPE_CHECKING:
    from flowforge.broker import Runway
    from flowforge.db import Database
    from flowforge.monitor import Turns

_IDLE = 0.25  # seconds between looks when nobody wakes us
_EAGER = 0.01  # … while there is a backlog, and for a while after a start in a transaction that was still open
_EAGER_FOR = 1.0
_LIMIT = 10.0  # seconds that one statement may take

#: What this loop is called by those who watch.
PUBLISH = "publish"


class PublishingLoop:
    """Publishes as soon as anything may be due."""

    def __init__(self, database: Database, runway: Runway, turns: Turns, *, limit: int) -> None:
        self._database, self._runway, self._turns = database, runway, turns
        self._publisher = Publisher(database, runway, limit=limit)
        self._eager_until = 0.0
        self.loop = Loop("flowforge-publisher", self.turn)

    def turn(self) -> None:
        """Publish what there is room for, then wait: for a wake, or for room while there is a backlog."""
        with self._database.limited(_LIMIT):
            self._publisher.publish()
        self._turns.tell(PUBLISH, _IDLE)
        eager = self._publisher.backlog or time.monotonic() < self._eager_until
        if b"soon" in self._runway.wait(_EAGER if eager else _IDLE):
            self._eager_until = time.monotonic() + _EAGER_FOR
