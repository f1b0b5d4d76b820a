"""The network to PostgreSQL is cut again and again, or says nothing more, under all processes at once."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from flowforge.chaos.proxy import Proxy
from tests.conftest import administer
from tests.e2e.conftest import events, owner_pid
from tests.e2e.postgres_faults.ledger import LEDGER, check, ledger
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowforge.embedded.servers import PostgresServer
    from tests.e2e.conftest import Fleet
    from tests.e2e.postgres_faults.conftest import Load

HASTY = {"FLOWFORGE_MODULES": f"tests.e2e.postgres_faults.hasty,{LEDGER['FLOWFORGE_MODULES']}"}


def test_connections_are_cut_again_and_again(
    fleet: Fleet, network: Proxy, far: dict[str, str], postgres: PostgresServer, load: Load
) -> None:
    """B009, B098: idle or in a query, by the server or by the network; nothing deadlocks, and no process ends."""
    name = far["DATABASE_URL"].rpartition("/")[2]
    terminate = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
    for _ in range(2):
        fleet.start("flowforge.scheduler", **far)
        fleet.worker(**LEDGER, **far)
    load.start()

    for number in range(8):
        threading.Event().wait(random.uniform(0.1, 0.4))
        network.cut() if number % 2 else administer(postgres, terminate)

    load.check()
    assert all(process.poll() is None for process in fleet.processes)
    assert not [process for process in fleet.processes if "db.deadlock" in fleet.log(process)]


@pytest.mark.parametrize(
    "fail",
    [Proxy.stall, pytest.param(Proxy.strand, marks=pytest.mark.soak)],
    ids=["nothing comes through", "old connections are forgotten"],
)
def test_a_silent_network_only_delays(
    fleet: Fleet, network: Proxy, far: dict[str, str], file: Path, fail: Callable[[Proxy], None]
) -> None:
    """B103: packets are dropped and nothing is reset; here after two seconds, and in `make soak` after twenty."""
    scheduler = fleet.start("tests.e2e.postgres_faults.hasty", **far)
    worker = fleet.worker(**HASTY, **far, FLOWFORGE_LEASE="9")
    check([ledger.start(str(file))], file)
    runs = [ledger.start(str(file), seconds=2)]
    owner_pid(runs[0], "first")

    fail(network)
    runs.append(ledger.start(str(file)))
    wait_for(lambda: "has not answered" in fleet.log(scheduler) and "has not answered" in fleet.log(worker))
    network.flow()

    check(runs, file)
    assert events(runs[0], "first") == ["created", "claimed", "succeeded"]
    assert all(process.poll() is None for process in fleet.processes)
