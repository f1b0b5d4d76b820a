"""hand_back: running -> ready with the same attempt, at no cost: a worker that stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flowforge import transitions
from flowforge.states import TaskState
from flowforge.transitions import Release
from tests import factories
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.db import Database


def release(row: Any, *, off: int = 0) -> Release:
    """Return what an owner that stops gives back, at its token or `off` from it."""
    return Release(row.id, row.fencing_token + off)


def test_what_was_not_carried_out_is_due_at_once_and_costs_nothing(database: Database) -> None:
    """B062: a shutdown charges no attempt."""
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)

    answer = database.perform(transitions.hand_back, [release(row)])

    now, (message,) = factories.reload(row), situation.owed(row)
    assert answer == {row.id: "ready"}
    assert (now.state, now.attempt, now.fencing_token) == ("ready", 1, 2)
    assert (now.failures_left, now.losses_left) == (row.failures_left, row.losses_left)
    assert (now.lease_owner, now.lease_expires_at, now.error) == (None, None, None)
    assert (message.fencing_token_snapshot, message.attempt_snapshot, message.published_at) == (2, 1, None)
    assert message.available_at <= message.created_at


def test_a_hand_back_is_told(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)

    database.perform(transitions.hand_back, [release(row)])

    event = situation.last_event(row)
    assert (event.kind, event.from_state, event.to_state) == ("handed_back", "running", "ready")
    assert (event.attempt, event.fencing_token, event.detail) == (1, 2, {"delay": 0})


def test_the_run_goes_on_and_another_worker_takes_over(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    run = situation.run(row.workflow_run_id)

    database.perform(transitions.hand_back, [release(row)])
    (claim,) = factories.claim(database, factories.reload(row), owner="worker-2")

    assert (claim.attempt, claim.token) == (1, 3)
    assert situation.run(run.id).__data__ == run.__data__


def test_the_last_attempt_can_be_handed_back(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=1, lost=0)

    answer = database.perform(transitions.hand_back, [release(row)])

    assert answer == {row.id: "ready"}


def test_who_is_asked_to_cancel_is_not_handed_back(database: Database) -> None:
    """B076: what was asked to stop does not start again on another worker."""
    row = situation.in_state(database, TaskState.RUNNING)
    situation.ask_to_cancel(row)
    before = situation.picture()

    answer = database.perform(transitions.hand_back, [release(row)])

    assert answer == {row.id: "cancel"}
    assert situation.changed_since(before) == set()


def test_one_batch_hands_back_over_several_runs(database: Database) -> None:
    rows = [situation.in_state(database, TaskState.RUNNING) for _ in range(3)]

    answer = database.perform(transitions.hand_back, [release(row) for row in rows])

    assert answer == {row.id: "ready" for row in rows}
    assert all(len(situation.owed(row)) == 1 for row in rows)


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    assert database.perform(transitions.hand_back, []) == {}

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_only_a_running_task_run_is_handed_back(database: Database, state: TaskState) -> None:
    row = situation.in_state(database, state)
    before = situation.picture()

    answer = database.perform(transitions.hand_back, [release(row)])

    assert answer == {}
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize(("off", "changed"), [(-1, {"task_run_event"}), (1, set())], ids=["stale", "future"])
def test_another_token_is_refused(database: Database, off: int, changed: set[str]) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    answer = database.perform(transitions.hand_back, [release(row, off=off)])

    assert answer == {}
    assert situation.changed_since(before) == changed


def test_the_same_task_run_twice_in_one_batch_changes_hands_once(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)

    database.perform(transitions.hand_back, [release(row), release(row)])

    assert factories.reload(row).fencing_token == 2
    assert len(situation.owed(row)) == 1
    assert factories.event_kinds(row)[3:] == ["handed_back"]


def test_of_two_at_once_the_first_counts(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)

    with racing(
        database_url,
        lambda connection: transitions.hand_back(connection, [release(row)]),
        lambda connection: transitions.hand_back(connection, [release(row)]),
    ) as (first, second):
        pass

    assert (first.answer, second.answer) == ({row.id: "ready"}, {})
    assert (factories.reload(row).fencing_token, len(situation.owed(row))) == (2, 1)
