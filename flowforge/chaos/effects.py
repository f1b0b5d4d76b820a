"""The effects of the load: rows that its tasks leave in a table of its own, and what must be true of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.db import fetch, load_statements

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

_SQL = load_statements("flowforge.chaos")
_RULES = [name for name in _SQL if " " in name]

#: The queue of the load: no other worker serves it.
QUEUE = "flowforge-chaos"
#: What a task writes: its task run, its token, its run.
EFFECT = _SQL["effect"]


def prepare(connection: Connection) -> datetime:
    """Make the table of effects, empty. Return the database's time, from which on all is of this load."""
    with connection.cursor() as cursor:  # these cannot be prepared
        for name in ("schema", "gone", "table", "index"):
            cursor.execute(_SQL[name])
    return fetch(connection, _SQL["deadlocks"], {})[0].now  # type: ignore[no-any-return]


def wrong(connection: Connection, since: datetime) -> dict[str, int]:
    """Return rule -> number of rows that break it, for the load since then."""
    return {rule: int(fetch(connection, _SQL[rule], {"since": since})[0].count) for rule in _RULES}


def counts(connection: Connection, since: datetime) -> dict[str, int]:
    """Return what became of the load since then: runs and task runs by state, events by kind."""
    return {row.what: int(row.number) for row in fetch(connection, _SQL["counts"], {"since": since})}


def left(connection: Connection, since: datetime) -> list[UUID]:
    """Return the runs of the load since then that have not ended."""
    return [row.id for row in fetch(connection, _SQL["left"], {"since": since})]


def deadlocks(connection: Connection) -> int:
    """Return how many deadlocks this database has seen."""
    return int(fetch(connection, _SQL["deadlocks"], {})[0].count)
