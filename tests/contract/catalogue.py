"""What PostgreSQL's own catalogue says of the schema `flowforge`, without the migration runner's history table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowforge.db import fetch, load_statements

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection  # noqa: N812

_SQL = load_statements("tests.contract", "catalogue.sql")

#: Everything that makes two schemas the same, one aspect at a time.
ASPECTS = ("relation", "column", "constraint", "index", "function", "guard", "seed_row")


def describe(connection: Connection, aspect: str) -> set[Any]:
    """Return one aspect of the schema as comparable rows."""
    return {tuple(row) for row in rows(connection, aspect)}


def rows(connection: Connection, aspect: str) -> list[Any]:
    """Return one aspect of the schema as named tuples."""
    return fetch(connection, _SQL[aspect], {})


def tables(connection: Connection) -> set[str]:
    """Return the names of the tables."""
    return {row.name for row in rows(connection, "relation") if row.kind == "r"}


def constraints(connection: Connection, kinds: str) -> set[str]:
    """Return the names of the constraints of these kinds: c(heck), f(oreign key), p(rimary key), u(nique)."""
    return {row.name for row in rows(connection, "constraint") if row.kind in kinds}


def indexes(connection: Connection) -> set[str]:
    """Return the names of the indexes, those of constraints included."""
    return {row.name for row in rows(connection, "index")}
