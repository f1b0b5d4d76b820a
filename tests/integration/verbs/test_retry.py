"""retry: running -> ready, one attempt more, one of failures_left, due later."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from psycopg2.errors import LockNotAvailable

from flowforge import transitions
from flowforge.states import TaskState
from flowforge.transitions import Release
from tests import factories
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.db import Database

ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback …"}


def failure(row: Any, *, off: int = 0, delay: float = 0.0) -> Release:
    """Return a failed attempt of a running task run, at its token or `off` from it."""
    return Release(row.id, row.fencing_token + off, delay, json.dumps(ERROR))


def test_a_failed_attempt_is_due_again_later(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)

    answer = database.perform(transitions.retry, [failure(row, delay=30)])

    now, (message,) = factories.reload(row), situation.owed(row)
    assert answer == {row.id: "ready"}
    assert (now.state, now.attempt, now.fencing_token, now.failures_left) == ("ready", 2, 2, 1)
    assert (now.lease_owner, now.lease_expires_at, now.error) == (None, None, ERROR)
    assert (message.fencing_token_snapshot, message.attempt_snapshot, message.published_at) == (2, 2, None)
    assert 29.9 < (message.available_at - message.created_at).total_seconds() <= 30
    assert message.payload == {"workflow": "sales", "key": "load", "task": str(row.task_id)}


def test_a_retry_is_told_without_the_traceback(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)

    database.perform(transitions.retry, [failure(row, delay=1.5)])

    event = situation.last_event(row)
    assert (event.kind, event.from_state, event.to_state) == ("retried", "running", "ready")
    assert (event.attempt, event.fencing_token) == (2, 2)
    assert event.detail == {"type": "ValueError", "message": "no", "delay": 1.5}


def test_a_retry_changes_nothing_for_the_run_and_its_dependents(database: Database) -> None:
    """B072: the end of an attempt is not the end of a task run."""
    row = situation.in_state(database, TaskState.RUNNING, attempts=2)
    run, report = situation.run(row.workflow_run_id), factories.task_run(row.workflow_run_id, "report")

    database.perform(transitions.retry, [failure(row)])

    assert situation.run(run.id).__data__ == run.__data__
    assert factories.reload(report).__data__ == report.__data__


def test_attempts_are_numbered_from_one_to_as_many_as_are_allowed(database: Database) -> None:
    """B079: three attempts are three starts, without a gap, and the last is told that it was the last."""
    row = factories.start_single(database, attempts=3)
    numbers: list[int] = []
    answers: list[str] = []

    for _ in range(3):
        (claim,) = factories.claim(database, factories.reload(row))
        numbers.append(claim.attempt)
        answers += database.perform(transitions.retry, [Release(claim.id, claim.token)]).values()

    assert numbers == [1, 2, 3]
    assert answers == ["ready", "ready", "exhausted"]


def test_without_failures_left_nothing_changes(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=1)
    before = situation.picture()

    answer = database.perform(transitions.retry, [failure(row)])

    assert answer == {row.id: "exhausted"}
    assert situation.changed_since(before) == set()


def test_who_is_asked_to_cancel_is_not_retried(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)
    situation.ask_to_cancel(row)
    before = situation.picture()

    answer = database.perform(transitions.retry, [failure(row)])

    assert answer == {row.id: "cancel"}
    assert situation.changed_since(before) == set()


def test_one_batch_has_an_answer_for_each_that_is_the_callers(database: Database) -> None:
    again = situation.in_state(database, TaskState.RUNNING, attempts=2)
    last = situation.in_state(database, TaskState.RUNNING, attempts=1)
    ended = situation.in_state(database, TaskState.SUCCEEDED, attempts=2)

    answer = database.perform(transitions.retry, [failure(again), failure(last), failure(ended)])

    assert answer == {again.id: "ready", last.id: "exhausted"}


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    situation.in_state(database, TaskState.RUNNING, attempts=2)
    before = situation.picture()

    assert database.perform(transitions.retry, []) == {}

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_only_a_running_task_run_is_retried(database: Database, state: TaskState) -> None:
    row = situation.in_state(database, state, attempts=3)
    before = situation.picture()

    answer = database.perform(transitions.retry, [failure(row)])

    assert answer == {}
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize(("off", "changed"), [(-1, {"task_run_event"}), (1, set())], ids=["stale", "future"])
def test_another_token_is_refused(database: Database, off: int, changed: set[str]) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)
    before = situation.picture()

    answer = database.perform(transitions.retry, [failure(row, off=off)])

    assert answer == {}
    assert situation.changed_since(before) == changed


def test_a_stale_failure_is_told_as_refused(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)

    database.perform(transitions.retry, [failure(row, off=-1)])

    event = situation.last_event(row)
    assert (event.kind, event.from_state, event.to_state) == ("refused", "running", "running")
    assert (event.fencing_token, event.detail) == (1, {"token": 0, "outcome": "retried"})


def test_a_late_failure_is_refused_though_an_earlier_attempt_was_handed_back(database: Database) -> None:
    """B051: that release was another's, at another token."""
    row = factories.start_single(database, attempts=3)
    (first,) = factories.claim(database, row)
    database.perform(transitions.hand_back, [Release(first.id, first.token)])
    (late,) = factories.claim(database, factories.reload(row), lease=-1)
    database.perform(transitions.expire, limit=1)

    database.perform(transitions.retry, [Release(late.id, late.token)])

    assert factories.event_kinds(row)[-2:] == ["expired", "refused"]


@pytest.mark.parametrize("verb", [transitions.retry, transitions.hand_back])
def test_it_waits_no_longer_for_a_locked_task_run_than_it_has_patience(
    database: Database, database_url: str, verb: Any
) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)

    first = partial(transitions.finish, outcomes=[situation.outcome(row)])
    with situation.held_open(database_url, first), pytest.raises(LockNotAvailable):
        database.perform(verb, [failure(row)], patience=0.05)


def test_the_owners_own_retry_sent_again_is_no_refusal(database: Database) -> None:
    """B027: the commit came through and its reply was lost."""
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)

    database.perform(transitions.retry, [failure(row)])
    again = database.perform(transitions.retry, [failure(row)])

    assert again == {}
    assert factories.event_kinds(row)[-1] == "retried"
    assert factories.reload(row).attempt == 2


def test_the_same_failure_twice_in_one_batch_costs_one_attempt(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)
    stale = failure(row, off=-1)

    database.perform(transitions.retry, [failure(row), failure(row), stale, stale])

    now = factories.reload(row)
    assert (now.attempt, now.fencing_token, now.failures_left) == (2, 2, 1)
    assert len(situation.owed(row)) == 1
    assert sorted(factories.event_kinds(row)[3:]) == ["refused", "retried"]


def test_of_one_failure_sent_twice_at_once_the_first_counts(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)

    with racing(
        database_url,
        lambda connection: transitions.retry(connection, [failure(row)]),
        lambda connection: transitions.retry(connection, [failure(row)]),
    ) as (first, second):
        pass

    assert (first.answer, second.answer) == ({row.id: "ready"}, {})
    assert factories.reload(row).attempt == 2
    assert factories.event_kinds(row)[-2:] == ["retried", "refused"]


def test_a_failure_waits_for_the_completion_that_came_first(database: Database, database_url: str) -> None:
    """B077: what has succeeded is not retried."""
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)

    with racing(
        database_url,
        lambda connection: transitions.finish(connection, [situation.outcome(row)]),
        lambda connection: transitions.retry(connection, [failure(row)]),
    ) as (_, second):
        pass

    assert second.answer == {}
    assert factories.reload(row).state == "succeeded"
    assert situation.owed(row) == []
