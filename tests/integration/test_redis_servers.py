"""Redis as others run it, and a network to it that says nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import redis as redis_client

import flowforge
from flowforge.broker import Runway, check_server, connect_redis
from flowforge.chaos.proxy import Proxy
from flowforge.errors import SettingsError
from flowforge.settings import Settings
from flowforge.states import RunState
from tests.e2e.conftest import ROOT, Fleet
from tests.integration import watchful
from tests.redis_servers import PASSWORD, QUOTED, SERVICE, GuardedServer, SentinelServer, TlsServer, needs_tls
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flowforge.embedded.servers import ValkeyServer

MODULES = {"FLOWFORGE_MODULES": "tests.integration.watchful"}


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """Processes, none of which outlives the test."""
    fleet = Fleet(settings, tmp_path)
    yield fleet
    fleet.stop()
    fleet.tell()


def use(url: str) -> str:
    """Use a server in every way; return what it is."""
    with closing(connect_redis(Settings(redis_url=url))) as client:
        runway = Runway(client, uuid4().hex)
        runway.push("cpu", [b"1"])
        runway.wake()
        assert runway.wait(1) == [b"now"]
        assert runway.pop(["cpu"], limit=1, seconds=1) == ("cpu", [b"1"])
        runway._waker.close()
        return check_server(client)


# Passwords and TLS


def test_a_password_is_given() -> None:
    with GuardedServer() as server:
        assert use(server.url).startswith("valkey")

        with pytest.raises(redis_client.AuthenticationError):
            use(server.url.replace(QUOTED, "other"))


@needs_tls
def test_a_certificate_is_checked(tmp_path: Path) -> None:
    with TlsServer(tmp_path) as server:
        assert use(server.url).startswith("redis 7.")

        with pytest.raises(redis_client.ConnectionError, match="certificate verify failed"):
            use(server.url.partition("?")[0])


# Sentinel


def test_a_sentinels_url_is_read() -> None:
    url = f"rediss+sentinel://me:{QUOTED}@one,two:26380,[::1]:26381/main/3?ssl_ca_certs=/ca.pem&sentinel_password=other"
    with closing(connect_redis(Settings(redis_url=url))) as client:
        pool = client.connection_pool
        sentinels = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]

    master = pool.connection_kwargs
    assert (pool.service_name, master["username"], master["password"], master["db"]) == ("main", "me", PASSWORD, 3)
    assert [(one["host"], one["port"]) for one in sentinels] == [("one", 26379), ("two", 26380), ("::1", 26381)]
    assert {(one["username"], one["password"], one["ssl_ca_certs"]) for one in sentinels} == {
        (None, "other", "/ca.pem")
    }
    assert issubclass(pool.connection_class, redis_client.SSLConnection)
    assert master["ssl_ca_certs"] == "/ca.pem"


@pytest.mark.parametrize(
    "url",
    [
        "http://:secret@host/0",
        "redis+sentinel://:secret@host:26379",
        "redis+sentinel://:secret@host:26379//0",
        "redis+sentinel://:secret@/main",
        "redis+sentinel://:secret@host:port/main",
    ],
)
def test_a_url_that_cannot_be_read_is_named_without_its_secret(url: str) -> None:
    """B093."""
    with pytest.raises(SettingsError, match=r"^REDIS_URL='(http|redis\+sentinel)://…': give redis://") as caught:
        connect_redis(Settings(redis_url=url))

    assert "secret" not in str(caught.value)


@pytest.mark.soak
def test_work_goes_on_when_a_sentinel_has_made_another_server_the_master(fleet: Fleet, settings: Settings) -> None:
    """The first Sentinel of the URL is down, the master dies; no process is started anew."""
    with GuardedServer() as master, GuardedServer() as replica, SentinelServer(master) as sentinel:
        follower = redis_client.Redis.from_url(replica.url)
        follower.replicaof("127.0.0.1", master.port)  # type: ignore[no-untyped-call]
        leader = redis_client.Redis.from_url(sentinel.url)
        wait_for(lambda: leader.sentinel_slaves(SERVICE))
        fleet.settings = replace(settings, redis_url=sentinel.service_url)
        engine = flowforge.configure(fleet.settings)
        fleet.scheduler()
        fleet.worker(**MODULES)
        assert watchful.quick.start().wait(timeout=20) is RunState.SUCCEEDED

        master.kill()

        assert watchful.quick.start().wait(timeout=40) is RunState.SUCCEEDED
        assert follower.info("replication")["role"] == "master"  # type: ignore[index]
        fleet.stop()
        close(engine, follower, leader)


def close(engine: flowforge.client.Engine, *clients: redis_client.Redis) -> None:
    """Close what a test has opened."""
    engine.database.close()
    assert engine.runway
    for client in (*clients, engine.runway.client, engine.runway._waker):
        client.close()


# A network that says nothing


@pytest.fixture
def network(valkey: ValkeyServer) -> Iterator[Proxy]:
    """A network before Valkey."""
    with Proxy(("127.0.0.1", valkey.port)) as proxy:
        yield proxy


CALLS: dict[str, Callable[[Runway], object]] = {
    "pop": lambda runway: runway.pop(["cpu"], limit=1, seconds=0.5),
    "push": lambda runway: runway.push("cpu", [b"1"]),
    "connect": lambda runway: check_server(runway.client),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_over_a_silent_network_ends_within_five_seconds(network: Proxy, call: str) -> None:
    """B109."""
    with closing(connect_redis(Settings(redis_url=f"redis://127.0.0.1:{network.port}/0"))) as client:
        runway = Runway(client, uuid4().hex)
        if call != "connect":
            assert client.ping()
        network.stall()
        began = time.monotonic()

        with pytest.raises(redis_client.TimeoutError):
            CALLS[call](runway)

        assert time.monotonic() - began < 5
        network.flow()
        assert client.ping()


def test_a_wake_over_a_silent_network_keeps_nobody_waiting(network: Proxy) -> None:
    """B109: its caller may hold a transaction open."""
    with closing(connect_redis(Settings(redis_url=f"redis://127.0.0.1:{network.port}/0"))) as client:
        runway = Runway(client, uuid4().hex)
        network.stall()
        began = time.monotonic()

        for _ in range(50):
            runway.wake()

        assert time.monotonic() - began < 1


@pytest.mark.soak
def test_a_minute_without_redis_is_over_ten_seconds_later(fleet: Fleet, network: Proxy, settings: Settings) -> None:
    """B109: meanwhile runs are started and read, and the doctor tells what is wrong in a few seconds."""
    fleet.settings = replace(settings, redis_url=f"redis://127.0.0.1:{network.port}/0")
    engine = flowforge.configure(fleet.settings)
    fleet.scheduler()
    fleet.worker(**MODULES)
    assert watchful.quick.start().wait(timeout=20) is RunState.SUCCEEDED
    network.stall()
    until, runs = time.monotonic() + 60, []

    while time.monotonic() < until:
        began = time.monotonic()
        runs.append(watchful.quick.start())
        assert runs[-1].state == "pending"
        assert time.monotonic() - began < 1
        doctor = [sys.executable, "-m", "flowforge", "doctor"]
        told = subprocess.run(doctor, cwd=ROOT, env=fleet.environment(), capture_output=True, timeout=10, check=False)
        assert told.returncode == 1

    network.flow()
    recovered = time.monotonic()
    assert {run.wait(timeout=10) for run in runs} == {RunState.SUCCEEDED}
    assert time.monotonic() - recovered < 10
    fleet.stop()
    close(engine)
