"""The client, as user code has it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest

import flowforge
from flowforge.testing import Servers
from tests.integration.sales import define

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge import Workflow
    from flowforge.client import Engine
    from flowforge.embedded.servers import PostgresServer, ValkeyServer
    from flowforge.settings import Settings


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    """The process's engine, configured for this test's database and namespace."""
    engine = flowforge.configure(settings)
    yield engine
    engine.database.close()


@pytest.fixture
def sales(engine: Engine) -> Workflow[...]:  # noqa: ARG001 - configured
    """A workflow that is not stored yet."""
    return define()


@pytest.fixture
def connection(database_url: str) -> Iterator[Any]:
    """A connection of the caller's own."""
    with closing(psycopg2.connect(database_url)) as connection:
        yield connection


@pytest.fixture(scope="session")
def flowforge_servers(postgres: PostgresServer, valkey: ValkeyServer) -> Servers:
    """The servers of this session, for the fixtures that FlowForge's users have."""
    return Servers(postgres.url, valkey.url)
