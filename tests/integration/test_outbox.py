"""publish and recover: PostgreSQL knows what is owed, whatever becomes of Redis, the publisher, or a commit."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
import redis as redis_client
from peewee import SQL

from flowforge import db, models, outbox, transitions
from flowforge.broker import Runway, connect_redis
from flowforge.embedded.servers import ValkeyServer
from flowforge.outbox import Publisher, recover
from flowforge.settings import Settings
from flowforge.transitions import Dispatch, NewRun
from tests import factories
from tests.conftest import administer
from tests.factories import Node
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.db import Database
    from flowforge.embedded.servers import PostgresServer


@pytest.fixture
def runway(redis: redis_client.Redis, settings: Settings) -> Runway:
    """This test's own lists."""
    return Runway(redis, settings.namespace)


@pytest.fixture
def publisher(database: Database, runway: Runway) -> Publisher:
    """A publisher that never runs out of room."""
    return Publisher(database, runway, limit=10_000)


def owe(database: Database, number: int = 1, *, priority: int = 0, queue: str = "default") -> list[UUID]:
    """Start runs of one task; return the ids of their task runs, which are ready."""
    workflow = factories.make_workflow({"only": Node(options={"queue": queue})})
    database.perform(transitions.start_run, [NewRun(uuid4(), workflow.id, "{}", priority) for _ in range(number)])
    mine = models.TaskRun.select().join(models.Task).where(models.Task.workflow == workflow)
    return [row.id for row in mine]


def listed(runway: Runway, queue: str = "default") -> list[UUID]:
    """Return the task runs whose dispatches wait in a queue's list, in order."""
    return [Dispatch.decode(member).task_run_id for member in runway.members(queue)]


def published() -> int:
    """Return how many of the dispatches owed are marked as published."""
    return models.OutboxMessage.select().where(SQL("published_at is not null")).count()


@pytest.fixture
def _lost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a dispatch as soon as it was published."""
    monkeypatch.setattr(outbox, "LOST_AFTER", 0.0)


# publish


def test_what_is_due_on_every_queue_is_published(database: Database, publisher: Publisher, runway: Runway) -> None:
    owed = {queue: owe(database, 3, queue=queue) for queue in ("cpu", "default", "io")}

    assert publisher.publish() == 9

    assert {queue: set(listed(runway, queue)) for queue in owed} == {queue: set(ids) for queue, ids in owed.items()}
    assert (publisher.publish(), published(), publisher.backlog) == (0, 9, False)


def test_never_more_than_the_limit_wait_in_a_queue(database: Database, runway: Runway) -> None:
    owe(database, 7, queue="cpu"), owe(database, 2)
    publisher, lengths = Publisher(database, runway, limit=3), []

    for _ in range(4):
        publisher.publish()
        lengths.append(runway.length("cpu"))
        runway.pop(["cpu"], limit=2, seconds=1)

    assert lengths == [3, 3, 3, 1]
    assert runway.length("default") == 2


def test_a_full_queue_does_not_hold_up_another(database: Database, runway: Runway) -> None:
    owe(database, 5, queue="cpu")
    publisher = Publisher(database, runway, limit=3)
    publisher.publish()
    (urgent,) = owe(database, queue="io")

    assert publisher.publish() == 1

    assert listed(runway, "io") == [urgent]


def test_a_backlog_is_said_until_it_is_gone(database: Database, runway: Runway) -> None:
    owe(database, 5)
    publisher, said = Publisher(database, runway, limit=2), []

    for _ in range(3):
        publisher.publish()
        said.append(publisher.backlog)
        runway.pop(["default"], limit=2, seconds=1)

    assert said == [True, True, False]


def test_a_full_runway_is_a_backlog(database: Database, runway: Runway) -> None:
    owe(database, 3)
    publisher = Publisher(database, runway, limit=2)
    publisher.publish()

    assert publisher.publish() == 0

    assert publisher.backlog


def test_the_most_urgent_of_a_backlog_goes_first(database: Database, runway: Runway) -> None:
    usual, urgent, idle = owe(database, 3), owe(database, 3, priority=-5), owe(database, 3, priority=5)
    publisher, order = Publisher(database, runway, limit=3), []

    for _ in range(3):
        publisher.publish()
        order.append(set(listed(runway)))
        runway.pop(["default"], limit=3, seconds=1)

    assert order == [set(urgent), set(usual), set(idle)]


def test_what_became_due_below_the_mark_is_found_when_little_is_left_above(
    database: Database, publisher: Publisher, runway: Runway
) -> None:
    usual = owe(database, 2)
    publisher.publish()
    urgent, late = owe(database, 1, priority=-5), owe(database, 1)

    assert publisher.publish() == 2

    assert set(listed(runway)) == {*usual, *urgent, *late}


def test_what_became_due_below_the_mark_of_a_backlog_is_found_by_the_next_full_scan(
    database: Database, runway: Runway
) -> None:
    owe(database, 6)
    publisher = Publisher(database, runway, limit=2)
    publisher.publish()
    urgent = owe(database, 1, priority=-5)
    runway.pop(["default"], limit=2, seconds=1)
    publisher.publish()
    passed_over = listed(runway)
    runway.pop(["default"], limit=2, seconds=1)

    publisher._low_water["default"].full_scan_at = 0.0
    publisher.publish()

    assert urgent[0] not in passed_over
    assert listed(runway)[0] == urgent[0]


def test_nothing_is_published_before_its_commit_nor_after_a_rollback(
    database: Database, publisher: Publisher, runway: Runway, settings: Settings
) -> None:
    """B025: another session, that of the publisher, does not see it; a savepoint rolled back is no different."""
    other = db.open_database(settings)
    elsewhere = Publisher(other, runway, limit=100)

    with database.atomic() as transaction:
        owe(database)
        before_commit = elsewhere.publish()
        transaction.rollback()
        with database.atomic() as savepoint:
            owe(database)
            savepoint.rollback()
        kept = owe(database)
    after_commit = publisher.publish()
    other.close()

    assert (before_commit, after_commit) == (0, 1)
    assert listed(runway) == kept


def test_transactions_that_commit_out_of_order_are_both_published(
    database: Database, database_url: str, publisher: Publisher, runway: Runway
) -> None:
    """B028: the first was written earlier, and appears below the mark."""
    workflow = factories.make_workflow({"only": Node()})
    early, late = (NewRun(uuid4(), workflow.id, "{}") for _ in range(2))

    with situation.held_open(database_url, lambda connection: transitions.start_run(connection, [early])):
        database.perform(transitions.start_run, [late])
        publisher.publish()
        seen_first = [Dispatch.decode(member).run_id for member in runway.members("default")]
    publisher.publish()

    assert seen_first == [late.id]
    assert [Dispatch.decode(member).run_id for member in runway.members("default")] == [late.id, early.id]


def test_what_was_taken_and_not_pushed_is_due_again(
    database: Database, publisher: Publisher, runway: Runway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B026: the publisher ends between the two."""
    owed = owe(database, 2)

    def end(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(runway, "push", end)
        with pytest.raises(SystemExit):
            publisher.publish()

    assert publisher.publish() == 2
    assert listed(runway) == owed


def test_a_push_that_fails_leaves_everything_due(database: Database) -> None:
    """B027: Redis is away, and comes back empty."""
    owed = owe(database, 5)
    with ValkeyServer() as server, closing(connect_redis(Settings(redis_url=server.url))) as client:
        runway = Runway(client, "away")
        publisher = Publisher(database, runway, limit=100)
        server.kill()

        with pytest.raises(redis_client.ConnectionError):
            publisher.publish()
        due = published()
        server.start()

        assert due == 0
        assert publisher.publish() == 5
        assert set(listed(runway)) == set(owed)


class Lossy(Runway):
    """A runway that takes a push, and does something before the publisher can commit."""

    after_push: Callable[[], None] = staticmethod(lambda: None)

    def push(self, queue: str, dispatches: Any) -> None:
        super().push(queue, dispatches)
        self.after_push()


def test_a_commit_that_fails_after_the_push_sends_a_harmless_double(
    database: Database, redis: redis_client.Redis, settings: Settings, postgres: PostgresServer
) -> None:
    """B027, B098: the publisher's session dies between push and commit; its next turn has a new one."""
    (owed,) = owe(database)
    runway = Lossy(redis, settings.namespace)
    publisher = Publisher(database, runway, limit=100)
    pid = database.raw().info.backend_pid
    runway.after_push = lambda: administer(postgres, f"select pg_terminate_backend({pid}, 5000)")

    with pytest.raises(db.GONE):
        publisher.publish()
    runway.after_push = lambda: None

    assert publisher.publish() == 1
    assert listed(runway) == [owed, owed]
    twice = [Dispatch.decode(member) for member in runway.members("default")]
    claims = [database.perform(transitions.claim, [one], owner="worker-1", lease=15) for one in twice]
    others = [database.perform(transitions.claim, [one], owner="worker-2", lease=15) for one in twice]
    assert [len(claims[0]), *map(len, others)] == [1, 0, 0]


def test_publishers_at_once_never_send_a_dispatch_twice(database: Database, runway: Runway) -> None:
    owed, ready, popped = owe(database, 600), threading.Barrier(3), list[bytes]()

    def publish(_: int) -> None:
        publisher = Publisher(database, runway, limit=50)
        ready.wait(10)
        while publisher.publish() or publisher.backlog:
            popped.extend(runway.pop(["default"], limit=50, seconds=0.01)[1])
        database.close()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(publish, range(3)))

    sent = [Dispatch.decode(member).task_run_id for member in popped + runway.members("default")]
    assert Counter(sent) == Counter(owed)


# recover


@pytest.mark.usefixtures("_lost_at_once")
def test_what_stands_in_a_list_is_not_sent_again(database: Database, publisher: Publisher, runway: Runway) -> None:
    owe(database, 3, queue="cpu"), owe(database, 3)
    publisher.publish()

    assert recover(database, runway, limit=100) == 0

    assert publisher.publish() == 0


@pytest.mark.usefixtures("_lost_at_once")
def test_what_is_missing_is_sent_once_more(database: Database, publisher: Publisher, runway: Runway) -> None:
    """B031: one message is deleted by hand."""
    owed = owe(database, 3)
    publisher.publish()
    _, (lost,) = runway.pop(["default"], limit=1, seconds=1)

    counts = [recover(database, runway, limit=100), publisher.publish(), recover(database, runway, limit=100)]

    assert counts == [1, 1, 0]
    assert Counter(listed(runway)) == Counter(owed)
    assert listed(runway)[-1] == Dispatch.decode(lost).task_run_id


@pytest.mark.usefixtures("_lost_at_once")
def test_what_is_missing_is_found_behind_many_that_wait(
    database: Database, publisher: Publisher, runway: Runway
) -> None:
    """B031, B037: no worker serves a queue whose dispatches are older, and more than one look is meant for."""
    owe(database, 9, queue="cpu")
    publisher.publish()
    (lost,) = owe(database)
    publisher.publish()
    runway.pop(["default"], limit=1, seconds=1)

    assert recover(database, runway, limit=3) == 1

    publisher.publish()
    assert listed(runway) == [lost]


def test_what_was_just_published_is_not_looked_for(database: Database, publisher: Publisher, runway: Runway) -> None:
    owe(database)
    publisher.publish()
    runway.pop(["default"], limit=1, seconds=1)

    assert recover(database, runway, limit=100) == 0


@pytest.mark.usefixtures("_lost_at_once")
@pytest.mark.parametrize("hand_back", [False, True], ids=["and kept", "and handed back"])
def test_what_is_claimed_meanwhile_is_left_alone(
    database: Database, redis: redis_client.Redis, settings: Settings, *, hand_back: bool
) -> None:
    """The worker claims between the two reads of recover."""
    (owed,) = owe(database)

    class Watched(Runway):
        def members(self, queue: str) -> list[bytes]:
            (claimed,) = factories.claim(database, models.TaskRun.get_by_id(owed))
            if hand_back:
                database.perform(transitions.hand_back, [transitions.Release(claimed.id, claimed.token)])
            return super().members(queue)

    runway = Watched(redis, settings.namespace)
    publisher = Publisher(database, runway, limit=100)
    publisher.publish()
    runway.pop(["default"], limit=1, seconds=1)

    assert recover(database, runway, limit=100) == 0

    assert publisher.publish() == int(hand_back)


@pytest.mark.usefixtures("_lost_at_once")
def test_a_wiped_redis_refills_itself_exactly_once(
    database: Database, publisher: Publisher, runway: Runway, redis: redis_client.Redis
) -> None:
    """B031: a thousand wait, and all of our keys are gone."""
    owed = owe(database, 1000)
    publisher.publish()
    redis.delete(*redis.scan_iter(f"{runway.namespace}:*", count=1000))

    assert recover(database, runway, limit=10_000) == 1000
    assert (publisher.publish(), publisher.publish()) == (1000, 0)

    assert Counter(listed(runway)) == Counter(owed)
    assert recover(database, runway, limit=10_000) == 0


@pytest.mark.usefixtures("_lost_at_once")
def test_recovery_wakes_a_publisher_only_if_it_found_anything(
    database: Database, publisher: Publisher, runway: Runway
) -> None:
    owe(database)
    publisher.publish()
    recover(database, runway, limit=100)
    before = runway.wait(0.01)
    runway.pop(["default"], limit=1, seconds=1)

    recover(database, runway, limit=100)

    assert (before, runway.wait(1)) == ([], [b"now"])


@pytest.mark.usefixtures("_lost_at_once")
def test_an_unreadable_entry_is_logged_and_hides_nothing(
    database: Database, publisher: Publisher, runway: Runway, caplog: pytest.LogCaptureFixture
) -> None:
    owe(database, 2)
    publisher.publish()
    runway.pop(["default"], limit=1, seconds=1)
    runway.push("default", [b"not ours", b"[1, 2]", b'["a", 1, "b", "c", "d", "e", "f", 1]', b"\xff"])

    assert recover(database, runway, limit=100) == 1

    assert caplog.text.count("dispatch.unreadable") == 4
