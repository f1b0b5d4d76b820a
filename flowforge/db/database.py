"""The database: a connection for each thread, replaced when it was lost, and dropped in a forked child."""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import peewee
import psycopg2

from flowforge import faults
from flowforge.db.outage import Outage
from flowforge.db.session import Session, limit
from flowforge.db.statements import IDLE_LIMIT, MISPLACED, begun, passing
from flowforge.errors import DatabaseUnreachable, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

#: What the models are bound to; `connect` gives it its database.
proxy = peewee.DatabaseProxy()

#: libpq options by which a dead network is noticed (seconds, or milliseconds for the last).
_KEEPALIVES: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

_TRIES = 5
#: What PostgreSQL and PgBouncer say when all connections are taken: no code comes with it before there is a session.
_EXHAUSTED = re.compile(r"too many (clients|connections)|connection slots|no more connections allowed")

#: What is raised when the server cannot be reached, or was lost in the middle.
GONE = (
    DatabaseUnreachable,
    psycopg2.OperationalError,
    psycopg2.InterfaceError,
    peewee.OperationalError,
    peewee.InterfaceError,
)
#: … among which these are of one statement, from a server that is there.
_OF_A_STATEMENT = (psycopg2.errors.QueryCanceled, psycopg2.errors.LockNotAvailable)


class Database(peewee.PostgresqlDatabase):
    """A PostgreSQL database that notices when a connection was lost."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, connection_factory=options.pop("connection_factory", Session), **options)
        _databases.add(self)
        self.outage = Outage()

    def _connect(self) -> Any:
        try:
            return super()._connect()  # type: ignore[misc]
        except psycopg2.OperationalError as error:
            raise DatabaseUnreachable(_told(str(error).strip())) from error

    def raw(self) -> Connection:
        """
        Return this thread's psycopg2 connection. One that was lost is replaced, unless a transaction was open on it.

        That an idle connection was cut is seen here, for a microsecond, and not by the statement that would fail.
        """
        connection = self.connection()
        if connection.is_lost() and not self.in_transaction():
            self.close()
            connection = self.connection()
        return connection

    def cursor(self, named_cursor: Any = None) -> Any:
        """Return a cursor for Peewee's own use, on a connection that lives."""
        self.raw()
        return super().cursor(named_cursor)

    def forget(self) -> None:
        """
        Drop this thread's connection and leave it open: in a forked child it is the parent's.

        psycopg2 does not end a session from another process than the one that began it. Peewee's lock is made anew,
        because another thread of the parent's may have held it.
        """
        self._lock = threading.Lock()
        self.dispose()

    def begin(self, isolation_level: str | None = None) -> None:
        """Begin a transaction for Peewee, under the same limit as one of `begun`."""
        super().begin(isolation_level)
        self.execute_sql(IDLE_LIMIT)

    def commit(self) -> None:
        """Commit for Peewee, and pass the same points as `begun`."""
        with passing(self.raw(), "transaction"):
            super().commit()

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """
        Let no statement that this thread sends within the block take longer; with math.inf let it take its time.

        The limit of a verb or an insight is set for each transaction, not for the session: behind a pooler others use
        that as well. A statement that does take longer raises psycopg2's QueryCanceled.
        """
        token = limit.set(seconds)
        try:
            yield
        finally:
            limit.reset(token)

    def perform(self, verb: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Call a verb on this thread's connection.

        A deadlock is tried again, at most five times, and logged: the lock order should make it impossible. So is a
        verb whose prepared statement was missing, because a pooler gave the session to another.
        """
        try:
            answer = self._perform(_with_points(verb) if faults.armed() else verb, *args, **kwargs)
        except GONE as error:
            if not isinstance(error, _OF_A_STATEMENT):
                self.outage.begin()
            raise
        self.outage.end()
        return answer

    def _perform(self, verb: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_TRIES):
            try:
                return verb(self.raw(), *args, **kwargs)
            except psycopg2.errors.DeadlockDetected as error:
                logger.warning("db.deadlock verb=%s error=%s", verb.__name__, error)
            except MISPLACED:  # logged where it was noticed
                continue
        return verb(self.raw(), *args, **kwargs)


def _with_points(verb: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Connection, P], T]:
    """Return a verb in a transaction of its own, so that there is a moment before its commit."""

    @functools.wraps(verb)
    def perform(connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with begun(connection, verb.__name__.strip("_")):
            return verb(connection, *args, **kwargs)

    return perform


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _forget_all() -> None:
    for database in _databases:
        database.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _told(words: str) -> str:
    """Return what a failed connection means, in the server's words, with the remedy where we know it."""
    if not _EXHAUSTED.search(words):
        return f"PostgreSQL at DATABASE_URL does not answer: {words}"
    return (
        f"PostgreSQL at DATABASE_URL has no connection left: {words}. Run fewer processes or threads, raise "
        "max_connections or the role's CONNECTION LIMIT, or connect through PgBouncer"
    )


def open_database(settings: Settings, *, name: str = "flowforge") -> Database:
    """Return the database at DATABASE_URL, as `name` in pg_stat_activity. Raises `SettingsError` for other URLs."""
    url = settings.require("database_url").database_url
    scheme, _, rest = url.rpartition("://")
    if scheme not in {"", "postgres", "postgresql"}:
        raise SettingsError(
            "DATABASE_URL", f"{scheme}://…", "it must begin with postgresql://, without a driver's name"
        )
    url = f"postgresql://{rest}" if scheme else url
    return Database(url, application_name=name, **_KEEPALIVES)


def connect(settings: Settings, *, name: str = "flowforge") -> Database:
    """Open the database and bind the models to it, for this whole process."""
    database = open_database(settings, name=name)
    proxy.initialize(database)
    return database
