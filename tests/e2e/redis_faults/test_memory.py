"""A Valkey whose memory is full: one that refuses, and one that drops what it holds."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from flowforge.broker import Broker, check_server, connect_redis, eviction_policy
from tests.e2e.redis_faults import errands
from tests.e2e.redis_faults.accounts import ERRANDS, all_succeed, listed, published, start, states
from tests.support import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    import redis as redis_client

    from tests.e2e.conftest import Fleet


def test_what_a_full_server_refuses_waits_until_it_has_room(
    fleet: Fleet, redis: redis_client.Redis, tmp_path: Path
) -> None:
    """B034: starts are accepted, a lease is kept, nothing is marked as published; users' own actors outlive it."""
    scheduler, worker = fleet.scheduler(), fleet.worker(**ERRANDS | {"FLOWFORGE_LEASE": "3"})
    errands.errand.start(n=4)
    wait_for(lambda: states() == {"running": 1})
    broker, file = Broker(connect_redis(fleet.settings), fleet.settings.namespace), tmp_path / "ran"
    broker.enqueue(errands.own.message(str(file)), delay=1000)
    wait_for(lambda: redis.keys("*__acks__*.own.DQ"))  # fetched, and not yet due

    redis.config_set("maxmemory", 1)
    start(500)
    wait_for(lambda: fleet.log(scheduler).count("OutOfMemoryError") > 3)
    wait_for(lambda: "command not allowed when used memory" in fleet.log(worker))
    marked = published()
    redis.config_set("maxmemory", 0)

    all_succeed(501)
    wait_for(file.exists)
    assert (marked, scheduler.poll(), worker.poll()) == (0, None, None)
    broker.client.close()


def test_what_a_server_drops_for_want_of_memory_is_sent_again(fleet: Fleet, redis: redis_client.Redis) -> None:
    """B033: both processes warn of the policy; the list is dropped, and the server drops on while the work is done."""
    redis.config_set("maxmemory-policy", "allkeys-lru")
    scheduler = fleet.scheduler()
    start(200)
    wait_for(lambda: len(listed(redis, fleet.settings.namespace)) == 200)

    used = memory(redis)["used_memory"]
    redis.config_set("maxmemory", used - 20_000)
    wait_for(lambda: not listed(redis, fleet.settings.namespace))
    redis.config_set("maxmemory", used + 4_000_000)
    worker = fleet.worker(**ERRANDS)
    with Crowd(redis):
        all_succeed(200, seconds=30)  # the list may be dropped once more

    assert redis.info("stats")["evicted_keys"] > 100  # type: ignore[index]
    for process in (scheduler, worker):
        assert fleet.log(process).count("redis.may_drop_keys maxmemory-policy=allkeys-lru") == 1


class Crowd(threading.Thread):
    """Others who fill the server meanwhile."""

    def __init__(self, redis: redis_client.Redis) -> None:
        super().__init__(daemon=True)
        self._redis, self._stopped = redis, threading.Event()

    def run(self) -> None:
        """Write foreign keys."""
        number = 0
        while not self._stopped.wait(0.001):
            self._redis.set(f"foreign:{number}", b"x" * 4096)
            number += 1

    def __enter__(self) -> None:
        """Begin."""
        self.start()

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stopped.set()
        self.join()


def memory(redis: redis_client.Redis) -> Any:
    """Return what the server says of its memory."""
    return redis.info("memory")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_policy_that_drops_keys_is_warned_of(
    redis: redis_client.Redis, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B033: once, with the remedy; the server is used all the same."""
    redis.config_set("maxmemory-policy", policy)

    name = check_server(redis)

    assert (name.startswith("valkey"), eviction_policy(redis)) == (True, policy)
    assert f"redis.may_drop_keys maxmemory-policy={policy} remedy=set it to noeviction" in caplog.text


def test_a_policy_that_drops_none_is_not_warned_of(redis: redis_client.Redis, caplog: pytest.LogCaptureFixture) -> None:
    """B033: nor is a server that does not say what it does."""

    class Silent:
        def info(self, section: str) -> Any:
            return redis.info(section) if section == "server" else {"used_memory": 1}

    silent: Any = Silent()

    assert [(check_server(server), eviction_policy(server)) for server in (redis, silent)] == [
        (check_server(redis), None)
    ] * 2
    assert not caplog.text
