"""What a migration does: it runs the .sql file beside it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg2 import sql

from flowforge.migrations.runner import SQL

if TYPE_CHECKING:
    from flowforge.db import Database

#: A concurrently built index: its name, and the schema of its table, which is its own as well.
_INDEX = re.compile(r"create\s+(?:unique\s+)?index\s+concurrently\s+(?:if\s+not\s+exists\s+)?(\w+)\s+on\s+(\w+)\.")
_POLL = 0.1  # seconds between two looks at an index that is being built


def run_sql(database: Database, migration: str) -> None:
    """Run the .sql file beside the migration (its `__file__`), through the driver's cursor: Peewee's would read `%`."""
    with database.raw().cursor() as cursor:
        cursor.execute(_text(migration))


def build_index(database: Database, migration: str) -> None:
    """
    Run the one `create index concurrently` of the .sql file beside the migration, unless its index is there and valid.

    For a migration with `atomic = False`. What a killed process has left is waited for while PostgreSQL still builds
    it, or else dropped and built again. Raises what PostgreSQL says of rows that a unique index cannot hold.
    """
    found = _INDEX.search(_text(migration))
    if not found:
        raise ValueError(f"{migration}: its .sql must say `create index concurrently NAME on SCHEMA.TABLE`")
    name, schema = found.groups()
    while (state := _state(database, f"{schema}.{name}")) != "valid":
        if state == "absent":
            run_sql(database, migration)
        elif state == "invalid":
            _drop(database, schema, name)
        else:
            time.sleep(_POLL)


def _text(migration: str) -> str:
    return Path(migration).with_suffix(".sql").read_text(encoding="utf-8")


def _state(database: Database, index: str) -> str:
    """Return what the index is: valid, building, invalid or absent."""
    row = database.execute_sql(SQL["index_state"], (index,)).fetchone()
    return str(row[0]) if row else "absent"


def _drop(database: Database, schema: str, name: str) -> None:
    with database.raw().cursor() as cursor:
        cursor.execute(sql.SQL(SQL["drop_index"]).format(sql.Identifier(schema, name)))
