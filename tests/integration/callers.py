"""Callers with each of the libraries: a connection in a transaction that the end of the block commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import asyncpg
import django
import django.conf
import psycopg
import psycopg2
import sqlalchemy as sa
from django.db import connection as django_connection
from django.db import connections, transaction
from peewee import PostgresqlDatabase
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class RolledBack(Exception):  # noqa: N818 - no error, but a way out
    """Ends a caller's transaction."""


@contextmanager
def on_psycopg2(url: str) -> Iterator[Any]:
    with closing(psycopg2.connect(url)) as connection, connection:
        yield connection


@contextmanager
def on_peewee(url: str, *, autocommit: bool = False) -> Iterator[Any]:
    database = PostgresqlDatabase(url)
    try:
        with nullcontext() if autocommit else database.atomic():
            yield database
    finally:
        database.close()


@contextmanager
def on_psycopg(url: str, **options: Any) -> Iterator[Any]:
    with psycopg.connect(url, **options) as connection:
        yield connection


@contextmanager
def on_psycopg_transaction(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        yield connection


@contextmanager
def sqlalchemy_engine(url: str, driver: str, **options: Any) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url.replace("postgresql://", f"postgresql+{driver}://"), **options)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def on_session(url: str, driver: str, **options: Any) -> Iterator[Any]:
    with sqlalchemy_engine(url, driver, **options) as engine, Session(engine) as session, session.begin():
        session.execute(sa.text("select 1"))
        yield session


@contextmanager
def on_scoped_session(url: str) -> Iterator[Any]:
    with sqlalchemy_engine(url, "psycopg2") as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            with session.begin():
                yield session
        finally:
            session.remove()


@contextmanager
def on_connection(url: str, driver: str, **options: Any) -> Iterator[Any]:
    with sqlalchemy_engine(url, driver, **options) as engine, engine.begin() as connection:
        yield connection


@contextmanager
def on_django(url: str, *, autocommit: bool = False) -> Iterator[Any]:
    parts = conninfo_to_dict(url)
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts["user"]}
    database |= {"HOST": parts["host"], "PORT": parts.get("port", "")}
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={"default": dict(database)})
        django.setup()
    connections.settings["default"].update(database)
    try:
        with nullcontext() if autocommit else transaction.atomic():
            yield django_connection
    finally:
        connections.close_all()
        del connections["default"]


#: How a caller is named -> its connection.
Callers = Mapping[str, Callable[[str], Any]]

CALLERS: Callers = {
    "psycopg2": on_psycopg2,
    "Peewee": on_peewee,
    "psycopg": on_psycopg,
    "psycopg, rows as dicts": lambda url: on_psycopg(url, row_factory=dict_row),
    "psycopg, transaction()": on_psycopg_transaction,
    "psycopg, LATIN1": lambda url: on_psycopg(url, client_encoding="LATIN1"),
    "Session on psycopg2": lambda url: on_session(url, "psycopg2"),
    "Session on psycopg": lambda url: on_session(url, "psycopg"),
    "scoped_session": on_scoped_session,
    "Connection, stream_results": lambda url: on_connection(
        url, "psycopg2", execution_options={"stream_results": True}
    ),
    "Connection on psycopg2": lambda url: on_connection(url, "psycopg2"),
    "Connection on psycopg": lambda url: on_connection(url, "psycopg"),
    "Django": on_django,
}


@asynccontextmanager
async def on_async_psycopg(url: str, **options: Any) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, **options) as connection:
        yield connection


@asynccontextmanager
async def async_engine(url: str, driver: str, **options: Any) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"), **options)
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def on_async_session(url: str, driver: str, **options: Any) -> AsyncIterator[Any]:
    async with async_engine(url, driver, **options) as engine, AsyncSession(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def on_async_scoped_session(url: str) -> AsyncIterator[Any]:
    async with async_engine(url, "asyncpg") as engine:
        session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        try:
            async with session.begin():
                yield session
        finally:
            await session.remove()


@asynccontextmanager
async def on_async_connection(url: str, driver: str, **options: Any) -> AsyncIterator[Any]:
    async with async_engine(url, driver, **options) as engine, engine.begin() as connection:
        yield connection


@asynccontextmanager
async def on_asyncpg(url: str, *, autocommit: bool = False) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with nullcontext() if autocommit else connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def on_asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection, connection.transaction():
        yield connection


ASYNC_CALLERS: Callers = {
    "psycopg": on_async_psycopg,
    "AsyncSession on psycopg": lambda url: on_async_session(url, "psycopg"),
    "AsyncSession on asyncpg": lambda url: on_async_session(url, "asyncpg"),
    "async_scoped_session": on_async_scoped_session,
    "AsyncConnection on psycopg": lambda url: on_async_connection(url, "psycopg"),
    "AsyncConnection on asyncpg": lambda url: on_async_connection(url, "asyncpg"),
    "asyncpg": on_asyncpg,
    "asyncpg, pool": on_asyncpg_pool,
}

# The same in autocommit: each statement is a transaction of its own.

_AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


@contextmanager
def on_psycopg2_in_autocommit(url: str) -> Iterator[Any]:
    with closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        yield connection


IN_AUTOCOMMIT: Callers = {
    "psycopg2": on_psycopg2_in_autocommit,
    "psycopg": lambda url: on_psycopg(url, autocommit=True),
    "Session on psycopg2": lambda url: on_session(url, "psycopg2", **_AUTOCOMMIT),
    "Session on psycopg": lambda url: on_session(url, "psycopg", **_AUTOCOMMIT),
    "Connection on psycopg2": lambda url: on_connection(url, "psycopg2", **_AUTOCOMMIT),
    "Connection on psycopg": lambda url: on_connection(url, "psycopg", **_AUTOCOMMIT),
    "Django": lambda url: on_django(url, autocommit=True),
    "Peewee": lambda url: on_peewee(url, autocommit=True),
}

ASYNC_IN_AUTOCOMMIT: Callers = {
    "psycopg": lambda url: on_async_psycopg(url, autocommit=True),
    "AsyncSession on psycopg": lambda url: on_async_session(url, "psycopg", **_AUTOCOMMIT),
    "AsyncSession on asyncpg": lambda url: on_async_session(url, "asyncpg", **_AUTOCOMMIT),
    "AsyncConnection on psycopg": lambda url: on_async_connection(url, "psycopg", **_AUTOCOMMIT),
    "AsyncConnection on asyncpg": lambda url: on_async_connection(url, "asyncpg", **_AUTOCOMMIT),
    "asyncpg": lambda url: on_asyncpg(url, autocommit=True),
}
