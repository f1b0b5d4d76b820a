"""PostgreSQL is restarted, crashes, is failed over: schedulers and workers outlive it, and nobody restarts them."""

from __future__ import annotations

import re
import threading
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from flowforge import client, db, migrations
from flowforge.chaos.proxy import Proxy
from flowforge.models import TaskRun
from flowforge.settings import Settings
from flowforge.states import TaskState
from tests import factories
from tests.conftest import TestedPostgres
from tests.e2e.conftest import events, insights_after, owner_pid
from tests.e2e.postgres_faults.conftest import TRAPS, says
from tests.e2e.postgres_faults.ledger import LEDGER, check, ledger
from tests.e2e.postgres_faults.servers import OPTIONS, Standby, ask, socket_of
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge.embedded.servers import PostgresServer, ValkeyServer
    from tests.e2e.conftest import Fleet
    from tests.e2e.postgres_faults.conftest import Load


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own."""
    with TestedPostgres(options=OPTIONS) as server:
        yield server


@pytest.fixture
def network(server: PostgresServer) -> Iterator[Proxy]:
    """The address that schedulers, workers and clients know."""
    with Proxy(socket_of(server)) as network:
        yield network


@pytest.fixture
def settings(network: Proxy, valkey: ValkeyServer) -> Settings:
    """Settings for the server at that address."""
    url = f"postgresql://postgres@127.0.0.1:{network.port}/postgres"
    settings = Settings(database_url=url, redis_url=valkey.url, namespace=uuid4().hex)
    with closing(db.open_database(settings)) as database:
        migrations.migrate(database)
    return settings


def all_live(fleet: Fleet) -> bool:
    """Whether no process has ended."""
    return all(process.poll() is None for process in fleet.processes)


@pytest.mark.parametrize("seconds", [2, pytest.param(120, marks=pytest.mark.soak)])
def test_a_restart_and_a_crash_cost_no_attempt(
    fleet: Fleet, server: PostgresServer, load: Load, file: Path, seconds: float
) -> None:
    """B009, B098: although the server is away for longer than a lease, which nobody can renew meanwhile."""
    for _ in range(2):
        fleet.scheduler()
        fleet.worker(**LEDGER, FLOWFORGE_LEASE="1")
    load.start()
    load.grow()
    server.restart()
    load.grow()
    long = ledger.start(str(file), seconds=seconds + 2)
    owner_pid(long, "first")

    server.kill()
    threading.Event().wait(seconds)
    server.start()
    load.grow()

    load.check()
    check([long], file)
    assert events(long, "first") == ["created", "claimed", "succeeded"]
    assert all_live(fleet)


def test_leases_that_are_being_taken_when_the_server_crashes_are_taken_once(
    fleet: Fleet, server: PostgresServer, network: Proxy, file: Path
) -> None:
    """B057: 250 of them, of a worker that is gone; once before the COMMIT, and once right after it."""
    runs = ledger.options().start_many([ledger.prepare(str(file)) for _ in range(125)])
    ready = TaskRun.select().where(TaskRun.state == TaskState.READY.value)
    assert len(factories.claim(client.engine().database, *ready, lease=0.1)) == 250
    wait_for(lambda: ask(server, "select bool_and(lease_expires_at < now()) from flowforge.task_run"))

    for trap in TRAPS:
        sprung = trap(network, says("expire"), b"commit")
        if trap is TRAPS[0]:
            fleet.scheduler()
        assert sprung.wait(20)
        server.kill()
        server.start()
    fleet.worker(**LEDGER)

    check(runs, file)
    assert ask(server, "select count(*) from flowforge.task_run_event where kind = 'expired'") == 250


def test_a_failover_loses_nothing_that_was_confirmed(
    fleet: Fleet, server: PostgresServer, network: Proxy, load: Load
) -> None:
    """B009, B098: the address leads to the standby before that is promoted; what is tried there is refused."""
    with Standby(server) as standby:
        standby.confirm_commits()
        scheduler = fleet.scheduler()
        fleet.worker(**LEDGER)
        load.start()
        load.grow()

        server.kill()
        network.target = socket_of(standby)
        network.cut()
        wait_for(lambda: "takes no writes" in fleet.log(scheduler))
        standby.promote()
        load.grow()

        load.check()
        assert all_live(fleet)
        fleet.stop()
        assert not any(insights_after(fleet.settings).values())
        network.target = socket_of(server)
        server.start()


def test_a_process_that_is_started_meanwhile_says_so_and_ends(fleet: Fleet, server: PostgresServer) -> None:
    """For its supervisor, which tries again."""
    server.kill()

    processes = [fleet.scheduler(), fleet.worker(**LEDGER)]

    for process in processes:
        assert process.wait(timeout=20) == 2
        (line,) = re.findall(r"CRITICAL .* (\w+\.cannot_start error=.*)", fleet.log(process))
        assert "PostgreSQL at DATABASE_URL does not answer" in line
    server.start()


@pytest.mark.soak
def test_a_worker_that_is_told_to_end_meanwhile_ends(fleet: Fleet, server: PostgresServer, file: Path) -> None:
    """B043, B062: what it can neither report nor hand back is begun again once its lease is over."""
    fleet.scheduler()
    worker = fleet.worker(**LEDGER, FLOWFORGE_GRACE="1")
    runs = [ledger.start(str(file), seconds=seconds) for seconds in (2, 60)]
    for run in runs:
        owner_pid(run, "first")

    server.kill()
    worker.terminate()
    assert worker.wait(timeout=1 + 5 + 5) == 0  # and as long again for a busy machine
    server.start()
    fleet.worker(**LEDGER)

    check(runs[:1], file)
    assert [events(run, "first")[:4] for run in runs] == [["created", "claimed", "expired", "claimed"]] * 2
