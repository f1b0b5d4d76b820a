"""PostgreSQL servers that a test may break: one of its own, a standby of it, and one on a small disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg2

from tests.conftest import TestedPostgres, administer
from tests.support import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.embedded.servers import PostgresServer

#: What was confirmed outlives a crash of the server; nothing here takes a machine's power.
OPTIONS = {"fsync": "off", "full_page_writes": "off"}


def socket_of(server: PostgresServer) -> str:
    """Return the path of a server's socket."""
    return f"{server.scratch}/.s.PGSQL.5432"


def ask(server: PostgresServer, question: str) -> object:
    """Return the answer of one row and column, or None while there is no row."""
    connection = psycopg2.connect(server.url)
    with connection, connection.cursor() as cursor:
        cursor.execute(question)
        row = cursor.fetchone()
    connection.close()
    return row[0] if row else None


class Standby(TestedPostgres):
    """A copy of a primary, which follows it from then on."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(options=primary.options)
        self._primary = primary

    def _initdb(self, program: str) -> list[str]:
        """Return the command that makes its data: a copy of the primary's."""
        source = f"--host={self._primary.scratch}", "--port=5432", "--username=postgres"
        how = "--write-recovery-conf", "--checkpoint=fast", "--no-sync"
        return [program.replace("initdb", "pg_basebackup"), "-D", ".", *source, *how]

    def confirm_commits(self) -> None:
        """Let the primary confirm a commit only once this standby has it."""
        administer(self._primary, "alter system set synchronous_standby_names = '*'")
        administer(self._primary, "select pg_reload_conf()")
        wait_for(lambda: ask(self._primary, "select sync_state from pg_stat_replication") == "sync")

    def promote(self) -> None:
        """Make this the primary."""
        assert ask(self, "select pg_promote()")


class SmallPostgres(TestedPostgres):
    """A server in a directory, which is small, with write-ahead log in files of 1 MB that no checkpoint recycles."""

    def __init__(self, directory: Path) -> None:
        log = {"min_wal_size": "2MB", "max_wal_size": "1GB", "checkpoint_timeout": "1d"}
        super().__init__(directory, options={**OPTIONS, **log})

    def _initdb(self, program: str) -> list[str]:
        return [*super()._initdb(program), "--wal-segsize=1"]
