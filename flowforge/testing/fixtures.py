"""The fixtures, and the options that say where their servers are."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flowforge import client
from flowforge.client.engine import configured
from flowforge.db import open_database
from flowforge.embedded.servers import HURRY, PostgresServer, ValkeyServer, memory
from flowforge.settings import Settings
from flowforge.testing import databases
from flowforge.testing.clock import Clock
from flowforge.testing.databases import Servers
from flowforge.testing.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the options for servers that run already."""
    group = parser.getgroup("flowforge")
    group.addoption("--flowforge-database-url", help="PostgreSQL to make databases on, in place of an embedded one")
    group.addoption("--flowforge-redis-url", help="Redis or Valkey to use, in place of an embedded one")


@pytest.fixture(scope="session")
def flowforge_servers(pytestconfig: pytest.Config) -> Iterator[Servers]:
    """The servers of the options; embedded ones, which live for the session, where there is no option."""
    with ExitStack() as embedded:
        yield Servers(
            pytestconfig.getoption("--flowforge-database-url")
            or embedded.enter_context(PostgresServer(options=HURRY, place=memory())).url,
            pytestconfig.getoption("--flowforge-redis-url") or embedded.enter_context(ValkeyServer()).url,
        )


@pytest.fixture(scope="session")
def flowforge_template(flowforge_servers: Servers) -> Iterator[str]:
    """The URL of a migrated database of which each test gets a copy; override it to add tables of your own."""
    with databases.template(flowforge_servers.database_url) as url:
        yield url


@pytest.fixture
def flowforge_settings() -> Settings:
    """What differs from the defaults for a test; override it to change that. URLs and namespace are filled in."""
    return Settings(threads=4, grace=5)


@pytest.fixture
def flowforge_database(
    flowforge_servers: Servers, flowforge_template: str, flowforge_settings: Settings
) -> Iterator[str]:
    """The URL of a database for this test alone, for which this process's engine is configured meanwhile."""
    with ExitStack() as mine:
        url = mine.enter_context(databases.copy(flowforge_servers.database_url, flowforge_template))
        namespace = mine.enter_context(databases.namespace(flowforge_servers.redis_url))
        settings = replace(
            flowforge_settings, database_url=url, redis_url=flowforge_servers.redis_url, namespace=namespace
        )
        engine = mine.enter_context(configured(settings))
        mine.callback(engine.database.close)
        yield url


@pytest.fixture
def flowforge_worker(flowforge_database: str) -> Iterator[Worker]:  # noqa: ARG001 - it serves that
    """A worker in threads of this process, which runs what `serve` names until the test is over."""
    worker = Worker()
    yield worker
    worker.stop()


@pytest.fixture
def flowforge_clock(flowforge_database: str) -> Iterator[Clock]:
    """The clock of this test's database, moved on a connection of its own: not in a transaction of the test's."""
    database = open_database(Settings(database_url=flowforge_database))
    yield Clock(database, lambda: client.engine().wake(b"now"))
    database.close()
