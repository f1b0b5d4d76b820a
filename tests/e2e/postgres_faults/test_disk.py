"""The disk of PostgreSQL is full: nothing is lost, and once there is room work goes on by itself."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg2
import pytest

from flowforge import db, migrations
from flowforge.settings import Settings
from tests.e2e.postgres_faults.ledger import LEDGER
from tests.e2e.postgres_faults.servers import SmallPostgres, ask
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.embedded.servers import PostgresServer, ValkeyServer
    from tests.e2e.conftest import Fleet
    from tests.e2e.postgres_faults.conftest import Load


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk of 128 MB, which the server's account may reach."""
    directory = Path(tempfile.mkdtemp())
    command = ["mount", "-t", "tmpfs", "-o", "size=128m,mode=755", "tmpfs", str(directory)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        directory.rmdir()
        pytest.skip(f"no small disk without the right to mount one, as root has on Linux: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)
    directory.rmdir()


@pytest.fixture
def server(disk: Path) -> Iterator[PostgresServer]:
    """A server on that disk."""
    with SmallPostgres(disk) as server:
        yield server


@pytest.fixture
def settings(server: PostgresServer, valkey: ValkeyServer) -> Settings:
    """Settings for it."""
    settings = Settings(database_url=server.url, redis_url=valkey.url, namespace=uuid4().hex)
    with closing(db.open_database(settings)) as database:
        migrations.migrate(database)
    return settings


def fill(file: Path) -> None:
    """Leave no room on a file's disk."""
    with file.open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(b"x" * 4096):
            pass


def fill_log(server: PostgresServer) -> None:
    """Write to the write-ahead log until that has no room, which no PostgreSQL survives."""
    with suppress(psycopg2.OperationalError):
        for _ in range(256):
            ask(server, "select pg_logical_emit_message(true, 'test', repeat('x', 500000))")
        pytest.fail("the disk has more room than was thought")


def test_a_full_disk_only_delays(fleet: Fleet, server: PostgresServer, disk: Path, load: Load) -> None:
    """B009: with no room for a table a statement fails; with none for the write-ahead log the server does."""
    fleet.scheduler()
    worker = fleet.worker(**LEDGER)
    load.start()
    load.grow()

    fill(disk / "ballast")
    wait_for(lambda: "No space left on device" in fleet.log(worker))
    (disk / "ballast").unlink()
    load.grow()
    fill(disk / "ballast")
    fill_log(server)
    (disk / "ballast").unlink()
    server.start()
    load.grow()

    load.check()
    assert all(process.poll() is None for process in fleet.processes)
