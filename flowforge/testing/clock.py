"""The clock of a test's database, which is the clock of every verb."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowforge import transitions
from flowforge.db import begun, load_statements
from flowforge.errors import WaitTimeout
from flowforge.states import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.client import Run
    from flowforge.db import Database
    from flowforge.states import RunState

_SQL = load_statements("flowforge.testing")
_BATCH = 500
_LOOK_EVERY = 0.01  # seconds


class Clock:
    """
    Moves the database's time, which goes on from there: retries, leases, idempotency keys are due by it.

    A move beyond the lease takes running attempts from their worker, as if it had been lost: they start again, and what
    the first one returns is refused. Not moved are a task's `timeout`, `Run.wait(timeout=…)` and Python's own clock.
    """

    def __init__(self, database: Database, wake: Callable[[], object]) -> None:
        self._database, self._wake, self._ahead = database, wake, timedelta()

    @property
    def now(self) -> datetime:
        """The database's time."""
        moment: datetime = self._ask("now")
        return moment

    def move(self, by: timedelta) -> None:
        """
        Move forward: leases that are over then have ended, and what is due then is published at once.

        Raises ValueError for a move back once a workflow is stored: history is ordered by this clock.
        """
        if by < timedelta() and self._ask("is_in_use"):
            raise ValueError(f"the clock cannot move by {by}: back it goes only before the first workflow is stored")
        self._database.perform(_move, self._ahead + by)
        self._ahead += by
        self._wake()

    def set(self, to: datetime) -> None:
        """Move to a moment, from which time goes on. Raises ValueError like `move`, and without an offset."""
        if to.utcoffset() is None:
            raise ValueError(f"the clock cannot be set to {to!r}: give it an offset, as datetime(…, tzinfo=UTC) has")
        self.move(to - self.now)

    def wait(self, run: Run, timeout: float) -> RunState:
        """
        Wait, for at most `timeout` real seconds, until the run has ended; move on while it waits for a retry alone.

        Raises `WaitTimeout` and `RunNotCommitted` like `Run.wait`.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with suppress(WaitTimeout):
                return run.wait(timeout=_LOOK_EVERY)
            self._pass_the_wait_of(run)
        raise WaitTimeout(run.id, run.state, timeout)

    def _pass_the_wait_of(self, run: Run) -> None:
        tasks = run.tasks()
        dues = [task.due_at for task in tasks if task.due_at]
        ahead = min(dues) - self.now if dues else timedelta()
        if ahead > timedelta() and not any(task.state == TaskState.RUNNING for task in tasks):
            self.move(ahead)

    def _ask(self, statement: str) -> Any:
        return self._database.execute_sql(_SQL[statement]).fetchone()[0]


def _move(connection: Connection, ahead: timedelta) -> None:
    """Move, and end leases, in one transaction: none is renewed in between by its owner, who still lives."""
    with begun(connection), connection.cursor() as cursor:
        cursor.execute(_SQL["move"], {"microseconds": ahead // timedelta(microseconds=1)})
        while transitions.expire(connection, limit=_BATCH).taken:
            pass
