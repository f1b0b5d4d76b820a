"""Servers for benchmarks: durable as in production, with the memory that these figures state."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowforge import client, migrations
from flowforge.client import Workflow
from flowforge.embedded.servers import PostgresServer
from flowforge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

#: fsync and synchronous_commit stay on, as PostgreSQL has them.
POSTGRES = {"shared_buffers": "2GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}

single = Workflow("single")


@single.task
def only() -> None:
    """Do nothing."""


@contextmanager
def temporary_database() -> Iterator[Settings]:
    """Start PostgreSQL for the block, migrated."""
    with PostgresServer(options=POSTGRES) as postgres:
        settings = Settings(database_url=postgres.url)
        engine = client.configure(settings)
        migrations.migrate(engine.database)
        engine.database.close()
        yield settings
