"""Reads of what is owed to the broker."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowforge.db import fetch, load_statements

if TYPE_CHECKING:
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
