"""Statements: run in a transaction or alone, prepared where that pays, kept in .sql files."""

from __future__ import annotations

import logging
import math
import re
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from psycopg2.errors import DuplicatePreparedStatement, InvalidSqlStatementName
from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from psycopg2.extras import NamedTupleCursor

from flowforge import faults
from flowforge.db.session import NamedRows, Session, limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from psycopg2.extensions import connection as Connection  # noqa: N812

logger = logging.getLogger(__name__)

#: What a prepared statement ends in when another session answers than the one in which it was prepared.
MISPLACED = (InvalidSqlStatementName, DuplicatePreparedStatement)

#: Lets PostgreSQL end a transaction of ours that says nothing more: whoever began it may be stopped, or gone, which a
#: server may notice after hours, and its locks would keep all others from doing its work.
IDLE_LIMIT = "set local idle_in_transaction_session_timeout = '30s'"


@contextmanager
def begun(connection: Connection, name: str = "transaction") -> Iterator[Connection]:
    """
    Run the block in the transaction that is open on the connection, or else in one of its own.

    Its commit stands between the points `name.before_commit` and `name.after_commit`, if there is anything to commit.
    """
    if not _idle(connection):
        yield connection
        return
    with connection.cursor() as cursor:
        cursor.execute(f"begin; {IDLE_LIMIT}")
        if seconds := _limit_of(connection):
            cursor.execute("set local statement_timeout = %s", (round(seconds * 1000),))
        try:
            yield connection
        except BaseException:
            if not connection.closed:
                cursor.execute("rollback")
            raise
        with passing(connection, name):
            cursor.execute("commit")


@contextmanager
def passing(connection: Connection, name: str) -> Iterator[None]:
    """Let the block's commit pass the points before and after it, if there is anything to commit."""
    passed = faults.armed() and _has_changed(connection)
    if passed:
        faults.point(f"{name}.before_commit")
    yield
    if passed:
        faults.point(f"{name}.after_commit")


def _has_changed(connection: Connection) -> bool:
    """Whether the open transaction has changed or locked a row: a turn that found nothing is no moment to die in."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_current_xact_id_if_assigned() is not null")
        return bool(cursor.fetchone()[0])


def fetch(connection: Connection, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
    """
    Run one statement; return its rows as named tuples.

    On a session of our own it is prepared first, once: planning is a third of what a verb costs. On a caller's
    connection it is sent as it is, because a pooler may stand behind that.
    """
    if not isinstance(connection, Session):
        return _run(connection, statement, parameters)
    if _limit_of(connection) and _idle(connection):
        with begun(connection):
            return fetch(connection, statement, parameters)
    try:
        return _run(connection, statement, parameters)
    except MISPLACED as error:
        _prepare_no_more(error)
        if not _idle(connection):
            raise  # for whoever began the transaction: it is aborted
        return _run(connection, statement, parameters)


def _run(connection: Connection, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
    ours = isinstance(connection, Session)
    with connection.cursor(cursor_factory=NamedRows if ours else NamedTupleCursor) as cursor:
        cursor.execute(connection.prepared(cursor, statement) if ours else statement, parameters)
        return cursor.fetchall() if cursor.description else []


def _prepare_no_more(error: Exception) -> None:
    if Session.prepares:
        Session.prepares = False
        logger.warning("db.unprepared error=%s: a pooler gives sessions away, so nothing is prepared any more", error)


def _idle(connection: Connection) -> bool:
    return bool(connection.autocommit and connection.info.transaction_status == TRANSACTION_STATUS_IDLE)


def _limit_of(connection: Connection) -> float | None:
    """Return the seconds that a statement of this thread may take on the server: only on a session of our own."""
    seconds = limit.get() if isinstance(connection, Session) else None
    return None if seconds == math.inf else seconds


@cache
def load_statements(package: str, file: str = "statements.sql") -> dict[str, str]:
    """Return name -> SQL for the blocks of a .sql file, each headed `-- name: …`, in the file's order."""
    return parse_statements(resources.files(package).joinpath(file).read_text(encoding="utf-8"))


def parse_statements(text: str) -> dict[str, str]:
    """Return name -> SQL for the blocks of the text of such a file."""
    blocks = re.split(r"^-- name: (.+)$", text, flags=re.MULTILINE)[1:]
    return {name: _bare(body) for name, body in zip(blocks[::2], blocks[1::2], strict=True)}


def _bare(text: str) -> str:
    """Return a statement without its comments: they are for readers, and not every client's encoding can hold them."""
    lines = (line.partition("--")[0].rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)
