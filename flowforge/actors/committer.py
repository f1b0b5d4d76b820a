"""
The committer: one thread writes the outcomes of all attempts, many in one statement.

Outcomes that cannot be written together are written one by one, and one that PostgreSQL cannot hold becomes a failure.
"""

from __future__ import annotations

import json
import logging
import queue
import time
from typing import TYPE_CHECKING, NamedTuple, cast

import psycopg2
from psycopg2.errors import LockNotAvailable, ProgramLimitExceeded, StatementTooComplex

from flowforge import transitions
from flowforge.db import GONE
from flowforge.loop import Loop
from flowforge.states import TaskState
from flowforge.transitions import Outcome, Release
from flowforge.workflow.failure import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.actors.holding import Attempt
    from flowforge.actors.runtime import Runtime

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 64
_IDLE = 0.05  # seconds between looks, without an outcome, at whether this is to stop
_GATHER = 0.002  # seconds in which further outcomes may join a batch
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between tries while the database is away
#: Seconds that a batch waits for a lock, that a single outcome of it waits then, and until that is tried again.
_PATIENCE, _NO_PATIENCE, _LOCKED_PAUSE = 2.0, 0.02, 1.0
#: What a single outcome is the reason of: PostgreSQL cannot hold it, or its task run is locked.
_OF_ONE = (psycopg2.DataError, ProgramLimitExceeded, StatementTooComplex, LockNotAvailable)


class _Item(NamedTuple):
    attempt: Attempt
    ending: Outcome | Release
    hand_back: bool = False


class Committer:
    """Takes endings from the threads and the keeper; a loop commits them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._batch: list[_Item] = []  # not yet written
        self._locked: list[tuple[float, _Item]] = []  # by a user's transaction: when to try again
        self._pause = _FIRST_PAUSE
        self.loop = Loop("flowforge-committer", self.turn)

    def put(self, attempt: Attempt, ending: Outcome | Release) -> None:
        """Commit how an attempt ended, soon."""
        self._items.put(_Item(attempt, ending))

    def hand_back(self, attempts: Sequence[Attempt]) -> None:
        """Give attempts back that were not carried out, soon."""
        for attempt in attempts:
            self._items.put(_Item(attempt, Release(attempt.claim.id, attempt.claim.token), hand_back=True))

    def turn(self) -> None:
        """Commit one batch, if there is any soon; while the database is away or takes no outcome it stays for later."""
        self._batch = self._batch or self._gather()
        try:
            if self._batch:
                self._commit(self._batch)
            self._commit_locked()
        except (*GONE, psycopg2.Error) as error:
            logger.warning("committer.database_away outcomes=%d error=%s", len(self._batch), str(error).strip())
            time.sleep(self._pause)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        else:
            self._batch, self._pause = [], _FIRST_PAUSE

    def _gather(self) -> list[_Item]:
        """Wait for an outcome; while other attempts run that may end as well, wait a moment for theirs."""
        try:
            batch = [self._items.get(timeout=_IDLE)]
        except queue.Empty:
            return []
        until = time.monotonic() + _GATHER
        while len(batch) < _MOST_AT_ONCE:
            patience = until - time.monotonic() if self._runtime.holding.running() else 0
            try:
                batch.append(self._items.get(timeout=patience) if patience > 0 else self._items.get_nowait())
            except queue.Empty:
                break
        return batch

    def _commit_locked(self) -> None:
        """Try the outcomes again that were locked out, each without waiting: nobody else is to be delayed by them."""
        for entry in [one for one in self._locked if one[0] <= time.monotonic()]:
            self._commit([entry[1]], patience=_NO_PATIENCE)
            self._locked.remove(entry)

    def _commit(self, batch: Sequence[_Item], *, patience: float = _PATIENCE) -> None:
        try:
            ready = self._write(batch, patience)
        except _OF_ONE as error:
            self._commit_apart(batch, error)
        else:
            self._settle(batch, ready=ready)

    def _commit_apart(self, batch: Sequence[_Item], error: psycopg2.Error) -> None:
        """Find what stopped a batch: it becomes a failure, or waits while a user's transaction locks its task run."""
        if len(batch) > 1:
            for item in batch:
                self._commit([item], patience=_NO_PATIENCE)
        elif isinstance(error, LockNotAvailable):
            self._locked.append((time.monotonic() + _LOCKED_PAUSE, batch[0]))
        else:
            failure = _Item(batch[0].attempt, _unstorable(batch[0].attempt, error))
            self._settle(batch, ready=self._write([failure], _PATIENCE))

    def _settle(self, batch: Sequence[_Item], *, ready: bool) -> None:
        self._runtime.holding.drop([item.attempt for item in batch])
        self.loop.beat = time.monotonic()  # many that are locked out take long, one by one
        if ready:
            self._runtime.runway.wake()

    def _write(self, batch: Sequence[_Item], patience: float) -> bool:
        """Write a batch; say whether anything became ready."""
        outcomes = [item.ending for item in batch if isinstance(item.ending, Outcome)]
        retries = [item for item in batch if isinstance(item.ending, Release) and not item.hand_back]
        returned = [item for item in batch if item.hand_back]
        database = self._runtime.database
        became: list[str] = []
        for verb, items in ((transitions.retry, retries), (transitions.hand_back, returned)):
            if items:
                answers = database.perform(verb, [cast("Release", item.ending) for item in items], patience=patience)
                became += answers.values()
                outcomes += [
                    _unreleased(item, answers[item.attempt.claim.id])
                    for item in items
                    if answers.get(item.attempt.claim.id, "ready") != "ready"
                ]
        if outcomes:
            endings = database.perform(transitions.finish, outcomes, patience=patience)
            _tell(endings)
            became += [ending.became for ending in endings]
        return "ready" in became


def _tell(endings: Sequence[transitions.Ending]) -> None:
    for ending in endings:
        if ending.became == "refused":
            logger.warning("task_run.refused task_run=%s token=%s", ending.id, ending.token)


def _unreleased(item: _Item, became: str) -> Outcome:
    """Return the end of an attempt that could not be made ready again: it was asked to cancel, or has no retry left."""
    claim = item.attempt.claim
    state = TaskState.CANCELLED if became == "cancel" else TaskState.FAILED
    return Outcome(claim.id, claim.run_id, claim.token, state, error=item.ending.error)


def _unstorable(attempt: Attempt, error: psycopg2.Error) -> Outcome:
    claim = attempt.claim
    return Outcome(claim.id, claim.run_id, claim.token, TaskState.FAILED, error=json.dumps(describe(error)))
