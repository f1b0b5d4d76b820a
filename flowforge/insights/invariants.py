"""The invariants, counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.db import fetch, load_statements

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection  # noqa: N812


def broken_invariants(connection: Connection) -> dict[str, int]:
    """Return rule -> number of rows in the whole database that break it; each rule sees a snapshot of its own."""
    queries = load_statements("flowforge.insights", "invariants.sql")
    return {rule: int(fetch(connection, query, {})[0].count) for rule, query in queries.items()}
