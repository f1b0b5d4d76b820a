"""Real PostgreSQL and real Valkey for the session; for each test a database of its own, cloned from a template."""

from __future__ import annotations

import os
import shlex
import subprocess
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg2
import pytest
import redis as redis_client

from flowforge import db, migrations
from flowforge.embedded.servers import HURRY, PostgresServer, ValkeyServer, memory
from flowforge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = count(1)
_TEMPLATE = "flowforge_template"
#: Directory of the programs of another PostgreSQL to test with.
_POSTGRES = os.environ.get("FLOWFORGE_TEST_POSTGRES")
#: Command that migrates DATABASE_URL as a later release does, to test this one on it: see tests/previous.py.
_MIGRATE = os.environ.get("FLOWFORGE_TEST_MIGRATE")


class TestedPostgres(PostgresServer):
    """The embedded PostgreSQL, or the one that FLOWFORGE_TEST_POSTGRES names."""

    __test__ = False

    def binaries(self) -> Path:
        """Return the directory of its programs."""
        return Path(_POSTGRES) if _POSTGRES else super().binaries()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL, without durability: these tests never cut its power."""
    with TestedPostgres(options=HURRY, place=memory()) as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """One Valkey; each test uses a namespace of its own."""
    with ValkeyServer() as server:
        yield server


def database_on(server: PostgresServer, name: str) -> str:
    """Return the URL of another database of the same server."""
    return server.url.replace("/postgres?", f"/{name}?")


def administer(server: PostgresServer, statement: str) -> None:
    """Run a statement that cannot run in a transaction."""
    connection = psycopg2.connect(server.url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    """A migrated database to clone."""
    administer(postgres, f"create database {_TEMPLATE}")
    url = database_on(postgres, _TEMPLATE)
    if _MIGRATE:
        subprocess.run(shlex.split(_MIGRATE), env={**os.environ, "DATABASE_URL": url}, check=True)
        return _TEMPLATE
    database = db.open_database(Settings(database_url=url))
    migrations.migrate(database)
    database.close()
    return _TEMPLATE


@pytest.fixture
def database_url(postgres: PostgresServer, template: str) -> Iterator[str]:
    """The URL of a migrated database for this test alone."""
    name = f"test_{next(_numbers)}"
    administer(postgres, f"create database {name} template {template} strategy file_copy")
    yield database_on(postgres, name)
    administer(postgres, f"drop database {name} with (force)")


@pytest.fixture
def settings(database_url: str, valkey: ValkeyServer) -> Settings:
    """Settings for this test's database and a namespace of its own."""
    return Settings(database_url=database_url, redis_url=valkey.url, namespace=f"test{next(_numbers)}")


@pytest.fixture
def database(database_url: str) -> Iterator[db.Database]:
    """This test's database, with the models bound to it."""
    database = db.connect(Settings(database_url=database_url))
    yield database
    database.close()


@pytest.fixture
def redis(valkey: ValkeyServer) -> Iterator[redis_client.Redis]:
    """A client of the session's Valkey."""
    client = redis_client.Redis.from_url(valkey.url)
    yield client
    client.close()
