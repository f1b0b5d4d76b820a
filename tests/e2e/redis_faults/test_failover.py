"""Another server takes over, and what it holds is not what the one before it held."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
import redis as redis_client

from flowforge import client
from flowforge.broker import Runway, connect_redis
from flowforge.embedded.servers import ValkeyServer
from flowforge.settings import Settings
from tests.e2e.redis_faults import errands
from tests.e2e.redis_faults.accounts import ERRANDS, all_succeed, listed, start, states
from tests.redis_servers import SERVICE, GuardedServer, SentinelServer, follow
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.chaos.proxy import Proxy
    from tests.e2e.conftest import Fleet


class Pair(NamedTuple):
    """A server and its replica, watched by a Sentinel, with a client of each."""

    master: ValkeyServer
    leader: redis_client.Redis
    follower: redis_client.Redis
    url: str


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as servers:
        master, replica = (servers.enter_context(GuardedServer()) for _ in range(2))
        leader, follower = (servers.enter_context(redis_client.Redis.from_url(one.url)) for one in (master, replica))
        follow(follower, master)
        sentinel = servers.enter_context(SentinelServer(master))
        with redis_client.Redis.from_url(sentinel.url) as watcher:  # a replica cut off for ten times this is given up
            watcher.sentinel_set(SERVICE, "down-after-milliseconds", 1000)
        yield Pair(master, leader, follower, sentinel.service_url)


@pytest.fixture
def watched(pair: Pair, fleet: Fleet) -> Iterator[Fleet]:
    """A fleet, and a client, that ask the Sentinel."""
    fleet.settings = replace(fleet.settings, redis_url=pair.url)
    engine = client.configure(fleet.settings)
    yield fleet
    fleet.stop()
    engine.database.close()


def test_a_replica_that_lacks_the_last_second_takes_over(watched: Fleet, pair: Pair) -> None:
    """B031: it holds what was popped since, and lacks what was pushed since; Sentinel promotes it."""
    namespace = watched.settings.namespace
    watched.scheduler()
    start(100)
    wait_for(lambda: len(listed(pair.follower, namespace)) == 100)

    forget_replica(pair.leader, pair.follower)
    watched.worker(FLOWFORGE_QUEUES="default", **ERRANDS)
    wait_for(lambda: states() == {"succeeded": 100})
    start(100, errands.elsewhere)
    wait_for(lambda: len(listed(pair.leader, namespace, "elsewhere")) == 100)
    held = [len(listed(pair.follower, namespace, queue)) for queue in ("default", "elsewhere")]
    pair.master.kill()
    wait_for(lambda: promoted(pair.follower))
    wait_for(finds_a_master)

    watched.worker(FLOWFORGE_QUEUES="elsewhere", **ERRANDS)
    all_succeed(200)
    assert held == [100, 0]


def promoted(follower: redis_client.Redis) -> bool:
    """Whether it is the master by now; Sentinel cuts its clients off while it makes it so."""
    try:
        return bool(follower.role()[0] == b"master")
    except redis_client.ConnectionError:
        return False


def finds_a_master() -> bool:
    """Whether the Sentinel names the new one by now: until then no process can start."""
    runway = client.engine().runway
    try:
        return bool(runway and runway.client.ping())
    except redis_client.RedisError:
        return False


def forget_replica(leader: redis_client.Redis, follower: redis_client.Redis) -> None:
    """End replication, so that neither knows of it: the replica may not come back, and is still the one to promote."""
    follower.config_set("masterauth", "forgotten")
    leader.client_kill_filter(_type="replica")
    wait_for(lambda: not leader.info("replication")["connected_slaves"])  # type: ignore[index]


def test_a_server_that_became_a_replica_is_left_for_the_one_that_its_address_leads_to(
    valkey: ValkeyServer, network: Proxy, redis: redis_client.Redis
) -> None:
    """B032: its connections stay open and refuse every write, with no Sentinel to say where to go."""
    with ValkeyServer() as successor, redis_client.Redis.from_url(successor.url) as other:
        runway = Runway(connect_redis(Settings(redis_url=f"redis://127.0.0.1:{network.port}/0")), "moved")
        runway.push("default", [b"1"])
        runway.wake()
        follow(other, valkey)
        other.replicaof("no", "one")
        follow(redis, successor)
        network.target = ("127.0.0.1", successor.port)

        runway.push("default", [b"2"])
        runway.wake()
        runway.wake()

        assert runway.pop(["default"], limit=9, seconds=1) == ("default", [b"1", b"2"])
        assert b"now" in runway.wait(1)
        with closing(runway.client), closing(runway._waker):
            assert other.role()[0] == b"master"
