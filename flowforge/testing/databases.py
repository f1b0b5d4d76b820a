"""Databases that are made for tests and dropped after them, on a server where others may stand."""

from __future__ import annotations

import re
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import psycopg2
import redis
from psycopg2 import sql

from flowforge import migrations
from flowforge.db import load_statements, open_database
from flowforge.errors import SettingsError
from flowforge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

_SQL = load_statements("flowforge.testing")
_URL = re.compile(r"(postgres(?:ql)?://[^/?]*)(?:/([^?]*))?(\?.*)?")


class Servers(NamedTuple):
    """Where a test session's servers are. The database that the URL names is connected to, and left as it is."""

    database_url: str
    redis_url: str


@contextmanager
def template(server: str) -> Iterator[str]:
    """Make a migrated database for the block; give its URL. Raises `SettingsError` for a URL that names no server."""
    with _created(server, "create", name := _new_name()) as url:
        if execute(url, _SQL["current"]) != name:  # `?dbname=` has the last word: nothing is migrated there
            raise _refused(server, "name the database in its path alone: postgresql://user@host/name")
        database = open_database(Settings(database_url=url))
        migrations.migrate(database)
        database.close()
        yield url


@contextmanager
def copy(server: str, template: str) -> Iterator[str]:
    """Make a copy of the database at `template` for the block; give its URL."""
    source = _match(template)[2]
    with _created(server, "clone", _new_name(), template=sql.Identifier(source)) as url:
        yield url


@contextmanager
def namespace(redis_url: str) -> Iterator[str]:
    """Give a prefix for keys in Redis, for the block; delete what is left under it."""
    with closing(redis.Redis.from_url(redis_url)) as client:
        try:
            yield (name := _new_name())
        finally:
            for key in client.scan_iter(f"{name}:*", count=1000):
                client.delete(key)


def execute(url: str, statement: Any, **parameters: Any) -> Any:
    """Run a statement on a connection of its own; return the first value, or None without any."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(statement, parameters)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


@contextmanager
def _created(server: str, statement: str, name: str, **names: sql.Identifier) -> Iterator[str]:
    head, _, options = _match(server).groups(default="")
    execute(server, sql.SQL(_SQL[statement]).format(name=sql.Identifier(name), **names))
    try:
        yield f"{head}/{name}{options}"
    finally:
        execute(server, sql.SQL(_SQL["drop"]).format(name=sql.Identifier(name)))


def _match(url: str) -> re.Match[str]:
    if not (match := _URL.fullmatch(url)):
        raise _refused(url, "give a URL such as postgresql://user:password@localhost:5432/postgres")
    return match


def _refused(url: str, remedy: str) -> SettingsError:
    return SettingsError("--flowforge-database-url", re.sub(r":[^:@/]*@", ":…@", url), remedy)


def _new_name() -> str:
    return f"flowforge_test_{uuid4().hex[:16]}"
