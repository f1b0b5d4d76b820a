"""take, resend and defer: what is owed to the broker, and when."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from flowforge.db import fetch, load_statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg2.extensions import connection as Connection  # noqa: N812

logger = logging.getLogger(__name__)

_SQL = load_statements("flowforge.transitions")


class Dispatch(NamedTuple):
    """What a worker knows of a task run before it claims it. A hint: lost, doubled or late it does no harm."""

    task_run_id: UUID
    token: int
    run_id: UUID
    organization_id: UUID
    workflow: str
    key: str
    task_id: UUID
    attempt: int

    def encode(self) -> bytes:
        """Write this as the JSON array that travels through Redis."""
        return json.dumps([str(value) if isinstance(value, UUID) else value for value in self]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Dispatch:
        """Read `encode`'s bytes. Raises ValueError or TypeError when they are something else."""
        task_run, token, run, organization, workflow, key, task, attempt = json.loads(data)
        return cls(UUID(task_run), int(token), UUID(run), UUID(organization), workflow, key, UUID(task), int(attempt))

    @classmethod
    def read(cls, data: bytes) -> Dispatch | None:
        """Read what stood in a list of the broker; something else, which is not ours, is logged and passed over."""
        try:
            return cls.decode(data)
        except (ValueError, TypeError, AttributeError, RecursionError):
            logger.exception("dispatch.unreadable data=%r", data[:200])
            return None


class Mark(NamedTuple):
    """A place in a queue's order: most urgent priority first, then earliest due."""

    priority: int = -32768
    available_at: datetime = datetime.min.replace(tzinfo=UTC)


class Taken(NamedTuple):
    """What `take` found: dispatches to hand over, in order; the mark to go on from, and how many it has read."""

    dispatches: list[Dispatch]
    mark: Mark
    read: int


def take(connection: Connection, queue: str, *, limit: int, after: Mark) -> Taken:
    """
    Mark up to `limit` due dispatches of a queue as published, most urgent first, from the low-water mark on.

    Commit only once the broker has them. What is paused is read and held, not returned.
    """
    parameters = {"queue": queue, "limit": limit, **after._asdict()}
    rows = sorted(fetch(connection, _SQL["take"], parameters), key=lambda row: (row.priority, row.available_at))
    dispatches = [
        Dispatch(
            row.task_run_id,
            row.token,
            row.workflow_run_id,
            row.organization_id,
            row.payload["workflow"],
            row.payload["key"],
            UUID(row.payload["task"]),
            row.attempt,
        )
        for row in rows
        if not row.held
    ]
    return Taken(dispatches, Mark(rows[-1].priority, rows[-1].available_at) if rows else after, len(rows))


def resend(connection: Connection, missing: Sequence[tuple[UUID, datetime]]) -> list[str]:
    """Make outbox messages due again that the broker has lost: (id, published_at as it was seen). Return the queues."""
    if not missing:
        return []
    parameters = {"ids": [id_ for id_, _ in missing], "published": [at for _, at in missing]}
    return [row.queue for row in fetch(connection, _SQL["resend"], parameters)]


def defer(connection: Connection, dispatches: Sequence[tuple[Dispatch, str]], *, delay: float) -> list[UUID]:
    """Leave ready task runs to another worker, due in `delay` seconds, each for a reason. Return the accepted ids."""
    rows = fetch(
        connection,
        _SQL["defer"],
        {
            "ids": [dispatch.task_run_id for dispatch, _ in dispatches],
            "tokens": [dispatch.token for dispatch, _ in dispatches],
            "reasons": [reason for _, reason in dispatches],
            "delay": timedelta(seconds=delay),
        },
    )
    return [row.id for row in rows]
