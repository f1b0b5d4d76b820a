"""defer: ready -> ready, due later: this worker lacks the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flowforge import models, transitions
from flowforge.states import TaskState
from flowforge.transitions import Mark
from tests import factories
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.db import Database

REASON = "this worker has no task 'load' of workflow 'sales'"


def defer(database: Database, *rows: Any, reason: str = REASON, delay: float = 10) -> list[UUID]:
    """Defer task runs at their present tokens."""
    dispatches = [(factories.dispatch(row), reason) for row in rows]
    return database.perform(transitions.defer, dispatches, delay=delay)


def test_a_task_run_waits_for_another_worker(database: Database) -> None:
    """B040: what this worker does not know stays owed, and says why."""
    row = situation.in_state(database, TaskState.READY)
    with database.atomic():
        transitions.take(database.raw(), "default", limit=10, after=Mark())

    accepted = defer(database, row)

    now, (message,) = factories.reload(row), situation.owed(row)
    assert accepted == [row.id]
    assert {**now.__data__, "deferred_because": None} == row.__data__
    assert now.deferred_because == REASON
    assert (message.fencing_token_snapshot, message.attempt_snapshot, message.published_at) == (0, 1, None)
    assert 9 < (message.available_at - situation.last_event(row).created_at).total_seconds() < 11


def test_each_new_reason_is_told_once(database: Database) -> None:
    row = situation.in_state(database, TaskState.READY)

    for reason in (REASON, REASON, "another", "another", REASON):
        defer(database, row, reason=reason)

    event = situation.last_event(row)
    assert factories.event_kinds(row)[2:] == ["deferred", "deferred", "deferred"]
    assert (event.kind, event.from_state, event.to_state) == ("deferred", "ready", "ready")
    assert (event.attempt, event.fencing_token, event.detail) == (1, 0, {"reason": REASON})


def test_the_run_and_its_neighbours_are_left_alone(database: Database) -> None:
    row = situation.in_state(database, TaskState.READY)
    before = situation.picture()

    defer(database, row)

    assert situation.changed_since(before) == {"task_run", "outbox_message", "task_run_event"}
    assert situation.run(row.workflow_run_id).tasks_remaining == 2


def test_a_deferred_task_run_can_still_be_claimed(database: Database) -> None:
    row = situation.in_state(database, TaskState.READY)

    defer(database, row)

    assert len(factories.claim(database, factories.reload(row))) == 1


def test_one_batch_defers_over_several_runs(database: Database) -> None:
    rows = [situation.in_state(database, TaskState.READY) for _ in range(3)]

    accepted = defer(database, *rows)

    assert set(accepted) == {row.id for row in rows}
    assert {factories.reload(row).deferred_because for row in rows} == {REASON}


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    situation.in_state(database, TaskState.READY)
    before = situation.picture()

    assert defer(database) == []

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.READY])
def test_only_a_ready_task_run_is_deferred(database: Database, state: TaskState) -> None:
    row = situation.in_state(database, state)
    before = situation.picture()

    assert defer(database, row) == []

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("off", [-1, 1], ids=["stale", "future"])
def test_another_token_is_refused(database: Database, off: int) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    database.perform(transitions.hand_back, [transitions.Release(row.id, row.fencing_token)])
    message = factories.dispatch(factories.reload(row))
    before = situation.picture()

    message = message._replace(token=message.token + off)
    accepted = database.perform(transitions.defer, [(message, REASON)], delay=10)

    assert accepted == []
    assert situation.changed_since(before) == set()


def test_a_doubled_message_in_one_batch_is_told_once(database: Database) -> None:
    row = situation.in_state(database, TaskState.READY)

    accepted = defer(database, row, row)

    assert accepted == [row.id]
    assert factories.event_kinds(row)[2:] == ["deferred"]


def test_two_workers_at_once_tell_one_reason_once(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.READY)
    message = factories.dispatch(row)

    with racing(
        database_url,
        lambda connection: transitions.defer(connection, [(message, REASON)], delay=10),
        lambda connection: transitions.defer(connection, [(message, REASON)], delay=10),
    ) as (first, second):
        pass

    assert first.answer == second.answer == [row.id]
    assert factories.event_kinds(row)[2:] == ["deferred"]
    assert models.OutboxMessage.select().count() == 1


def test_a_worker_that_has_the_task_wins_over_one_that_lacks_it(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.READY)
    message = factories.dispatch(row)

    with racing(
        database_url,
        lambda connection: transitions.claim(connection, [message], owner="worker-1", lease=15),
        lambda connection: transitions.defer(connection, [(message, REASON)], delay=10),
    ) as (first, second):
        pass

    now = factories.reload(row)
    assert [claim.id for claim in first.answer] == [row.id]
    assert second.answer == []
    assert (now.state, now.deferred_because) == ("running", None)
