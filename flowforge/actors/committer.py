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
_GATHER = 0.002  # seconds in which further outcomes may join a batch
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between tries while the database is away


class _Item(NamedTuple):
    attempt: Attempt
    ending: Outcome | Release
    hand_back: bool = False


class Committer:
    """Takes endings from the threads and the keeper; a loop commits them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self.loop = Loop("flowforge-committer", self.turn)

    def put(self, attempt: Attempt, ending: Outcome | Release) -> None:
        """Commit how an attempt ended, soon."""
        self._items.put(_Item(attempt, ending))

    def hand_back(self, attempts: Sequence[Attempt]) -> None:
        """Give attempts back that were not carried out, soon."""
        for attempt in attempts:
            self._items.put(_Item(attempt, Release(attempt.claim.id, attempt.claim.token), hand_back=True))

    def turn(self) -> None:
        """Commit one batch, if there is any within a while; while the database is away the batch waits for it."""
        batch, pause = self._gather(), _FIRST_PAUSE
        while batch:
            try:
                self._commit(batch)
                break
            except GONE as error:
                logger.warning("committer.database_away outcomes=%d error=%s", len(batch), error)
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _gather(self) -> list[_Item]:
        """Wait for an outcome; while other attempts run that may end as well, wait a moment for theirs."""
        try:
            batch = [self._items.get(timeout=0.5)]
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

    def _commit(self, batch: Sequence[_Item]) -> None:
        try:
            ready = self._write(batch)
        except psycopg2.Error as error:
            if isinstance(error, GONE) and not isinstance(error, psycopg2.errors.LockNotAvailable):
                raise
            ready = self._write_apart(batch, error)
        self._runtime.holding.drop(item.attempt for item in batch)
        if ready:
            self._runtime.runway.wake()

    def _write(self, batch: Sequence[_Item]) -> bool:
        """Write a batch; say whether anything became ready."""
        outcomes = [item.ending for item in batch if isinstance(item.ending, Outcome)]
        retries = [item for item in batch if isinstance(item.ending, Release) and not item.hand_back]
        returned = [item for item in batch if item.hand_back]
        database = self._runtime.database
        became: list[str] = []
        for verb, items in ((transitions.retry, retries), (transitions.hand_back, returned)):
            if items:
                answers = database.perform(verb, [cast("Release", item.ending) for item in items])
                became += answers.values()
                outcomes += [
                    _unreleased(item, answers[item.attempt.claim.id])
                    for item in items
                    if answers.get(item.attempt.claim.id, "ready") != "ready"
                ]
        if outcomes:
            endings = database.perform(transitions.finish, outcomes)
            _tell(endings)
            became += [ending.became for ending in endings]
        return "ready" in became

    def _write_apart(self, batch: Sequence[_Item], error: psycopg2.Error) -> bool:
        if len(batch) > 1:
            return sum(self._write_alone(item) for item in batch) > 0
        return self._write([_Item(batch[0].attempt, _unstorable(batch[0].attempt, error))])

    def _write_alone(self, item: _Item) -> bool:
        try:
            return self._write([item])
        except psycopg2.DataError as error:
            return self._write([_Item(item.attempt, _unstorable(item.attempt, error))])


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
