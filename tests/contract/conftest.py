"""Databases beside the one of each test: empty ones, and one that is full."""

from __future__ import annotations

from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING

import psycopg2
import pytest

from tests.conftest import administer, database_on
from tests.contract.crowd import fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.embedded.servers import PostgresServer
    from tests.contract.crowd import Busy

_numbers = count(1)


@contextmanager
def another_database(server: PostgresServer, template: str = "template1") -> Iterator[str]:
    """Yield the URL of a new database, a clone of the template, and drop it afterwards."""
    name = f"contract_{next(_numbers)}"
    administer(server, f"create database {name} template {template} strategy file_copy")
    yield database_on(server, name)
    administer(server, f"drop database {name} with (force)")


@pytest.fixture
def empty_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database that FlowForge has never seen."""
    with another_database(postgres) as url:
        yield url


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """A plain connection to this test's database; whatever it leaves uncommitted is rolled back."""
    with closing(psycopg2.connect(database_url)) as connection:
        yield connection


@pytest.fixture(scope="session")
def crowded(postgres: PostgresServer, template: str) -> Iterator[tuple[str, Busy]]:
    """The name of a full database to clone, whose statistics are from when it was nearly empty; and what is at work."""
    with another_database(postgres, template) as url:
        yield url.partition("?")[0].rpartition("/")[2], fill(url)
