"""
Statements on the caller's connection, in the caller's transaction, whatever library it is of.

A library is only looked for among those that are loaded: what is not loaded cannot have made the connection.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from peewee import Database as PeeweeDatabase
from peewee import Proxy as PeeweeProxy
from psycopg2.extensions import connection as Psycopg2Connection  # noqa: N812
from psycopg2.extensions import cursor as Psycopg2Cursor  # noqa: N812

from flowforge import db
from flowforge.client.engine import engine

if TYPE_CHECKING:
    from collections.abc import Mapping

Row = tuple[Any, ...]

_PARAMETER = re.compile(r"%\((\w+)\)s")
_SYNC = (
    "a psycopg2 or psycopg connection, a SQLAlchemy Session or Connection, a Django connection, or a Peewee database"
)
_ASYNC = "a psycopg AsyncConnection, a SQLAlchemy AsyncSession or AsyncConnection, or an asyncpg connection"


def fetch(connection: Any, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    """
    Run one statement on a connection, or on ours for None; return its rows.

    Raises TypeError that says what to give, for anything that is no such connection to PostgreSQL.
    """
    if connection is None:
        return db.fetch(engine().database.raw(), statement, parameters)
    for is_one, run in _ways(connection):
        if is_one:
            return run(connection, statement, parameters)  # type: ignore[no-any-return]
    remedy = "use `await start_async(…)` with it" if _is_async(connection) else f"give {_SYNC}"
    raise TypeError(f"connection={connection!r}: {remedy}")


async def fetch_async(connection: Any, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Run one statement on an asynchronous connection; return its rows. Raises TypeError like `fetch`."""
    if _of(connection, "psycopg", "AsyncConnection"):
        async with connection.cursor(row_factory=_psycopg_rows()) as cursor:
            await cursor.execute(statement, parameters)
            return await cursor.fetchall()  # type: ignore[no-any-return]
    if _of(connection, "sqlalchemy.ext.asyncio", "async_scoped_session"):
        connection = connection()
    if _of(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "AsyncConnection"):
        return await connection.run_sync(fetch, statement, parameters)  # type: ignore[no-any-return]
    if _of(connection, "asyncpg", "Connection") or _of(connection, "asyncpg.pool", "PoolConnectionProxy"):
        numbered, names = number(statement)
        return [tuple(row) for row in await connection.fetch(numbered, *(parameters[name] for name in names))]
    raise TypeError(f"connection={connection!r}: give {_ASYNC}, or call `start` with a connection that is not async")


def number(statement: str) -> tuple[str, list[str]]:
    """Return the statement with `$1`, `$2`, … in place of named parameters, and the names in that order."""
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    return _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", statement), names


def _ways(connection: Any) -> list[tuple[bool, Any]]:
    return [
        (isinstance(connection, Psycopg2Connection), _on_psycopg2),
        (isinstance(connection, PeeweeDatabase | PeeweeProxy), _on_peewee),
        (_of(connection, "psycopg", "Connection"), _on_psycopg),
        (_of(connection, "sqlalchemy.orm", "Session", "scoped_session"), _on_session),
        (_of(connection, "sqlalchemy", "Connection"), _on_sqlalchemy),
        (_of(connection, "django.db.backends.base.base", "BaseDatabaseWrapper"), _on_django),
        (_of(connection, "django.utils.connection", "ConnectionProxy"), _on_django),
    ]


def _of(connection: Any, module: str, *names: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(connection, tuple(getattr(loaded, name) for name in names))


def _is_async(connection: Any) -> bool:
    return type(connection).__name__.lower().startswith("async") or type(connection).__module__.startswith("asyncpg")


def _on_psycopg2(connection: Any, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    if isinstance(connection, db.Session):
        return db.fetch(connection, statement, parameters)
    with connection.cursor(cursor_factory=Psycopg2Cursor) as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()  # type: ignore[no-any-return]


def _on_peewee(database: Any, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    return fetch(database.connection(), statement, parameters)


def _on_psycopg(connection: Any, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    with connection.cursor(row_factory=_psycopg_rows()) as cursor:
        return cursor.execute(statement, parameters).fetchall()  # type: ignore[no-any-return]


def _on_session(session: Any, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    return _on_sqlalchemy(session.connection(), statement, parameters)


def _on_sqlalchemy(connection: Any, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    style, given = connection.dialect.paramstyle, dict(parameters)
    if style == "numeric_dollar":
        statement, names = number(statement)
        given = tuple(parameters[name] for name in names)  # type: ignore[assignment]
    elif style != "pyformat":
        raise TypeError(
            f"connection={connection!r}: its paramstyle is {style!r}, and a start needs pyformat or numeric_dollar: "
            "use postgresql+psycopg2, postgresql+psycopg or postgresql+asyncpg, without an option paramstyle"
        )
    result = connection.exec_driver_sql(statement, given, execution_options={"stream_results": False})
    return [tuple(row) for row in result]


def _on_django(connection: Any, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    if connection.vendor != "postgresql":
        raise TypeError(f"connection={connection!r}: it is to {connection.vendor}, and runs are kept in PostgreSQL")
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()  # type: ignore[no-any-return]


def _psycopg_rows() -> Any:
    return sys.modules["psycopg.rows"].tuple_row
