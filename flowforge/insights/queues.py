"""Reads of what is owed, and overdue, in all organizations: for the duties of the scheduler."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowforge.db import fetch, load_statements

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

_SQL = load_statements("flowforge.insights", "queries.sql")

#: What a run was asked for, to be sent by whoever asks: parameter `run`, columns workflow and parameters.
ASKED_FOR = _SQL["asked_for"]


def waiting_queues(connection: Connection) -> list[str]:
    """Return the queues that have unpublished dispatches, due or not, of all organizations."""
    return [row.queue for row in fetch(connection, _SQL["waiting_queues"], {})]


def published_before(connection: Connection, seconds: float, *, limit: int) -> list[Any]:
    """Return outbox messages that were published more than `seconds` ago and not claimed since, oldest first."""
    return fetch(connection, _SQL["published_before"], {"age": timedelta(seconds=seconds), "limit": limit})


def unstarted(connection: Connection, *, limit: int) -> list[Any]:
    """Return ready task runs that no worker has taken by their `start_by`: id, run_id, token, start_by, held."""
    return fetch(connection, _SQL["unstarted"], {"limit": limit})


def asked_before(connection: Connection, seconds: float, *, limit: int) -> list[Any]:
    """Return running task runs that were asked to stop more than `seconds` ago: id, run_id, token, owner."""
    return fetch(connection, _SQL["asked_before"], {"age": timedelta(seconds=seconds), "limit": limit})


def past_deadline(connection: Connection, *, limit: int) -> list[Any]:
    """Return unfinished runs whose deadline has passed and that were not asked to stop: id, deadline."""
    return fetch(connection, _SQL["past_deadline"], {"limit": limit})


def age_of_last(connection: Connection, action: str) -> float | None:
    """Return the seconds since an action was last written into the audit log, or None if it never was."""
    return fetch(connection, _SQL["age_of_last"], {"action": action})[0].age  # type: ignore[no-any-return]


def idle_queues(connection: Connection, seconds: float) -> list[Any]:
    """Return queues of which something has been due for `seconds` while nothing runs: name, due, age in seconds."""
    return fetch(connection, _SQL["idle_queues"], {"age": timedelta(seconds=seconds)})


def refused(connection: Connection) -> Any:
    """Return how many outcomes were refused, because they came too late, and when the last was: number, last."""
    return fetch(connection, _SQL["refused"], {})[0]


def orders(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, tuple[int, bool]]:
    """Return task run -> its token now, and whether it was asked to stop."""
    return {row.id: (row.token, row.cancel) for row in fetch(connection, _SQL["orders"], {"ids": list(ids)})}
