"""
The duties: plain functions that do one batch, are safe to run twice, and return how many rows they changed.

JOBS is the one table that says which is run how often, and how long one of its statements may take.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import redis
from psycopg2.errors import QueryCanceled

from flowforge import outbox, transitions
from flowforge.db import GONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.broker import Runway
    from flowforge.db import Database
    from flowforge.monitor import Turns

logger = logging.getLogger(__name__)

_BATCH = 500
_KEYS = 5_000  # idempotency keys of one turn: 500 starts a second that use one


class Post(NamedTuple):
    """What a duty may use."""

    database: Database
    runway: Runway


class Job(NamedTuple):
    """A duty, the seconds between its turns, and the seconds that one statement of it may take."""

    duty: Callable[[Post], int]
    every: float
    limit: float

    @property
    def name(self) -> str:
        """The duty's name, in the log and for those who watch."""
        return self.duty.__name__


def expire_leases(post: Post) -> int:
    """Take leases that are over from their owners."""
    late = post.database.perform(transitions.expire, limit=_BATCH)
    for one in late:
        logger.warning("task_run.expired task_run=%s owner=%s became=%s", one.id, one.owner, one.became)
    if late:
        post.runway.wake()
    return len(late)


def recover_dispatches(post: Post) -> int:
    """Send those dispatches again that the broker lost."""
    count = outbox.recover(post.database, post.runway, limit=_BATCH * 20)
    if count:
        logger.warning("outbox.recovered dispatches=%d", count)
    return count


def forget_idempotency_keys(post: Post) -> int:
    """Forget idempotency keys that no longer stand for their run."""
    return post.database.perform(transitions.forget, limit=_KEYS)


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
)
