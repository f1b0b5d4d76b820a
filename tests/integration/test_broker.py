"""The runway in a real Valkey; what is lost, unreadable, too old or out of reach does no harm."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dramatiq
import pytest
import redis as redis_client

from flowforge.actors.consumer import DispatchConsumer, Fetching
from flowforge.actors.intake import Intake
from flowforge.actors.registry import Registry
from flowforge.actors.runtime import Runtime
from flowforge.broker import DISPATCH, Broker, Progress, Runway, check_server, connect_redis
from flowforge.embedded.servers import ValkeyServer
from flowforge.errors import IncompatibleServer
from flowforge.settings import Settings
from flowforge.workflow import Definition
from tests import factories
from tests.factories import Node
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.db import Database


@pytest.fixture
def runway(redis: redis_client.Redis, settings: Settings) -> Runway:
    """This test's own lists."""
    return Runway(redis, settings.namespace)


# The lists of dispatches


def test_what_was_pushed_is_popped_in_order_and_within_the_limit(runway: Runway) -> None:
    runway.push("cpu", [b"1", b"2"])
    runway.push("cpu", [b"3"])

    assert (runway.length("cpu"), runway.members("cpu")) == (3, [b"1", b"2", b"3"])
    assert runway.pop(["cpu"], limit=2, seconds=1) == ("cpu", [b"1", b"2"])
    assert runway.pop(["cpu"], limit=2, seconds=1) == ("cpu", [b"3"])
    assert runway.length("cpu") == 0


def test_the_first_queue_that_has_any_is_served(runway: Runway) -> None:
    runway.push("cpu", [b"1"])
    runway.push("io", [b"2"])

    popped = [runway.pop(queues, limit=9, seconds=1) for queues in (["gpu", "io", "cpu"], ["gpu", "io", "cpu"])]

    assert popped == [("io", [b"2"]), ("cpu", [b"1"])]


def test_a_pop_waits_no_longer_than_said(runway: Runway) -> None:
    assert runway.pop(["cpu", "io"], limit=1, seconds=0.01) == ("", [])


def test_a_pop_that_waits_is_served_by_a_push(runway: Runway, settings: Settings) -> None:
    with closing(connect_redis(settings)) as client, closing(connect_redis(settings)) as other:
        waiting: Any = client.connection_pool.get_connection()
        waiting.send_command("BLMPOP", 5, 1, runway.key("cpu"), "LEFT", "COUNT", 9)
        Runway(other, settings.namespace).push("cpu", [b"1", b"2"])

        assert waiting.read_response() == [runway.key("cpu").encode(), [b"1", b"2"]]
        client.connection_pool.release(waiting)


def test_two_namespaces_share_a_server(runway: Runway, redis: redis_client.Redis) -> None:
    other = Runway(redis, f"{runway.namespace}b")
    runway.push("cpu", [b"1"])
    runway.wake()

    assert (other.length("cpu"), other.wait(0.01)) == (0, [])


# The wake list


def test_wakes_are_bounded_and_all_taken_at_once(runway: Runway, redis: redis_client.Redis) -> None:
    for _ in range(100):
        runway.wake()
    runway.wake(b"soon")
    kept = redis.llen(f"{runway.namespace}:wake")

    words = runway.wait(1)

    assert (kept, len(words), words[-1]) == (64, 64, b"soon")
    assert runway.wait(0.01) == []


# Progress


def test_the_last_word_of_each_attempt_is_kept_for_a_day(runway: Runway, redis: redis_client.Redis) -> None:
    told, silent = uuid4(), uuid4()
    runway.tell_progress(told, 1, 3, "first")
    runway.tell_progress(told, 2.5, None, "zweiter ☃")

    assert runway.progress([silent, told]) == {told: Progress(2.5, None, "zweiter ☃")}
    assert 86_000 < redis.ttl(f"{runway.namespace}:progress:{told}") <= 86_400
    assert runway.progress([]) == {}


# The server


class Info:
    """A server that says what it is."""

    def __init__(self, **info: str) -> None:
        self._info = info

    def info(self, _: str) -> dict[str, str]:
        return self._info


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ({"redis_version": "7.0.0"}, "redis 7.0.0"),
        ({"redis_version": "10.0"}, "redis 10.0"),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.11"}, "valkey 7.2.11"),
        ({"redis_version": "7.2.4", "valkey_version": "10.1.0-rc1"}, "valkey 10.1.0-rc1"),
    ],
)
def test_a_server_with_blmpop_will_do(info: dict[str, str], name: str) -> None:
    server: Any = Info(**info)

    assert check_server(server) == name


@pytest.mark.parametrize("info", [{"redis_version": "6.2.14"}, {"redis_version": "7.2.4", "valkey_version": "7.1.9"}])
def test_an_older_server_is_refused_with_the_remedy(info: dict[str, str]) -> None:
    server: Any = Info(**info)

    with pytest.raises(IncompatibleServer, match=r"too old: FlowForge needs Redis 7\.0 or Valkey 7\.2"):
        check_server(server)


def test_the_server_of_these_tests_will_do(redis: redis_client.Redis) -> None:
    assert check_server(redis).startswith("valkey 9.")


# What may go wrong


@pytest.fixture
def frugal(redis: redis_client.Redis, settings: Settings) -> Iterator[Settings]:
    """The settings of a user of Redis who may not do what managed servers refuse."""
    name = f"frugal-{settings.namespace}"
    redis.acl_setuser(
        name,
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        channels=["*"],
        commands=["+@all", *(f"-{word}" for word in ("keys", "flushall", "flushdb", "config", "debug", "monitor"))],
    )
    url = settings.redis_url.replace("redis://", f"redis://{name}:secret@")
    yield Settings(redis_url=url, namespace=settings.namespace)
    redis.acl_deluser(name)


def test_no_command_is_needed_that_managed_servers_refuse(frugal: Settings) -> None:
    """B038: neither by the runway, nor for the users' own actors."""
    with closing(connect_redis(frugal)) as client:
        with pytest.raises(redis_client.exceptions.NoPermissionError):
            client.keys()
        broker = Broker(client, frugal.namespace)
        broker.declare_queue("ordinary")
        message = dramatiq.Message[Any]("ordinary", "actor", (), {}, {})

        assert check_server(client)
        broker.runway.push("cpu", [b"1"])
        assert broker.runway.pop(["cpu"], limit=1, seconds=1) == ("cpu", [b"1"])
        broker.runway.wake()
        assert broker.runway.wait(1) == [b"now"]
        broker.runway.tell_progress(uuid4(), 1, None, "")
        broker.enqueue(message)
        consumer = broker.consume("ordinary", timeout=100)
        taken = next(consumer)
        assert taken is not None
        consumer.ack(taken)
        assert taken.message_id == message.message_id


def test_without_redis_a_wake_and_a_word_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with ValkeyServer() as server, closing(connect_redis(Settings(redis_url=server.url))) as client:
        runway = Runway(client, "away")
        server.kill()

        with caplog.at_level(logging.WARNING):
            runway.wake()
            runway.tell_progress(uuid4(), 1, None, "")

        assert [record.msg.split()[0] for record in caplog.records] == ["runway.wake_failed", "runway.progress_lost"]
        server.start()
        assert wait_for(lambda: runway.wake() or runway.wait(0.1)) == [b"now"]


def registry() -> Registry:
    """The code of the one workflow that `factories` stores."""
    definition = Definition[Any]("sales")
    definition.task(lambda: None, key="only")
    return Registry([definition])


@pytest.fixture
def consumer(database: Database, runway: Runway, settings: Settings) -> DispatchConsumer:
    """A worker's consumer, of two queues."""
    runtime = Runtime(settings, database, runway, registry(), ("cpu", "io"), threads=4)
    return DispatchConsumer(runtime, Intake(runtime), Fetching(runway.client), 10)


def test_an_unreadable_entry_is_logged_and_passed_over(
    database: Database, consumer: DispatchConsumer, runway: Runway, caplog: pytest.LogCaptureFixture
) -> None:
    row = factories.start_single(database, queue="cpu")
    runway.push("cpu", [b"\xff", b"{}", factories.dispatch(row).encode()])

    message = next(consumer)

    assert message is not None
    assert (message.queue_name, message.args[0].claim.id) == (DISPATCH, row.id)
    assert caplog.text.count("dispatch.unreadable") == 2
    assert next(consumer) is None


def test_what_this_code_does_not_know_is_left_to_another_worker(
    database: Database, consumer: DispatchConsumer, runway: Runway
) -> None:
    """B040: with a reason, and no attempt charged."""
    workflow = factories.make_workflow({"new": Node(options={"queue": "cpu"})})
    row = factories.task_run(factories.start(database, workflow), "new")
    runway.push("cpu", [factories.dispatch(row).encode()])

    taken = next(consumer)

    now = factories.reload(row)
    assert taken is None
    assert (now.state, now.attempt) == ("ready", 1)
    assert now.deferred_because == "the code's workflow 'sales' has no task 'new'"


def test_a_consumer_serves_its_queues_in_turn(database: Database, consumer: DispatchConsumer, runway: Runway) -> None:
    rows = {queue: [factories.start_single(database, queue=queue) for _ in range(4)] for queue in ("cpu", "io")}
    for queue, waiting in rows.items():
        runway.push(queue, [factories.dispatch(row).encode() for row in waiting])

    first = [next(consumer) for _ in range(4)]
    consumer._runtime.holding.close()

    assert len({message.args[0].claim.task_id for message in first if message}) == 4
    assert sorted([runway.length("cpu"), runway.length("io")]) == [0, 4]
    assert next(consumer) is None


def test_what_is_popped_while_the_worker_closes_goes_back(
    database: Database, consumer: DispatchConsumer, runway: Runway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B062: it was told to stop while it waited in BLMPOP."""
    holding = consumer._runtime.holding
    sent = factories.dispatch(factories.start_single(database, queue="cpu")).encode()
    runway.push("cpu", [sent])
    real_pop = runway.pop

    def pop(*args: Any, **options: Any) -> Any:
        popped = real_pop(*args, **options)
        holding.close()
        return popped

    monkeypatch.setattr(runway, "pop", pop)

    assert next(consumer) is None

    assert runway.members("cpu") == [sent]


def test_a_dispatch_sent_twice_is_taken_once(database: Database, consumer: DispatchConsumer, runway: Runway) -> None:
    """B027: in one pop, and in the next."""
    sent = factories.dispatch(factories.start_single(database, queue="cpu")).encode()
    runway.push("cpu", [sent, sent])
    taken = [next(consumer)]
    runway.push("cpu", [sent])

    taken += [next(consumer), next(consumer)]

    assert [message is not None for message in taken] == [True, False, False]
