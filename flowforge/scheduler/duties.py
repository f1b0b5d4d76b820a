"""
The duties: plain functions that do one batch, are safe to run twice, and return how many rows they changed.

JOBS is the one table that says which is run how often, and how long one of its statements may take.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from psycopg2.errors import LockNotAvailable, QueryCanceled

from flowforge import insights, outbox, transitions
from flowforge.db import GONE
from flowforge.states import TaskState
from flowforge.transitions import Decision, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from flowforge.broker import Runway
    from flowforge.db import Database
    from flowforge.monitor import Turns
    from flowforge.transitions import Ending

logger = logging.getLogger(__name__)

_BATCH = 500
_PATIENCE = 0.1  # seconds that one row is waited for, which a user's transaction may lock: the next turn tries again
_TO_RENEW = 10.0  # seconds that workers have, at most, to renew their leases after the database was away
_TO_HEAR = 3.0  # seconds until a worker has heard that it is to cancel, and has acted when its own grace ends
_TO_RENEW_ONE = 2.0  # seconds that a worker has to renew a lease after a guard kept it from that
_KEYS = 5_000  # idempotency keys of one turn: 500 starts a second that use one


class Post(NamedTuple):
    """What a duty may use; `cancel_grace` is the seconds that code may go on after it was asked to stop."""

    database: Database
    runway: Runway
    cancel_grace: float


class Job(NamedTuple):
    """A duty, the seconds between its turns, and the seconds that one statement of it may take."""

    duty: Callable[[Post], int]
    every: float
    limit: float

    @property
    def name(self) -> str:
        """The duty's name, in the log and for those who watch."""
        return self.duty.__name__


class _Guarded:
    """Task runs that were found locked though their lease is over: by guards, which keep their owners from renewing."""

    def __init__(self) -> None:
        self._seen: dict[UUID, float] = {}

    def see(self, locked: Iterable[UUID]) -> None:
        """Note what is locked now."""
        self._seen = {id_: self._seen[id_] for id_ in self.lately()} | dict.fromkeys(locked, time.monotonic())

    def lately(self) -> list[UUID]:
        """Return those that were found locked less than two seconds ago."""
        return [id_ for id_, at in self._seen.items() if time.monotonic() < at + _TO_RENEW_ONE]


_guarded = _Guarded()


def expire_leases(post: Post) -> int:
    """Take leases that are over from their owners; but not while those may not have had the time to renew them."""
    if post.database.outage.echoes(_TO_RENEW):
        return 0
    taken, locked = post.database.perform(transitions.expire, limit=_BATCH, spared=_guarded.lately())
    _guarded.see(locked)
    for one in taken:
        logger.warning("task_run.expired task_run=%s owner=%s became=%s", one.id, one.owner, one.became)
    if taken:
        post.runway.wake()
    return len(taken)


def recover_dispatches(post: Post) -> int:
    """Send those dispatches again that the broker lost."""
    count = outbox.recover(post.database, post.runway, limit=_BATCH * 20)
    if count:
        logger.warning("outbox.recovered dispatches=%d", count)
    return count


def forget_idempotency_keys(post: Post) -> int:
    """Forget idempotency keys that no longer stand for their run."""
    return post.database.perform(transitions.forget, limit=_KEYS)


def release_held(post: Post) -> int:
    """Make dispatches due again that nothing pauses any more; those that a resume did not see among them."""
    count = post.database.perform(transitions.unhold)
    if count:
        post.runway.wake()
    return count


def cut_off_cancelled(post: Post) -> int:
    """End task runs whose code goes on though it was asked to stop, and whose worker has not given it up either."""
    asked = post.database.perform(insights.asked_before, post.cancel_grace + _TO_HEAR, limit=_BATCH)
    outcomes = [Outcome(one.id, one.run_id, one.token, TaskState.CANCELLED) for one in asked]
    ended = _end(post, transitions.cut_off, outcomes)
    for one in asked:
        if one.id in ended:
            logger.warning("task_run.cut_off task_run=%s owner=%s", one.id, one.owner)
    return len(ended)


def fail_unstarted(post: Post) -> int:
    """Fail ready task runs that no worker has taken by their `start_by`."""
    unstarted = post.database.perform(insights.unstarted, limit=_BATCH)
    outcomes = [Outcome(one.id, one.run_id, one.token, TaskState.FAILED, error=_unstarted(one)) for one in unstarted]
    return len(_end(post, transitions.give_up, outcomes))


def _unstarted(row: Any) -> str:
    why = ", because it was paused" if row.held else ""
    words = f"no worker had started it by {row.start_by.isoformat()}{why}"
    return json.dumps({"type": "not_started", "message": words})


def cancel_overdue_runs(post: Post) -> int:
    """Cancel runs that are not over by their deadline, each by itself: a lock on one hinders none of the others."""
    cancelled = 0
    for run in post.database.perform(insights.past_deadline, limit=_BATCH):
        told = Decision("flowforge", f"the deadline {run.deadline.isoformat()} has passed")
        with suppress(LockNotAvailable):
            done = post.database.perform(transitions.cancel, run.id, told, overdue=True, patience=_PATIENCE)
            if done and done.accepted:
                logger.warning("workflow_run.deadline_passed run=%s", run.id)
                cancelled += 1
    if cancelled:
        post.runway.wake()
    return cancelled


def _end(post: Post, verb: Callable[..., list[Ending]], outcomes: list[Outcome]) -> set[UUID]:
    """End task runs together, or, where a user's transaction locks one of them, one by one without those."""
    endings: list[Ending] = []
    try:
        endings = post.database.perform(verb, outcomes)
    except LockNotAvailable:
        for outcome in outcomes:
            with suppress(LockNotAvailable):
                endings += post.database.perform(verb, [outcome], patience=_PATIENCE)
    if endings:
        post.runway.wake()
    return {outcome.id for outcome in outcomes} & {one.id for one in endings if one.became == "ended"}


def take_turn(job: Job, post: Post, turns: Turns) -> None:
    """
    Take a duty's turn, and tell it to those who watch.

    While a server is away, or a statement takes too long, that is one line in the log, and the next turn tries again.
    """
    try:
        with post.database.limited(job.limit):
            job.duty(post)
        turns.tell(job.name, job.every)
    except QueryCanceled:
        logger.warning("duty.too_slow duty=%s limit=%g", job.name, job.limit)
    except (*GONE, redis.RedisError) as error:
        logger.warning("duty.server_away duty=%s error=%s", job.name, str(error).strip())


JOBS = (
    Job(expire_leases, every=0.25, limit=10),
    Job(recover_dispatches, every=2, limit=10),
    Job(forget_idempotency_keys, every=10, limit=30),
    Job(release_held, every=2, limit=10),
    Job(cut_off_cancelled, every=1, limit=10),
    Job(fail_unstarted, every=1, limit=10),
    Job(cancel_overdue_runs, every=1, limit=10),
)
