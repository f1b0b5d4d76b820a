"""
The duties: plain functions that do one batch, are safe to run twice, and return how many rows they changed.

JOBS is the one table that says which is run how often.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import redis

from flowforge import outbox, transitions
from flowforge.db import GONE
from flowforge.models import IdempotencyKey
from flowforge.models.base import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.broker import Runway
    from flowforge.db import Database

logger = logging.getLogger(__name__)

_BATCH = 500
_KEYS = 5_000  # idempotency keys of one turn: 500 starts a second that use one


class Post(NamedTuple):
    """What a duty may use."""

    database: Database
    runway: Runway


class Job(NamedTuple):
    """A duty and the seconds between its turns."""

    duty: Callable[[Post], int]
    every: float


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


def prune_idempotency_keys(post: Post) -> int:  # noqa: ARG001 - Peewee knows its database
    """Forget idempotency keys that no longer stand for their run."""
    expired = IdempotencyKey.select(IdempotencyKey.id).where(IdempotencyKey.expires_at < clock()).limit(_KEYS)
    return int(IdempotencyKey.delete().where(IdempotencyKey.id.in_(expired)).execute())


def take_turn(duty: Callable[[Post], int], post: Post) -> None:
    """Take a duty's turn; while a server is away that is one line in the log, and the next turn tries again."""
    try:
        duty(post)
    except (*GONE, redis.RedisError) as error:
        logger.warning("duty.server_away duty=%s error=%s", duty.__name__, str(error).strip())


JOBS = (
    Job(expire_leases, every=0.25),
    Job(recover_dispatches, every=2),
    Job(prune_idempotency_keys, every=10),
)
