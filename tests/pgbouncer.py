"""A real PgBouncer in transaction mode, in front of a server of these tests."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import psycopg2
import pytest

from flowforge.embedded import wheels
from flowforge.embedded.guardian import Order
from flowforge.embedded.server import Server

if TYPE_CHECKING:
    from flowforge.embedded.servers import PostgresServer

#: Sessions that PgBouncer keeps for each database.
POOL = 2

_PROGRAM = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
_CONFIGURATION = """
[databases]
* = host={socket} port=5432 user=postgres

[pgbouncer]
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 200
auth_type = any
listen_port = 6432
unix_socket_dir = {own}
"""

needs_pgbouncer = pytest.mark.skipif(_PROGRAM is None, reason="no PgBouncer: apt-get install pgbouncer")


class PgBouncer(Server):
    """PgBouncer on a Unix socket; it refuses root, and runs as the account that its PostgreSQL runs as."""

    name = "pgbouncer"

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server

    @property
    def url(self) -> str:
        """The URL for libpq, of the database `postgres`."""
        return f"postgresql://postgres@/postgres?host={self.scratch}&port=6432"

    def order(self) -> Order:
        """Write the configuration; return the command."""
        file = self.data / "pgbouncer.ini"
        file.write_text(_CONFIGURATION.format(socket=self._server.scratch, own=self.scratch, pool=POOL))
        return Order([], [str(_PROGRAM), file.name], wheels.account(), signal.SIGKILL, str(self.scratch))

    def ready(self) -> bool:
        """Ask for a connection."""
        try:
            psycopg2.connect(self.url).close()
        except psycopg2.OperationalError:
            return False
        return True
