"""finish: running -> succeeded, failed, cancelled, skipped; dependents and the run hear of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from flowforge import transitions
from flowforge.states import TaskState
from flowforge.transitions import Outcome
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.integration.verbs.situation import OUTCOMES
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.db import Database

FAILED, SUCCEEDED = TaskState.FAILED, TaskState.SUCCEEDED
JOIN = {"left": Node(), "right": Node(), "join": Node(["left", "right"])}


# Allowed


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_running_task_run_ends_as_told(database: Database, outcome: TaskState) -> None:
    row = situation.in_state(database, TaskState.RUNNING)

    endings = database.perform(transitions.finish, [situation.outcome(row, outcome)])

    now, event = factories.reload(row), situation.last_event(row)
    assert transitions.Ending(row.id, row.workflow_run_id, 1, "ended") in endings
    assert (now.state, now.fencing_token, now.attempt) == (outcome, 1, 1)
    assert (now.lease_owner, now.lease_expires_at) == (None, None)
    assert now.finished_at >= now.started_at
    assert (event.kind, event.from_state, event.to_state) == (outcome, "running", outcome)
    assert (event.attempt, event.fencing_token) == (1, 1)
    assert situation.owed(row) == []


def test_a_result_is_kept(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)

    database.perform(transitions.finish, [situation.outcome(row)._replace(result='{"total": 3}')])

    assert factories.reload(row).result == {"total": 3}


def test_an_error_is_kept_and_told_without_its_traceback(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    error = {"type": "ValueError", "message": "no", "traceback": "Traceback …"}

    database.perform(transitions.finish, [situation.outcome(row, FAILED)._replace(error=json.dumps(error))])

    assert factories.reload(row).error == error
    assert situation.last_event(row).detail == {"type": "ValueError", "message": "no"}


def test_a_dependent_becomes_ready_and_is_owed_a_dispatch(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    report = factories.task_run(row.workflow_run_id, "report")

    endings = database.perform(transitions.finish, [situation.outcome(row)])

    (message,) = situation.owed(report)
    now, event = factories.reload(report), situation.last_event(report)
    assert transitions.Ending(report.id, report.workflow_run_id, 0, "ready") in endings
    assert (now.state, now.upstream_remaining, now.upstream_unsucceeded) == ("ready", 0, 0)
    assert (message.fencing_token_snapshot, message.attempt_snapshot, message.routing_key) == (0, 1, "default")
    assert message.payload == {"workflow": "sales", "key": "report", "task": str(report.task_id)}
    assert (event.kind, event.from_state, event.to_state) == ("readied", "pending", "ready")


def test_a_dependent_waits_for_its_last_upstream(database: Database) -> None:
    run_id = factories.start(database, factories.make_workflow(JOIN))
    join = factories.task_run(run_id, "join")

    situation.complete(database, factories.task_run(run_id, "left"))
    after_one = factories.reload(join)
    situation.complete(database, factories.task_run(run_id, "right"))
    after_two = factories.reload(join)

    assert (after_one.state, after_one.upstream_remaining) == ("pending", 1)
    assert (after_two.state, after_two.upstream_remaining) == ("ready", 0)
    assert factories.event_kinds(join) == ["created", "readied"]


def test_two_upstreams_in_one_batch_make_their_dependent_ready_once(database: Database) -> None:
    run_id = factories.start(database, factories.make_workflow(JOIN))
    join = factories.task_run(run_id, "join")
    claims = factories.claim(database, factories.task_run(run_id, "left"), factories.task_run(run_id, "right"))

    endings = database.perform(transitions.finish, [factories.outcome(claim) for claim in claims])

    assert sorted(ending.became for ending in endings) == ["ended", "ended", "ready"]
    assert factories.event_kinds(join) == ["created", "readied"]
    assert len(situation.owed(join)) == 1


def test_one_batch_ends_task_runs_of_several_runs(database: Database) -> None:
    rows = [situation.in_state(database, TaskState.RUNNING) for _ in range(3)]

    database.perform(transitions.finish, [situation.outcome(row) for row in rows])

    assert {situation.run(row.workflow_run_id).tasks_remaining for row in rows} == {1}
    assert {factories.task_run(row.workflow_run_id, "report").state for row in rows} == {"ready"}


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    assert database.perform(transitions.finish, []) == []

    assert situation.changed_since(before) == set()


def test_an_end_and_the_dispatch_of_what_follows_are_one_transaction(database: Database) -> None:
    """B083: no moment in which one step is over and the next is not owed."""
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    with database.atomic() as transaction:
        database.perform(transitions.finish, [situation.outcome(row)])
        transaction.rollback()

    assert situation.changed_since(before) == set()


# Refused by state


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_only_a_running_task_run_ends(database: Database, state: TaskState) -> None:
    """B077: no outcome changes a state that is terminal, nor one in which nobody works."""
    row = situation.in_state(database, state)
    others = [situation.outcome(row, outcome) for outcome in OUTCOMES if outcome != state]
    before = situation.picture()

    endings = [database.perform(transitions.finish, [other]) for other in others]

    assert [[ending.became for ending in answer] for answer in endings] == [["refused"]] * len(others)
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_owners_own_end_is_known_again(database: Database, outcome: TaskState) -> None:
    row = situation.in_state(database, outcome)
    before = situation.picture()

    endings = database.perform(transitions.finish, [situation.outcome(row, outcome)])

    assert [ending.became for ending in endings] == ["ended before"]
    assert situation.changed_since(before) == set()


def test_overdue_ends_no_lease_that_is_live(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    endings = database.perform(transitions.finish, [situation.outcome(row, FAILED)], overdue=True)

    assert [ending.became for ending in endings] == ["refused"]
    assert situation.changed_since(before) == set()


# Refused by token


@pytest.mark.parametrize("state", [TaskState.READY, TaskState.RUNNING, TaskState.SUCCEEDED])
def test_a_stale_completion_is_refused_and_told(database: Database, state: TaskState) -> None:
    """B051: whatever became of the task run since, a paused worker writes nothing but that it was refused."""
    row = situation.in_state(database, TaskState.RUNNING)
    database.perform(transitions.hand_back, [transitions.Release(row.id, row.fencing_token)])
    if state != TaskState.READY:
        factories.claim(database, factories.reload(row), owner="worker-2")
    if state == TaskState.SUCCEEDED:
        database.perform(transitions.finish, [situation.outcome(factories.reload(row))])
    before = situation.picture()

    endings = database.perform(transitions.finish, [situation.outcome(row)])

    event = situation.last_event(row)
    assert [ending.became for ending in endings] == ["refused"]
    assert situation.changed_since(before) == {"task_run_event"}
    assert (event.kind, event.from_state, event.to_state) == ("refused", state, state)
    assert event.detail == {"token": row.fencing_token, "outcome": "succeeded"}
    assert event.fencing_token == factories.reload(row).fencing_token


def test_a_completion_from_the_future_is_refused(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    endings = database.perform(transitions.finish, [situation.outcome(row, off=1)])

    assert [ending.became for ending in endings] == ["refused"]
    assert situation.changed_since(before) == set()


# Twice in one batch


def test_the_same_outcome_twice_in_one_batch_counts_once(database: Database) -> None:
    """B066: a redelivered completion does not count an upstream twice."""
    run_id = factories.start(database, factories.make_workflow(JOIN))
    (claim,) = factories.claim(database, factories.task_run(run_id, "left"))

    endings = database.perform(transitions.finish, [factories.outcome(claim), factories.outcome(claim)])

    join = factories.task_run(run_id, "join")
    assert [ending.became for ending in endings] == ["ended"]
    assert (join.state, join.upstream_remaining) == ("pending", 1)
    assert situation.run(run_id).tasks_remaining == 2
    assert factories.event_kinds(factories.task_run(run_id, "left")) == ["created", "claimed", "succeeded"]


def test_of_two_outcomes_for_one_token_in_one_batch_the_first_counts(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    first, second = situation.outcome(row, FAILED), situation.outcome(row, SUCCEEDED)

    database.perform(transitions.finish, [first, second])

    assert factories.reload(row).state == "failed"
    assert situation.run(row.workflow_run_id).state == "failed"
    assert factories.event_kinds(row) == ["created", "readied", "claimed", "failed"]


def test_a_stale_outcome_beside_the_owners_is_told_once(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    stale = situation.outcome(row, off=-1)

    database.perform(transitions.finish, [stale, situation.outcome(row, FAILED), stale])

    assert factories.reload(row).state == "failed"
    assert sorted(factories.event_kinds(row)[3:]) == ["failed", "refused"]


# At once


def test_of_one_completion_sent_twice_at_once_the_first_counts(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    outcome = situation.outcome(row)

    with racing(
        database_url,
        lambda connection: transitions.finish(connection, [outcome]),
        lambda connection: transitions.finish(connection, [outcome]),
    ) as (first, second):
        pass

    assert sorted(ending.became for ending in first.answer) == ["ended", "ready"]
    assert [ending.became for ending in second.answer] == ["ended before"]
    assert situation.run(row.workflow_run_id).tasks_remaining == 1


def test_a_completion_waits_for_a_hand_back_and_is_refused(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    released, outcome = transitions.Release(row.id, row.fencing_token), situation.outcome(row)

    with racing(
        database_url,
        lambda connection: transitions.hand_back(connection, [released]),
        lambda connection: transitions.finish(connection, [outcome]),
    ) as (first, second):
        pass

    assert first.answer == {row.id: "ready"}
    assert [ending.became for ending in second.answer] == ["refused"]
    assert factories.event_kinds(row)[-2:] == ["handed_back", "refused"]


@pytest.mark.parametrize(("outcome", "state"), [(SUCCEEDED, "ready"), (FAILED, "skipped")])
def test_two_upstreams_at_once_decide_their_dependent_once(
    database: Database, database_url: str, outcome: TaskState, state: str
) -> None:
    """B065: the second sees the first, although each began before the other was committed."""
    run_id = factories.start(database, factories.make_workflow(JOIN))
    left, right = factories.claim(database, factories.task_run(run_id, "left"), factories.task_run(run_id, "right"))

    with racing(
        database_url,
        lambda connection: transitions.finish(connection, [factories.outcome(left, outcome)]),
        lambda connection: transitions.finish(connection, [factories.outcome(right)]),
    ):
        pass

    join = factories.task_run(run_id, "join")
    assert (join.state, join.upstream_remaining) == (state, 0)
    assert factories.event_kinds(join)[1:] == ["readied" if state == "ready" else "skipped"]
    assert len(situation.owed(join)) == (state == "ready")


def test_a_failure_and_the_last_success_at_once_end_the_run_failed(database: Database, database_url: str) -> None:
    run_id = factories.start(database, factories.make_workflow({"left": Node(), "right": Node()}))
    left, right = factories.claim(database, factories.task_run(run_id, "left"), factories.task_run(run_id, "right"))

    with racing(
        database_url,
        lambda connection: transitions.finish(connection, [factories.outcome(left, FAILED)]),
        lambda connection: transitions.finish(connection, [factories.outcome(right)]),
    ):
        pass

    run = situation.run(run_id)
    assert (run.state, run.tasks_remaining, run.tasks_failed) == ("failed", 0, 1)
    assert [kind for kind, _, _ in situation.run_history(run_id)] == ["created", "started", "failed"]


def test_an_outcome_names_its_own_run(database: Database) -> None:
    row, other = (situation.in_state(database, TaskState.RUNNING) for _ in range(2))
    before = situation.picture()

    wrong = Outcome(row.id, other.workflow_run_id, row.fencing_token, SUCCEEDED)
    endings = database.perform(transitions.finish, [wrong])

    assert [ending.became for ending in endings] == ["refused"]
    assert situation.changed_since(before) == set()
