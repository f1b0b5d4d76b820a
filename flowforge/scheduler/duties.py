"""
The duties: plain functions that do one batch, are safe to run twice, and return how many rows they changed.

JOBS is the one table that says which is run how often.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from flowforge import outbox, transitions
from flowforge.models import IdempotencyKey
from flowforge.models.base import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.broker import Runway
    from flowforge.db import Database

logger = logging.getLogger(__name__)

_BATCH = 500


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


def prune_idempotency_keys(post: Post) -> int:
    """Forget idempotency keys that no longer stand for their run."""
    post.database.raw()
    expired = IdempotencyKey.select(IdempotencyKey.id).where(IdempotencyKey.expires_at < clock()).limit(_BATCH)
    return int(IdempotencyKey.delete().where(IdempotencyKey.id.in_(expired)).execute())


JOBS = (
    Job(expire_leases, every=1),
    Job(recover_dispatches, every=2),
    Job(prune_idempotency_keys, every=60),
)
