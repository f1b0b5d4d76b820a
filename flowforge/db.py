"""
Connections, transactions, and the statements kept in .sql files.

Peewee's database object is the only way to PostgreSQL for FlowForge's own work: one connection for each thread, in
autocommit outside `atomic()`. A connection found dead is closed, so that the next use opens a new one.
"""

from __future__ import annotations

import hashlib
import logging
import re
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import peewee
import psycopg2
import psycopg2.extensions
import psycopg2.extras
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from flowforge.errors import DatabaseUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

#: What the models are bound to; `connect` gives it its database.
proxy = peewee.DatabaseProxy()

#: libpq options without which a silent network would hold a process for hours (seconds, or milliseconds for the last).
_KEEPALIVES: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

_DEADLOCK_RETRIES = 5
_PARAMETER = re.compile(r"%\((\w+)\)s")


#: What is raised when the server cannot be reached, or was lost in the middle.
GONE = (
    DatabaseUnreachable,
    psycopg2.OperationalError,
    psycopg2.InterfaceError,
    peewee.OperationalError,
    peewee.InterfaceError,
)


class Session(psycopg2.extensions.connection):  # type: ignore[misc]
    """A connection of our own, which remembers what it has prepared."""

    prepares = True
    #: Seconds that a statement may take, in transactions that `begun` begins; None: as long as it needs.
    limit: float | None = None

    def prepare(self, cursor: Any, preparation: _Preparation) -> str:
        """Prepare a statement unless that was done; return its EXECUTE."""
        prepared: set[str] = self.__dict__.setdefault("_prepared", set())
        if preparation.name not in prepared:
            cursor.execute(preparation.prepare)
            prepared.add(preparation.name)
        return preparation.execute


class UnpreparedSession(Session):
    """A connection of our own through a pooler that gives every transaction another session."""

    prepares = False


class Database(peewee.PostgresqlDatabase):
    """A PostgreSQL database that notices when a connection has died."""

    def _connect(self) -> Any:
        try:
            return super()._connect()  # type: ignore[misc]
        except psycopg2.OperationalError as error:
            raise DatabaseUnreachable(f"PostgreSQL at DATABASE_URL does not answer: {str(error).strip()}") from error

    def raw(self) -> Connection:
        """Return this thread's psycopg2 connection; a dead one is replaced, unless a transaction was open on it."""
        connection: Connection = self.connection()
        if connection.closed and not self.in_transaction():
            self.close()
            connection = self.connection()
        return connection

    def cursor(self, named_cursor: Any = None) -> Any:
        """Return a cursor for Peewee's own use, on a connection that lives."""
        self.raw()
        return super().cursor(named_cursor)

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """
        Let no statement that a verb or an insight sends on this thread's connection take longer within the block.

        The limit is set for each transaction, not for the session: behind a pooler others use that as well.
        A statement that does take longer raises psycopg2's QueryCanceled.
        """
        connection: Any = self.raw()
        connection.limit = seconds
        try:
            yield
        finally:
            connection.limit = None

    def perform(self, verb: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Call a verb on this thread's connection.

        A deadlock is tried again, at most five times, and logged: the lock order should make it impossible.
        """
        for _ in range(_DEADLOCK_RETRIES):
            try:
                return verb(self.raw(), *args, **kwargs)
            except psycopg2.errors.DeadlockDetected as error:
                logger.warning("db.deadlock verb=%s error=%s", verb.__name__, error)
        return verb(self.raw(), *args, **kwargs)


def _idle(connection: Connection) -> bool:
    return bool(connection.autocommit and connection.info.transaction_status == TRANSACTION_STATUS_IDLE)


@contextmanager
def begun(connection: Connection) -> Iterator[Connection]:
    """Run the block in the transaction that is open on the connection, or else in one of its own."""
    if not _idle(connection):
        yield connection
        return
    with connection.cursor() as cursor:
        cursor.execute("begin")
        if limit := getattr(connection, "limit", None):
            cursor.execute("set local statement_timeout = %s", (round(limit * 1000),))
        try:
            yield connection
        except BaseException:
            if not connection.closed:
                cursor.execute("rollback")
            raise
        cursor.execute("commit")


def open_database(settings: Settings, *, name: str = "flowforge") -> Database:
    """Return the database at DATABASE_URL. `name` is shown in pg_stat_activity."""
    url = settings.require("database_url").database_url
    url = "postgresql://" + url.removeprefix("postgres://") if url.startswith("postgres://") else url
    session = Session if settings.prepare else UnpreparedSession
    return Database(url, application_name=name, connection_factory=session, **_KEEPALIVES)


def connect(settings: Settings, *, name: str = "flowforge") -> Database:
    """Open the database and bind the models to it, for this whole process."""
    database = open_database(settings, name=name)
    proxy.initialize(database)
    return database


def fetch(connection: Connection, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
    """
    Run one statement; return its rows as named tuples.

    On a session of our own it is prepared first, once: planning is a third of what a verb costs. On a caller's
    connection it is sent as it is, because a pooler may stand behind that.
    """
    if getattr(connection, "limit", None) and _idle(connection):
        with begun(connection):
            return fetch(connection, statement, parameters)
    with connection.cursor(cursor_factory=psycopg2.extras.NamedTupleCursor) as cursor:
        if isinstance(connection, Session) and connection.prepares:
            statement = connection.prepare(cursor, _preparation(statement))
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


class _Preparation(NamedTuple):
    name: str
    prepare: str
    execute: str


@cache
def _preparation(statement: str) -> _Preparation:
    """Return a statement's PREPARE, with its parameters by number, and its EXECUTE, with the same by name."""
    name = f"flowforge_{hashlib.sha256(statement.encode()).hexdigest()[:16]}"
    numbers = {parameter: number for number, parameter in enumerate(dict.fromkeys(_PARAMETER.findall(statement)), 1)}
    body = _PARAMETER.sub(lambda match: f"${numbers[match[1]]}", statement).rstrip("; \n")
    given = ", ".join(f"%({parameter})s" for parameter in numbers)
    return _Preparation(name, f"prepare {name} as {body}", f"execute {name} ({given})" if given else f"execute {name}")


@cache
def load_statements(package: str, file: str = "statements.sql") -> dict[str, str]:
    """Return name -> SQL for the blocks of a .sql file, each headed `-- name: …`, in the file's order."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    blocks = re.split(r"^-- name: (.+)$", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(blocks[::2], blocks[1::2], strict=True)}
