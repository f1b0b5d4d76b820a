"""Users' own actors on FlowForge's broker, while Redis is away, full, or a managed one."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import dramatiq
import pytest
import redis as redis_client
from dramatiq.brokers import redis as dramatiq_redis

from flowforge.broker import Broker, connect_redis
from flowforge.chaos.proxy import Proxy
from flowforge.embedded.servers import ValkeyServer
from flowforge.settings import Settings
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NOWHERE = ("127.0.0.1", 1)
_WEEK = 7 * 86_400  # seconds


class Outage(NamedTuple):
    """How it begins and ends."""

    begin: Callable[[], object]
    end: Callable[[], object]


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """A Valkey of this test's own."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def admin(server: ValkeyServer) -> Iterator[redis_client.Redis]:
    """A client that may do everything."""
    with redis_client.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def network(server: ValkeyServer) -> Iterator[Proxy]:
    """A network before it."""
    with Proxy(("127.0.0.1", server.port)) as proxy:
        yield proxy


@pytest.fixture
def broker(network: Proxy) -> Iterator[Broker]:
    """A broker over the network."""
    client = connect_redis(Settings(redis_url=f"redis://127.0.0.1:{network.port}/0"))
    yield Broker(client, "own")
    client.close()


@pytest.fixture
def worker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[dramatiq.Worker]:
    """A worker of one thread that does not wait long before it tries again."""
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.1)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.1)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
    yield worker
    worker.stop()


@pytest.fixture(params=["refuses", "is silent", "is full"])
def outage(request: pytest.FixtureRequest, network: Proxy, admin: redis_client.Redis) -> Outage:
    """A way to be without Redis."""
    there = network.target

    def refuse() -> None:
        network.target = _NOWHERE
        network.cut()

    ways: dict[str, Outage] = {
        "refuses": Outage(refuse, lambda: setattr(network, "target", there)),
        "is silent": Outage(network.stall, network.flow),
        "is full": Outage(
            lambda: admin.config_set("maxmemory", 1),
            lambda: admin.config_set("maxmemory", 0),
        ),
    }
    return ways[request.param]


def test_messages_that_are_due_later_outlive_a_failure(
    broker: Broker,
    worker: dramatiq.Worker,
    admin: redis_client.Redis,
    outage: Outage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B032, B034: the worker had fetched them, and carries each of them out once, when it is due."""
    done: list[int] = []
    dramatiq.actor(done.append, actor_name="own", queue_name="own", broker=broker)
    for number in range(3):
        broker.enqueue(dramatiq.Message("own", "own", (number,), {}, {}), delay=1000)
    worker.start()
    wait_for(lambda: admin.scard(acks(broker, "own.DQ")) == 3)

    outage.begin()
    wait_for(lambda: caplog.text.count("Consumer encountered a connection error") > 1)
    outage.end()

    wait_for(lambda: sorted(done) == [0, 1, 2])
    wait_for(lambda: not broker.do_qsize("own"))
    assert sorted(done) == [0, 1, 2]


def acks(broker: Broker, queue: str) -> str:
    """Return the key of what a broker's worker has fetched from a queue and not acknowledged."""
    return f"{broker.namespace}:__acks__.{broker.broker_id}.{queue}"


def test_an_acknowledgement_is_repeated_until_it_is_heard(
    broker: Broker,
    worker: dramatiq.Worker,
    outage: Outage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B034, B109: the message is carried out once, although the consumer has begun anew meanwhile."""
    begun, go_on, done = threading.Event(), threading.Event(), list[int]()

    def wait() -> None:
        begun.set()
        go_on.wait(10)
        done.append(1)

    dramatiq.actor(wait, queue_name="own", broker=broker).send()
    worker.start()
    assert begun.wait(10)

    outage.begin()
    go_on.set()
    wait_for(lambda: "Failed to post_process_message" in caplog.text)
    wait_for(lambda: "Consumer encountered a connection error" in caplog.text)
    outage.end()

    wait_for(lambda: not broker.do_qsize("own"))
    assert done == [1]


# Maintenance


@pytest.fixture
def survivor(server: ValkeyServer, admin: redis_client.Redis) -> Iterator[Broker]:
    """A broker that maintains its queues at every command, without the right to KEYS."""
    admin.acl_setuser(
        "frugal", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"], commands=["+@all", "-keys", "-scan"]
    )
    client = connect_redis(Settings(redis_url=server.url.replace("redis://", "redis://frugal:secret@")))
    broker = Broker(client, "own")
    broker.maintenance_chance = dramatiq_redis.MAINTENANCE_SCALE
    yield broker
    client.close()


def test_what_a_dead_worker_had_fetched_is_taken_over_without_keys(
    broker: Broker, survivor: Broker, admin: redis_client.Redis
) -> None:
    """B038: from every queue that it served, for as long as a message may be due later; then it is forgotten."""
    for queue in ("one", "two"):
        broker.declare_queue(queue)
        broker.enqueue(dramatiq.Message[Any](queue, "actor", (), {}, {}))
        assert next(broker.consume(queue, timeout=10))
    heartbeats = f"{broker.namespace}:__heartbeats__"
    dead_for = {seconds: {broker.broker_id: (time.time() - seconds) * 1000} for seconds in (61, _WEEK + 1)}
    admin.zadd(heartbeats, dead_for[61])

    for queue in ("one", "two"):
        taken = wait_for(lambda queue=queue: next(survivor.consume(queue, timeout=10)))
        assert taken.queue_name == queue
        assert admin.zscore(heartbeats, broker.broker_id)

    admin.zadd(heartbeats, dead_for[_WEEK + 1])
    assert next(survivor.consume("one", timeout=10)) is None
    assert admin.zscore(heartbeats, broker.broker_id) is None
