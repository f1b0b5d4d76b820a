"""Faults of a Valkey that is the test's own, and of the network to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flowforge import client
from flowforge.chaos.proxy import Proxy
from flowforge.embedded.servers import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import Fleet


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    """A server for this test alone, in place of the session's."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def network(valkey: ValkeyServer) -> Iterator[Proxy]:
    """A network before it."""
    with Proxy(("127.0.0.1", valkey.port)) as proxy:
        yield proxy


@pytest.fixture
def distant(network: Proxy, fleet: Fleet) -> Iterator[Fleet]:
    """A fleet, and a client, that reach the server over the network."""
    fleet.settings = replace(fleet.settings, redis_url=f"redis://127.0.0.1:{network.port}/0")
    engine = client.configure(fleet.settings)
    yield fleet
    fleet.stop()
    engine.database.close()
