"""take and resend: what is owed to the broker, marked as published and made due again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from peewee import SQL

from flowforge import models, transitions
from flowforge.transitions import Dispatch, Mark
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.db import Database


def owe(database: Database, number: int, *, priority: int = 0, queue: str = "default") -> list[UUID]:
    """Start runs of one task, one after the other; return the ids of their task runs, earliest due first."""
    workflow = factories.make_workflow({"only": Node(options={"queue": queue})})
    for _ in range(number):
        factories.start(database, workflow, priority=priority)
    mine = models.TaskRun.select().join(models.Task).where(models.Task.workflow == workflow)
    return [row.id for row in mine.order_by(models.TaskRun.created_at)]


def take(database: Database, *, limit: int = 100, after: Mark | None = None, queue: str = "default") -> list[UUID]:
    """Take and commit; return the ids of the task runs, in order."""
    with database.atomic():
        dispatches, *_ = transitions.take(database.raw(), queue, limit=limit, after=after or Mark())
    return [dispatch.task_run_id for dispatch in dispatches]


def delay(row_id: UUID, seconds: float) -> None:
    """Move the time at which a task run's dispatch is due."""
    due = {models.OutboxMessage.available_at: SQL("flowforge.clock() + %s", [timedelta(seconds=seconds)])}
    models.OutboxMessage.update(due).where(models.OutboxMessage.task_run == row_id).execute()


def message(row_id: UUID) -> models.OutboxMessage:
    """Return the dispatch owed for a task run, as it is now."""
    return models.OutboxMessage.get(models.OutboxMessage.task_run == row_id)


# take


def test_a_due_dispatch_is_published(database: Database) -> None:
    row = factories.start_single(database)
    before = situation.picture()

    with database.atomic():
        (dispatch,), *_ = transitions.take(database.raw(), "default", limit=10, after=Mark())

    assert dispatch == factories.dispatch(row)
    assert message(row.id).published_at >= message(row.id).available_at
    assert situation.changed_since(before) == {"outbox_message"}


def test_a_dispatch_survives_its_way_through_redis(database: Database) -> None:
    dispatch = factories.dispatch(factories.start_single(database))

    assert Dispatch.decode(dispatch.encode()) == dispatch


def test_what_was_taken_is_not_taken_again(database: Database) -> None:
    ids = owe(database, 2)

    first, second = take(database), take(database)

    assert (first, second) == (ids, [])


def test_the_most_urgent_goes_first_and_then_the_earliest_due(database: Database) -> None:
    late, early, urgent = owe(database, 1), owe(database, 1), owe(database, 2, priority=-5)
    delay(early[0], -60)

    assert take(database) == urgent + early + late


def test_the_limit_leaves_the_least_urgent(database: Database) -> None:
    """B030: never more than asked for."""
    usual, urgent = owe(database, 3), owe(database, 2, priority=-5)

    assert take(database, limit=3) == [*urgent, usual[0]]
    assert take(database, limit=3) == usual[1:]


def test_the_limit_holds_whatever_the_planner_thinks(database: Database) -> None:
    """B030: a subquery with a limit may be run again for each row, where the planner knows of one row only."""
    owe(database, 1)
    database.execute_sql("analyze flowforge.outbox_message")
    owe(database, 20)

    with database.atomic():
        for way in ("material", "hashjoin", "hashagg", "sort", "mergejoin"):
            database.execute_sql(f"set local enable_{way} = off")
        dispatches, *_ = transitions.take(database.raw(), "default", limit=5, after=Mark())

    assert len(dispatches) == 5


def test_what_is_due_in_the_future_stays(database: Database) -> None:
    """B035: a delay is kept here, and by nobody else."""
    now, later = owe(database, 2)
    delay(later, 60)

    assert take(database) == [now]


def test_what_is_held_stays_until_it_is_released(database: Database) -> None:
    held, free = owe(database, 2)
    for hold, taken in ((True, [free]), (False, [held])):
        models.OutboxMessage.update(held=hold).where(models.OutboxMessage.task_run == held).execute()

        assert take(database) == taken


def test_a_queue_gives_only_its_own(database: Database) -> None:
    cpu, _ = owe(database, 1, queue="cpu"), owe(database, 1)

    assert take(database, queue="cpu") == cpu


def test_the_mark_goes_on_from_the_last_one_taken(database: Database) -> None:
    owe(database, 3)
    with database.atomic():
        _, mark, _ = transitions.take(database.raw(), "default", limit=2, after=Mark())
        rest, end, _ = transitions.take(database.raw(), "default", limit=2, after=mark)
        none, still, _ = transitions.take(database.raw(), "default", limit=2, after=end)

    last = message(rest[-1].task_run_id)
    assert (len(rest), none) == (1, [])
    assert end == still == Mark(last.priority, last.available_at)


def test_the_mark_passes_over_what_is_more_urgent(database: Database) -> None:
    first, second = owe(database, 2)
    urgent = owe(database, 1, priority=-5)

    mark = Mark(0, message(second).available_at)

    assert take(database, after=mark) == [second]
    assert take(database) == [*urgent, first]


def test_what_was_rolled_back_is_due_again(database: Database) -> None:
    """B027: the broker has not confirmed."""
    ids = owe(database, 2)

    with database.atomic() as transaction:
        transitions.take(database.raw(), "default", limit=10, after=Mark())
        transaction.rollback()

    assert take(database) == ids


def test_two_publishers_at_once_share_without_waiting(database: Database, database_url: str) -> None:
    """B026: a publisher that dies with its transaction open leaves the rest to the others."""
    ids = owe(database, 6)

    with situation.held_open(
        database_url, lambda connection: transitions.take(connection, "default", limit=3, after=Mark())
    ) as first:
        second = take(database, limit=100)

    dispatches, *_ = first.answer
    assert [dispatch.task_run_id for dispatch in dispatches] == ids[:3]
    assert second == ids[3:]


# resend


def published(database: Database, number: int = 1) -> list[tuple[UUID, Any]]:
    """Owe and publish; return (id, published_at) of the messages."""
    ids = owe(database, number)
    take(database)
    return [(message(row_id).id, message(row_id).published_at) for row_id in ids]


def test_a_lost_message_is_due_again(database: Database) -> None:
    """B031: the broker has forgotten it."""
    missing = published(database, 2)
    before = situation.picture()

    queues = database.perform(transitions.resend, missing)

    assert queues == ["default", "default"]
    assert situation.changed_since(before) == {"outbox_message"}
    assert len(take(database)) == 2


@pytest.mark.parametrize("seconds", [-1, 1], ids=["earlier", "later"])
def test_a_message_published_at_another_time_is_left_alone(database: Database, seconds: int) -> None:
    """B058: the list of what is missing may be old."""
    ((message_id, at),) = published(database)
    before = situation.picture()

    assert database.perform(transitions.resend, [(message_id, at + timedelta(seconds=seconds))]) == []

    assert situation.changed_since(before) == set()


def test_a_message_that_is_due_or_gone_is_not_sent_again(database: Database) -> None:
    ((message_id, at),) = published(database)
    database.perform(transitions.resend, [(message_id, at)])
    before = situation.picture()

    assert database.perform(transitions.resend, [(message_id, at), (uuid4(), at)]) == []

    assert situation.changed_since(before) == set()


def test_the_same_message_twice_in_one_batch_is_sent_once(database: Database) -> None:
    ((message_id, at),) = published(database)

    queues = database.perform(transitions.resend, [(message_id, at), (message_id, at)])

    assert queues == ["default"]


def test_an_empty_resend_changes_nothing(database: Database) -> None:
    published(database)
    before = situation.picture()

    assert database.perform(transitions.resend, []) == []

    assert situation.changed_since(before) == set()


def test_of_two_resends_at_once_the_second_does_nothing_and_does_not_wait(
    database: Database, database_url: str
) -> None:
    """B058."""
    missing = published(database, 3)

    with situation.held_open(database_url, lambda connection: transitions.resend(connection, missing)) as first:
        second = database.perform(transitions.resend, missing)

    assert first.answer == ["default"] * 3
    assert second == []


def test_a_resend_leaves_a_message_that_is_being_claimed(database: Database, database_url: str) -> None:
    missing = published(database)
    row = models.TaskRun.get()

    with situation.held_open(
        database_url,
        lambda connection: transitions.claim(connection, [factories.dispatch(row)], owner="worker-1", lease=15),
    ):
        answer = database.perform(transitions.resend, missing)

    assert answer == []
    assert models.OutboxMessage.select().count() == 0
