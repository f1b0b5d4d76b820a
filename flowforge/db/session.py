"""A connection of our own: what it has prepared, how long it waits for an answer, and whether it was cut."""

from __future__ import annotations

import hashlib
import re
import select
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from psycopg2.extensions import connection as Connection  # noqa: N812
from psycopg2.extensions import cursor as Cursor  # noqa: N812
from psycopg2.extras import NamedTupleCursor

from flowforge.db.patience import Patience
from flowforge.errors import DatabaseUnreachable
from flowforge.once import once

#: Seconds that this thread's statements may take, as `Database.limited` has set it; None: as `_SILENCE` says.
limit: ContextVar[float | None] = ContextVar("limit", default=None)

#: Seconds without an answer after which a connection is cut, where there is no limit; and beyond one that there is.
_SILENCE, _BEYOND_LIMIT = 20.0, 2.0
_PARAMETER = re.compile(r"%\((\w+)\)s")


class _Awaiting:
    """What makes a cursor wait for the server's answer only for so long."""

    connection: Session

    def execute(self, query: Any, parameters: Any = None) -> None:
        """
        Run a statement. Raises `DatabaseUnreachable` when no answer comes, or from a server that takes no writes.

        Such a connection is closed: after a failover the address leads to another server, and an old session does not.
        """
        seconds = _SILENCE if (limited := limit.get()) is None else limited + _BEYOND_LIMIT
        try:
            with Patience(self.connection, seconds):
                super().execute(query, parameters)  # type: ignore[misc]
        except psycopg2.errors.ReadOnlySqlTransaction as error:
            self.connection.close()
            raise DatabaseUnreachable(
                f"PostgreSQL at DATABASE_URL takes no writes: {str(error).strip()}. It is a standby, or "
                "default_transaction_read_only is on: promote it, or let DATABASE_URL lead to the primary"
            ) from error
        except psycopg2.OperationalError as error:
            if not self.connection.cut:
                raise
            raise DatabaseUnreachable(
                f"PostgreSQL at DATABASE_URL has not answered for {seconds:g} s, and its connection was cut: look at "
                "the network and for locks. Whether the statement was carried out is not known"
            ) from error


class Rows(_Awaiting, Cursor):  # type: ignore[misc]
    """A cursor of a session."""


class NamedRows(_Awaiting, NamedTupleCursor):  # type: ignore[misc]
    """A cursor of a session whose rows are named tuples."""


class Session(Connection):  # type: ignore[misc]
    """A connection of our own, which remembers what it has prepared."""

    #: Whether this process prepares statements: not any more once a session has lost one.
    prepares = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cursor_factory = Rows
        self.cut = False
        self._prepared: set[str] = set()

    def is_lost(self) -> bool:
        """
        Whether the connection is closed, by us or, while no transaction was open, by the server.

        The server says why it closes an idle connection, so that there is something to read when nothing was asked.
        """
        if self.closed:
            return True
        if self.get_transaction_status() != TRANSACTION_STATUS_IDLE:
            return False
        poller = select.poll()  # not select.select, which takes only the first 1024 descriptors
        poller.register(self.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    @once
    def is_pooled(self) -> bool:
        """Whether a pooler stands between: the session that answers is not the one that greeted us."""
        with self.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            return bool(cursor.fetchone()[0] != self.info.backend_pid)

    def prepared(self, cursor: Any, statement: str) -> str:
        """Prepare a statement unless that was done, and return its EXECUTE; or the statement, behind a pooler."""
        if not Session.prepares or self.is_pooled:
            return statement
        preparation = _preparation(statement)
        if preparation.name not in self._prepared:
            cursor.execute(preparation.prepare)
            self._prepared.add(preparation.name)
        return preparation.execute


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
