"""give_up: ready -> failed, when no worker has taken it by its `start_by`."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from flowforge import insights, models, transitions
from flowforge.states import Paused, TaskState
from flowforge.transitions import Ending, Mark, Outcome, Release, Subject
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.support import racing, wait_for

if TYPE_CHECKING:
    from flowforge.db import Database

ERROR = {"type": "not_started", "message": "no worker had started it"}
SOON, LATER = timedelta(milliseconds=50), timedelta(hours=1)


def word(row: models.TaskRun, *, off: int = 0) -> Outcome:
    """Return what ends a task run at its present token, or `off` from it."""
    return situation.outcome(row, TaskState.FAILED, off=off)._replace(error=json.dumps(ERROR))


def give_up(row: models.TaskRun, connection: Any) -> list[Ending]:
    """Give a task run up, in the connection's transaction."""
    return transitions.give_up(connection, [word(row)])


def unstarted(database: Database) -> list[Any]:
    """Return the ids of what nobody has started in time."""
    return [row.id for row in database.perform(insights.unstarted, limit=10)]


# Who is late


def test_each_dispatch_says_by_when_it_is_to_be_started(database: Database) -> None:
    row = situation.in_state(database, TaskState.READY, start_by=LATER)

    (message,) = situation.owed(row)

    assert abs(message.start_by - message.created_at - LATER) < timedelta(seconds=1)


def test_without_a_limit_it_may_wait_for_ever(database: Database) -> None:
    row = factories.start_single(database)

    assert situation.owed(row)[0].start_by is None
    assert unstarted(database) == []


def test_those_are_found_that_are_ready_and_late(database: Database) -> None:
    late = [factories.start_single(database, start_by=SOON) for _ in range(2)]
    factories.start_single(database, start_by=LATER)
    factories.claim(database, factories.start_single(database, start_by=SOON))

    wait_for(lambda: len(unstarted(database)) == len(late))

    assert unstarted(database) == [row.id for row in late]


@pytest.mark.parametrize("way", ["retry", "hand_back", "expire"])
def test_every_attempt_has_its_own_time_from_when_it_is_due(database: Database, way: str) -> None:
    row = factories.start_single(database, start_by=LATER, attempts=3)
    (claimed,) = factories.claim(database, row, lease=-1 if way == "expire" else 15)

    if way == "expire":
        database.perform(transitions.expire, limit=10)
    else:
        database.perform(getattr(transitions, way), [Release(claimed.id, claimed.token, delay=600)])

    (message,) = situation.owed(row)
    assert message.fencing_token_snapshot == 2
    assert abs(message.start_by - message.available_at - LATER) < timedelta(seconds=1)


# Allowed


def test_what_nobody_started_fails_at_a_new_token(database: Database) -> None:
    row = situation.in_state(database, TaskState.READY, start_by=SOON)

    (ended, *_) = database.perform(transitions.give_up, [word(row)])

    now, event = factories.reload(row), situation.last_event(row)
    assert ended == Ending(row.id, row.workflow_run_id, row.fencing_token, "ended")
    assert (now.state, now.fencing_token, now.attempt, now.error) == ("failed", 1, 1, ERROR)
    assert (now.started_at, now.lease_owner) == (None, None)
    assert (event.kind, event.from_state, event.to_state, event.fencing_token) == ("failed", "ready", "failed", 1)
    assert event.detail == ERROR
    assert situation.owed(row) == []
    assert situation.broken(database) == []


def test_dependents_and_run_hear_of_it(database: Database) -> None:
    """B070: a join of others and one that never started is decided."""
    tasks = {
        "load": Node(options={"start_by": SOON}),
        "other": Node(),
        "join": Node(["load", "other"]),
        "alarm": Node(["load"], {"when": "any_failed", "required": False}),
    }
    run_id = factories.start(database, factories.make_workflow(tasks))
    situation.complete(database, factories.task_run(run_id, "other"))

    database.perform(transitions.give_up, [word(factories.task_run(run_id, "load"))])
    between = situation.states(run_id)
    situation.complete(database, factories.task_run(run_id, "alarm"))

    assert between == {"load": "failed", "other": "succeeded", "join": "skipped", "alarm": "ready"}
    assert (situation.run(run_id).state, situation.run(run_id).tasks_failed) == ("failed", 1)
    assert situation.broken(database) == []


def test_a_run_that_never_began_fails(database: Database) -> None:
    row = factories.start_single(database, start_by=SOON)

    database.perform(transitions.give_up, [word(row)])

    run = situation.run(row.workflow_run_id)
    assert (run.state, run.started_at, run.tasks_failed) == ("failed", None, 1)
    assert situation.run_history(run.id) == [("created", None, "pending"), ("failed", "pending", "failed")]


def test_what_a_worker_deferred_fails_without_its_reason(database: Database) -> None:
    row = factories.start_single(database, start_by=SOON)
    database.perform(transitions.defer, [(factories.dispatch(row), "no such task here")], delay=60)

    wait_for(lambda: unstarted(database) == [row.id])
    database.perform(transitions.give_up, [word(row)])

    now = factories.reload(row)
    assert (now.state, now.deferred_because) == ("failed", None)
    assert situation.owed(row) == []


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    factories.start_single(database, start_by=SOON)
    before = situation.picture()

    assert database.perform(transitions.give_up, []) == []

    assert situation.changed_since(before) == set()


# Refused by state


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.READY])
def test_only_what_is_ready_is_given_up(database: Database, state: TaskState) -> None:
    """B077."""
    row = situation.in_state(database, state)
    before = situation.picture()

    endings = database.perform(transitions.give_up, [word(row)])

    known = "ended before" if state == TaskState.FAILED else "refused"
    assert [one.became for one in endings] == [known]
    assert situation.changed_since(before) == set()


# Refused by token


@pytest.mark.parametrize("off", [-1, 1], ids=["stale", "future"])
def test_at_another_token_nothing_is_given_up(database: Database, off: int) -> None:
    row = factories.start_single(database, start_by=SOON)
    (claimed,) = factories.claim(database, row)
    database.perform(transitions.hand_back, [Release(claimed.id, claimed.token)])
    before = situation.picture()

    endings = database.perform(transitions.give_up, [word(factories.reload(row), off=off)])

    assert [one.became for one in endings] == ["refused"]
    assert situation.changed_since(before) == set()


def test_a_dispatch_that_comes_too_late_starts_nothing(database: Database) -> None:
    """B076: a worker that takes it in from Redis after it was given up."""
    row = factories.start_single(database, start_by=SOON)
    with database.atomic():
        taken = transitions.take(database.raw(), "default", limit=10, after=Mark()).dispatches
    database.perform(transitions.give_up, [word(row)])
    before = situation.picture()

    assert len(taken) == 1
    assert database.perform(transitions.claim, taken, owner="worker-1", lease=15) == []

    assert situation.changed_since(before) == set()


def test_an_earlier_owners_late_success_is_refused_and_told(database: Database) -> None:
    """B051."""
    row = factories.start_single(database, start_by=SOON)
    (claimed,) = factories.claim(database, row)
    database.perform(transitions.hand_back, [Release(claimed.id, claimed.token)])
    database.perform(transitions.give_up, [word(factories.reload(row))])

    endings = database.perform(transitions.finish, [factories.outcome(claimed)])

    assert [one.became for one in endings] == ["refused"]
    assert (factories.reload(row).state, situation.last_event(row).kind) == ("failed", "refused")


# At once


def test_of_two_at_once_the_first_counts(database: Database, database_url: str) -> None:
    """B048."""
    row = factories.start_single(database, start_by=SOON)

    with racing(database_url, partial(give_up, row), partial(give_up, row)) as (first, second):
        pass

    assert [one.became for one in first.answer] == ["ended"]
    assert [one.became for one in second.answer] == ["refused"]
    assert factories.event_kinds(row) == ["created", "failed"]
    assert factories.reload(row).fencing_token == 1


def test_what_a_worker_claims_at_the_last_moment_runs(database: Database, database_url: str) -> None:
    row = factories.start_single(database, start_by=SOON)
    message = factories.dispatch(row)

    with racing(
        database_url,
        lambda connection: transitions.claim(connection, [message], owner="worker-1", lease=15),
        partial(give_up, row),
    ) as (first, second):
        pass

    assert len(first.answer) == 1
    assert [one.became for one in second.answer] == ["refused"]
    assert factories.event_kinds(row) == ["created", "claimed"]
    assert situation.run(row.workflow_run_id).state == "running"


def test_a_claim_that_comes_a_moment_too_late_owns_nothing(database: Database, database_url: str) -> None:
    row = factories.start_single(database, start_by=SOON)
    message = factories.dispatch(row)

    with racing(
        database_url,
        partial(give_up, row),
        lambda connection: transitions.claim(connection, [message], owner="worker-1", lease=15),
    ) as (_, second):
        pass

    assert second.answer == []
    assert factories.reload(row).state == "failed"
    assert situation.run_history(row.workflow_run_id)[-1] == ("failed", "pending", "failed")


def test_what_is_cancelled_at_once_ends_once(database: Database, database_url: str) -> None:
    row = factories.start_single(database, start_by=SOON)

    with racing(
        database_url,
        lambda c: transitions.cancel(c, row.workflow_run_id, situation.DECISION),
        partial(give_up, row),
    ) as (_, second):
        pass

    assert [one.became for one in second.answer] == ["refused"]
    assert factories.event_kinds(row) == ["created", "cancelled"]
    assert situation.broken(database) == []


def test_while_it_is_paused_its_time_goes_on(database: Database) -> None:
    row = factories.start_single(database, start_by=SOON)
    subject = Subject(models.DEFAULT_ORGANIZATION, Paused.QUEUE, "default")
    database.perform(transitions.pause, subject, situation.DECISION)
    refused = factories.claim(database, row)

    wait_for(lambda: unstarted(database) == [row.id])
    database.perform(transitions.give_up, [word(row)])

    assert refused == []
    assert unstarted(database) == []
    assert factories.reload(row).state == "failed"
    assert situation.owed(row) == []
