"""Connections that are cut while idle, swallowed by a network that says nothing, or not to be had."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest

import flowforge
from flowforge import db
from flowforge.chaos.proxy import Proxy
from flowforge.db import session
from flowforge.embedded.servers import ValkeyServer
from flowforge.errors import DatabaseUnreachable
from flowforge.settings import Settings
from flowforge.states import RunState
from tests.conftest import TestedPostgres, administer
from tests.e2e.conftest import Fleet, the_task_run
from tests.integration import watchful
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flowforge.embedded.servers import PostgresServer

MODULES = {"FLOWFORGE_MODULES": "tests.integration.watchful"}
QUESTION = "select 42 as answer"


def name_of(url: str) -> str:
    """Return the name of a URL's database."""
    return url.partition("?")[0].rpartition("/")[2]


def ask(connection: Any) -> int:
    """A verb."""
    return int(db.fetch(connection, QUESTION, {})[0].answer)


def ask_in_a_transaction(connection: Any) -> int:
    """A verb that begins a transaction."""
    with db.begun(connection):
        return ask(connection)


# Cut while idle


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """Processes, none of which outlives the test."""
    fleet = Fleet(settings, tmp_path)
    yield fleet
    fleet.stop()
    fleet.tell()


def test_sessions_that_the_server_ends_while_idle_are_not_missed(
    fleet: Fleet, settings: Settings, postgres: PostgresServer
) -> None:
    """B099: for a start, a wait, a worker and a scheduler; their sessions end after 600 ms of nothing to do."""
    name = name_of(settings.database_url)
    administer(postgres, f"alter database {name} set idle_session_timeout = '600ms'")
    engine = flowforge.configure(settings)
    fleet.scheduler()
    fleet.worker(**MODULES)

    for _ in range(4):
        assert watchful.quick.start().wait(timeout=20) is RunState.SUCCEEDED
        wait_for(engine.database.connection().is_lost)

    for process in fleet.processes:
        assert not {"WARNING", "ERROR", "CRITICAL"} & set(fleet.log(process).split())
    engine.database.close()


def test_connections_that_redis_ends_while_idle_are_not_missed() -> None:
    """B099."""
    with ValkeyServer(options={"timeout": "1"}) as server:
        settings = Settings(redis_url=server.url)
        runway = flowforge.broker.Runway(flowforge.broker.connect_redis(settings), "idle")
        runway.wake()
        runway.push("cpu", [b"1"])
        pool = runway.client.connection_pool
        (connection,) = pool._available_connections
        wait_for(lambda: connection._sock.recv(1) == b"")

        assert runway.pop(["cpu"], limit=1, seconds=0.1) == ("cpu", [b"1"])
        runway.wake()
        assert runway.wait(0.1) == [b"now", b"now"]
        runway.client.close()
        runway._waker.close()


# A network that says nothing


@pytest.fixture
def network(postgres: PostgresServer) -> Iterator[Proxy]:
    """A network before PostgreSQL."""
    with Proxy(f"{postgres.scratch}/.s.PGSQL.5432") as proxy:
        yield proxy


@pytest.fixture
def afar(settings: Settings, network: Proxy) -> Settings:
    """Settings for this test's database, over the network."""
    url = f"postgresql://postgres@127.0.0.1:{network.port}/{name_of(settings.database_url)}"
    return replace(settings, database_url=url)


@pytest.fixture
def distant(afar: Settings) -> Iterator[db.Database]:
    """The database, over the network."""
    database = db.open_database(afar)
    yield database
    database.close()


@pytest.mark.parametrize("verb", [ask, ask_in_a_transaction])
def test_a_silent_server_is_given_up_and_another_connection_opened(
    distant: db.Database, network: Proxy, verb: Callable[[Any], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B103: the network takes the statement, acknowledges it, and says nothing more."""
    monkeypatch.setattr(session, "_SILENCE", 0.3)
    assert distant.perform(verb) == 42
    network.stall()

    with pytest.raises(DatabaseUnreachable, match=r"DATABASE_URL has not answered for 0\.3 s.* is not known"):
        distant.perform(verb)

    network.flow()
    assert distant.perform(verb) == 42


def test_peewee_and_a_limited_statement_are_given_up_too(
    distant: db.Database, network: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B103."""
    monkeypatch.setattr(session, "_BEYOND_LIMIT", 0.2)
    assert distant.perform(ask) == 42
    network.stall()

    with pytest.raises(DatabaseUnreachable, match=r"has not answered for 0\.3 s"), distant.limited(0.1):
        distant.execute_sql(QUESTION)

    network.flow()
    assert distant.execute_sql(QUESTION).fetchone() == (42,)


def test_a_statement_may_take_its_time_where_it_is_given_it(
    distant: db.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration waits for another one."""
    monkeypatch.setattr(session, "_SILENCE", 0.1)

    with distant.limited(float("inf")):
        assert distant.execute_sql("select 42 from pg_sleep(1)").fetchone() == (42,)


@pytest.mark.parametrize("fail", [Proxy.cut, Proxy.half_close])
def test_a_cut_network_costs_one_operation_at_most(
    distant: db.Database, network: Proxy, fail: Callable[[Proxy], None]
) -> None:
    """B098, B099: idle, it costs nothing; within a transaction it is told."""
    assert distant.perform(ask) == 42
    fail(network)
    assert distant.perform(ask) == 42

    def lose(connection: Any) -> None:
        with db.begun(connection):
            fail(network)
            ask(connection)

    with pytest.raises(psycopg2.OperationalError):
        distant.perform(lose)

    assert distant.perform(ask) == 42


@pytest.mark.soak
def test_a_stalled_network_ends_in_errors_and_in_work_that_stops_in_time(
    fleet: Fleet, afar: Settings, settings: Settings, network: Proxy, tmp_path: Path
) -> None:
    """B103: within 30 s for a client, a publisher and a lease keeper; an attempt stops before its lease ends."""
    file = tmp_path / "told"
    far = {"DATABASE_URL": afar.database_url, "FLOWFORGE_LEASE": "6"}
    scheduler, worker = fleet.start("flowforge.scheduler", **far), fleet.worker(**MODULES, **far)
    engine = flowforge.configure(afar)
    run = watchful.watchful.start(file=str(file))
    wait_for(lambda: the_task_run(run, "watch").state == "running")
    network.stall()
    stalled = time.monotonic()

    with pytest.raises(DatabaseUnreachable, match="has not answered"):
        watchful.quick.start()
    client_knew = time.monotonic() - stalled
    wait_for(lambda: "loop=flowforge-publisher" in fleet.log(scheduler), seconds=30 - client_knew)
    wait_for(lambda: "loop=flowforge-keeper" in fleet.log(worker), seconds=30 - (time.monotonic() - stalled))
    assert client_knew < 30
    assert float(file.read_text()) < end_of_lease(settings.database_url)

    network.flow()
    assert watchful.quick.start().wait(timeout=60) is RunState.SUCCEEDED
    assert run.wait(timeout=60) is RunState.SUCCEEDED
    engine.database.close()


def end_of_lease(url: str) -> float:
    """Return when the lease of the only running task run ends."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("select extract(epoch from lease_expires_at) from flowforge.task_run where state = 'running'")
        ((moment,),) = cursor.fetchall()
        return float(moment)


# No connection to be had


@pytest.fixture
def narrow(database_url: str, postgres: PostgresServer) -> Iterator[str]:
    """The URL of a role that may have one connection."""
    role = f"narrow_{name_of(database_url)}"
    administer(postgres, f"create role {role} login connection limit 1")
    yield database_url.replace("postgres@", f"{role}@")
    administer(postgres, f"drop role {role}")


def test_a_role_without_a_connection_left_is_told_the_remedy_and_recovers(narrow: str) -> None:
    first, second = (db.open_database(Settings(database_url=narrow)) for _ in range(2))
    assert first.perform(ask) == 42

    with pytest.raises(DatabaseUnreachable, match=r"no connection left: .*too many connections for role.*CONNECTION"):
        second.perform(ask)

    first.close()
    assert wait_for(lambda: answer(second)) == 42
    second.close()


@pytest.mark.parametrize(("role", "taken"), [("postgres", 6), ("ordinary", 3)])
def test_a_server_without_a_connection_left_is_told_and_recovers(role: str, taken: int) -> None:
    """All but those that are kept for superusers, or all."""
    with TestedPostgres(options={"max_connections": "6", "max_wal_senders": "0"}) as server, ExitStack() as stack:
        administer(server, "create role ordinary login")
        database = db.open_database(Settings(database_url=server.url.replace("postgres@", f"{role}@")))
        others = [stack.enter_context(closing(psycopg2.connect(server.url))) for _ in range(taken)]

        with pytest.raises(DatabaseUnreachable, match=r"no connection left: .*(too many|slots).*max_connections"):
            database.perform(ask)

        others[0].close()
        assert wait_for(lambda: answer(database)) == 42
        database.close()


def answer(database: db.Database) -> int | None:
    """Return the answer, or None while there is no connection for the question."""
    try:
        return database.perform(ask)
    except DatabaseUnreachable:
        return None
