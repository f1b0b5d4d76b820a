"""After a cancel: what a worker says later becomes `cancelled`, or its token is spent; what was sent starts nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from peewee import SQL

from flowforge import models, transitions
from flowforge.states import TaskState
from flowforge.transitions import Mark, Release
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.integration.verbs.situation import OUTCOMES

if TYPE_CHECKING:
    from flowforge.db import Database

CHAIN = {f"task_{n}": Node([f"task_{n - 1}"] if n > 1 else []) for n in range(1, 6)}
ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback …"}


def asked(database: Database, **options: Any) -> Any:
    """Return the middle task run of a chain, running, and asked to stop."""
    row = situation.in_state(database, TaskState.RUNNING, **options)
    situation.cancel(database, row.workflow_run_id, row)
    return factories.reload(row)


def cancelled_in_wait(database: Database, **options: Any) -> Any:
    """Return a task run as its owner knew it, that was retried, and then cancelled while it waited."""
    row = situation.in_state(database, TaskState.RUNNING, attempts=3, **options)
    assert database.perform(transitions.retry, [Release(row.id, row.fencing_token, 3600)]) == {row.id: "ready"}
    situation.cancel(database, row.workflow_run_id, row)
    return row


# Who was asked


def test_a_deadline_cancels_nothing_again(database: Database) -> None:
    """B058: the duty had found the run before somebody cancelled it."""
    run_id = factories.start(database, factories.make_workflow({"only": Node()}), deadline=60)
    factories.claim(database, factories.task_run(run_id, "only"))
    past: Any = {models.WorkflowRun.deadline: SQL("created_at + interval '1 ms'")}
    models.WorkflowRun.update(past).where(models.WorkflowRun.id == run_id).execute()
    situation.cancel(database, run_id)
    before = situation.picture()

    late = database.perform(transitions.cancel, run_id, situation.DECISION, overdue=True)

    assert late is not None
    assert not late.accepted
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_however_it_ends_it_ends_cancelled(database: Database, outcome: TaskState) -> None:
    """B073, B074: late success does not overwrite the cancel."""
    row = asked(database)

    endings = database.perform(transitions.finish, [situation.outcome(row, outcome)])

    now, event = factories.reload(row), situation.last_event(row)
    assert [ending.became for ending in endings if ending.id == row.id] == ["ended"]
    assert (now.state, now.fencing_token, now.lease_owner) == ("cancelled", row.fencing_token, None)
    assert (event.kind, event.from_state, event.to_state) == ("cancelled", "running", "cancelled")
    assert event.detail == (None if outcome == TaskState.CANCELLED else {"outcome": outcome})
    assert situation.broken(database) == []


def test_a_late_result_is_not_kept(database: Database) -> None:
    row = asked(database)

    database.perform(transitions.finish, [situation.outcome(row)._replace(result='{"total": 3}')])

    assert factories.reload(row).result is None


def test_a_late_error_is_kept_and_told(database: Database) -> None:
    row = asked(database)

    database.perform(transitions.finish, [situation.outcome(row, TaskState.FAILED)._replace(error=json.dumps(ERROR))])

    assert factories.reload(row).error == ERROR
    assert situation.last_event(row).detail == {"outcome": "failed", "type": "ValueError", "message": "no"}


def test_a_late_failure_does_not_fail_the_run(database: Database) -> None:
    row = asked(database)

    database.perform(transitions.finish, [situation.outcome(row, TaskState.FAILED)])

    run = situation.run(row.workflow_run_id)
    assert (run.state, run.tasks_failed, run.tasks_cancelled) == ("cancelled", 0, 1)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_owners_own_end_is_known_again_whatever_it_said(database: Database, outcome: TaskState) -> None:
    """B066: the reply to its commit was lost."""
    row = asked(database)
    database.perform(transitions.finish, [situation.outcome(row, outcome)])
    before = situation.picture()

    endings = database.perform(transitions.finish, [situation.outcome(row, outcome)])

    assert [ending.became for ending in endings] == ["ended before"]
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("verb", [transitions.retry, transitions.hand_back])
def test_it_is_not_released_and_its_owner_is_told_to_end_it(database: Database, verb: Any) -> None:
    row = asked(database, attempts=3)
    before = situation.picture()

    answer = database.perform(verb, [Release(row.id, row.fencing_token)])
    unchanged = situation.changed_since(before) == set()
    database.perform(transitions.finish, [situation.outcome(row, TaskState.CANCELLED)])

    assert answer == {row.id: "cancel"}
    assert unchanged
    assert factories.reload(row).state == "cancelled"


def test_its_renewal_says_that_it_is_to_stop(database: Database) -> None:
    row = asked(database)
    held = (row.id, row.fencing_token)

    assert database.perform(transitions.renew, factories.renewals([held], lease=60)) == {held: "cancel"}


@pytest.mark.parametrize("lost", [0, 3], ids=["last loss", "losses left"])
def test_when_its_worker_is_killed_it_is_cancelled_with_its_lease(database: Database, lost: int) -> None:
    """B075: it is not started again, although losses are left; and it is no loss."""
    row = situation.in_state(database, TaskState.READY, lost=lost)
    factories.claim(database, row, lease=-1)
    situation.cancel(database, row.workflow_run_id)

    (late,) = database.perform(transitions.expire, limit=10).taken

    now = factories.reload(row)
    assert late.became == "cancel"
    assert (now.state, now.attempt, now.losses_left, now.error) == ("cancelled", 1, lost, None)
    assert situation.run(row.workflow_run_id).state == "cancelled"
    assert situation.broken(database) == []


def test_after_its_lease_was_over_its_late_success_is_refused_and_told(database: Database) -> None:
    """B051."""
    row = situation.in_state(database, TaskState.READY)
    factories.claim(database, row, lease=-1)
    situation.cancel(database, row.workflow_run_id)
    database.perform(transitions.expire, limit=10)
    before = situation.picture()

    endings = database.perform(transitions.finish, [situation.outcome(row, off=1)])

    assert [ending.became for ending in endings] == ["refused"]
    assert situation.changed_since(before) == {"task_run_event"}
    assert situation.last_event(row).detail == {"token": row.fencing_token + 1, "outcome": "succeeded"}


# Who had given it up, or never had it


@pytest.mark.parametrize("outcome", [*OUTCOMES])
def test_an_earlier_owners_completion_is_refused_and_told(database: Database, outcome: TaskState) -> None:
    row = cancelled_in_wait(database)
    before = situation.picture()

    endings = database.perform(transitions.finish, [situation.outcome(row, outcome)])

    assert [ending.became for ending in endings] == ["refused"]
    assert situation.changed_since(before) == {"task_run_event"}
    assert (situation.last_event(row).kind, factories.reload(row).state) == ("refused", "cancelled")


@pytest.mark.parametrize("verb", [transitions.retry, transitions.hand_back])
def test_an_earlier_owner_releases_nothing(database: Database, verb: Any) -> None:
    row = cancelled_in_wait(database)

    answer = database.perform(verb, [Release(row.id, row.fencing_token)])

    assert answer == {}
    assert factories.reload(row).state == "cancelled"
    assert situation.owed(row) == []


def test_an_earlier_owner_renews_and_guards_nothing(database: Database) -> None:
    row = cancelled_in_wait(database)
    held = (row.id, row.fencing_token)
    before = situation.picture()

    assert database.perform(transitions.renew, factories.renewals([held], lease=60)) == {held: "lost"}
    assert database.perform(transitions.guard, *held) is False

    assert situation.changed_since(before) == set()


def test_a_dispatch_that_a_busy_worker_had_taken_in_starts_nothing(database: Database) -> None:
    """B076: what was sent before the cancel is refused by its token, after any number of restarts."""
    row = factories.start_single(database)
    with database.atomic():
        taken = transitions.take(database.raw(), "default", limit=10, after=Mark()).dispatches
    situation.cancel(database, row.workflow_run_id)
    before = situation.picture()

    claims = database.perform(transitions.claim, taken, owner="worker-1", lease=15)
    at_the_new_token = factories.claim(database, factories.reload(row))

    assert [dispatch.task_run_id for dispatch in taken] == [row.id]
    assert claims == at_the_new_token == []
    assert situation.changed_since(before) == set()


def test_nothing_cancelled_is_dispatched_deferred_or_sent_again(database: Database) -> None:
    """B076: a cancel while all workers are down."""
    row = factories.start_single(database)
    message, dispatch = situation.owed(row)[0], factories.dispatch(row)
    with database.atomic():
        transitions.take(database.raw(), "default", limit=10, after=Mark())
    published_at = factories.reload(message).published_at
    situation.cancel(database, row.workflow_run_id)
    before = situation.picture()

    assert database.perform(transitions.resend, [(message.id, published_at)]) == []
    assert database.perform(transitions.defer, [(dispatch, "no such task")], delay=0) == []
    with database.atomic():
        assert transitions.take(database.raw(), "default", limit=10, after=Mark()).read == 0

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_of_a_chain_nothing_starts_after_the_cancel(database: Database, outcome: TaskState) -> None:
    """B074: the second of five ignores the cancel, and ends as it likes."""
    run_id = factories.start(database, factories.make_workflow(CHAIN))
    situation.complete(database, factories.task_run(run_id, "task_1"))
    (second,) = factories.claim(database, factories.task_run(run_id, "task_2"))

    situation.cancel(database, run_id)
    owed_between = models.OutboxMessage.select().count()
    database.perform(transitions.finish, [factories.outcome(second, outcome)])

    run = situation.run(run_id)
    assert owed_between == models.OutboxMessage.select().count() == 0
    assert list(situation.states(run_id).values()) == ["succeeded"] + ["cancelled"] * 4
    assert (run.state, run.tasks_remaining, run.tasks_failed, run.tasks_cancelled) == ("cancelled", 0, 0, 4)
    assert {kind for n in (3, 4, 5) for kind in factories.event_kinds(factories.task_run(run_id, f"task_{n}"))} == {
        "created",
        "cancelled",
    }
    assert situation.broken(database) == []
