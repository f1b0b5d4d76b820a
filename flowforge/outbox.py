"""
publish: take due dispatches, hand them to the broker, mark them. And recover those that the broker lost.

PostgreSQL is the queue; Redis holds a short runway, so that a backlog is never sent twice and a wiped Redis refills.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge import faults, insights, transitions
from flowforge.db import begun
from flowforge.transitions import Mark

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.broker import Runway
    from flowforge.db import Database

#: Seconds after which a queue is read from its start again, for rows that became due below the low-water mark.
_FULL_SCAN_EVERY = 5.0
_NEW_QUEUES_EVERY = 0.25  # seconds
#: Seconds that a published dispatch may stay unclaimed before it is looked for.
LOST_AFTER = 5.0


@dataclass
class _LowWater:
    """Where the next read of a queue begins: dead entries before it need not be walked."""

    mark: Mark = field(default_factory=Mark)
    full_scan_at: float = 0.0

    def start(self) -> Mark:
        """Return the mark, or the very start when a full scan is due."""
        if time.monotonic() >= self.full_scan_at:
            self.mark, self.full_scan_at = Mark(), time.monotonic() + _FULL_SCAN_EVERY
        return self.mark


class Publisher:
    """One publisher; any number may run at once, because each skips the rows that another holds."""

    def __init__(self, database: Database, runway: Runway, *, limit: int) -> None:
        """Publish up to `limit` waiting dispatches of a queue; publishers that look at the same moment may pass it."""
        self._database, self._runway, self._limit = database, runway, limit
        self._low_water: dict[str, _LowWater] = {}
        self._look_at = 0.0
        #: Whether the last turn left due dispatches for want of room.
        self.backlog = False

    def publish(self) -> int:
        """Publish what is due on every queue, as far as there is room; return how many were read, paused ones too."""
        self.backlog = False
        published = sum(self._publish(queue) for queue in self._low_water)
        if not published or time.monotonic() >= self._look_at:
            published += sum(self._publish(queue) for queue in self._new_queues())
        return published

    def _new_queues(self) -> list[str]:
        """Learn of queues; not at every turn, because under an old snapshot this walks dead entries."""
        self._look_at = time.monotonic() + _NEW_QUEUES_EVERY
        waiting = self._database.perform(insights.waiting_queues)
        new = [queue for queue in waiting if queue not in self._low_water]
        self._low_water |= {queue: _LowWater() for queue in new}
        return new

    def _publish(self, queue: str) -> int:
        room = self._limit - self._runway.length(queue)
        if room <= 0:
            self.backlog = True
            return 0
        low_water = self._low_water[queue]
        start = low_water.start()
        read, low_water.mark = self._database.perform(self._hand_over, queue, room, start)
        if read < room and start != Mark():
            # Nothing left above the mark: what is due below it is found now, not at the next full scan.
            low_water.mark = Mark()
            again, low_water.mark = self._database.perform(self._hand_over, queue, room - read, Mark())
            read += again
        self.backlog |= read == room
        return read

    def _hand_over(self, connection: Connection, queue: str, limit: int, after: Mark) -> tuple[int, Mark]:
        """
        Take, push and commit; return how many were read, paused ones too, and the mark to go on from.

        A push that fails leaves all rows due, a commit that fails sends a harmless double.
        """
        with begun(connection):
            taken = transitions.take(connection, queue, limit=limit, after=after)
            if taken.dispatches:
                faults.point("publish.taken")
                self._runway.push(queue, [dispatch.encode() for dispatch in taken.dispatches])
                faults.point("publish.pushed")
        return taken.read, taken.mark


def recover(database: Database, runway: Runway, *, limit: int) -> int:
    """
    Make dispatches due again that were published, not claimed, and stand in no list of the broker.

    Looks at the `limit` oldest of those not claimed, and at more only if they all stand in a list.
    """
    missing, looked_at = _missing(database, runway, limit)
    while not missing and looked_at == limit:
        limit *= 2
        missing, looked_at = _missing(database, runway, limit)
    queues = database.perform(transitions.resend, missing)
    if queues:
        runway.wake()
    return len(queues)


def _missing(database: Database, runway: Runway, limit: int) -> tuple[list[tuple[UUID, datetime]], int]:
    """
    Return what is missing, as (id, published at), of how many that were looked at.

    They are read before the lists: what is claimed in between is no longer as it was seen, and is left alone.
    """
    candidates = database.perform(insights.published_before, LOST_AFTER, limit=limit)
    waiting = {queue: _waiting(runway, queue) for queue in {row.queue for row in candidates}}
    missing = [row for row in candidates if (row.task_run_id, row.token) not in waiting[row.queue]]
    return [(row.id, row.published_at) for row in missing], len(candidates)


def _waiting(runway: Runway, queue: str) -> set[tuple[UUID, int]]:
    dispatches = map(transitions.Dispatch.read, runway.members(queue))
    return {(dispatch.task_run_id, dispatch.token) for dispatch in dispatches if dispatch}
