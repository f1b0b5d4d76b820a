"""finish, seen from above: rules decide over dependents, and the run comes to its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge import models, transitions
from flowforge.states import TaskState, When
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.integration.verbs.situation import OUTCOMES

if TYPE_CHECKING:
    from flowforge.db import Database

FAILED, SUCCEEDED, SKIPPED, CANCELLED = TaskState.FAILED, TaskState.SUCCEEDED, TaskState.SKIPPED, TaskState.CANCELLED
JOIN = {"left": Node(), "right": Node(), "join": Node(["left", "right"])}


# Rules


WANTED = {
    When.ALL_SUCCEEDED: {SUCCEEDED},
    When.NONE_FAILED: {SUCCEEDED, SKIPPED, CANCELLED},
    When.ALL_DONE: {SUCCEEDED, FAILED, SKIPPED, CANCELLED},
    When.ANY_FAILED: {FAILED},
}


@pytest.mark.parametrize("when", list(When))
def test_a_rule_decides_when_its_last_upstream_has_ended(database: Database, when: When) -> None:
    """B070: every outcome moves the join, not success alone."""
    tasks = {"first": Node(), "last": Node(), "join": Node(["first", "last"], {"when": when})}

    runs = {outcome: situation.run_through(database, tasks, first=SUCCEEDED, last=outcome) for outcome in OUTCOMES}

    joins = {outcome: situation.states(run.id)["join"] for outcome, run in runs.items()}
    assert joins == {outcome: "succeeded" if outcome in WANTED[when] else "skipped" for outcome in OUTCOMES}
    assert all(run.tasks_remaining == 0 for run in runs.values())


def test_a_dependent_does_not_start_while_its_upstream_is_retried(database: Database) -> None:
    """B072: a failed attempt is not the end of a task run."""
    options = {"attempts": 2}
    workflow = factories.make_workflow({"flaky": Node(options=options), "next": Node(["flaky"], {"when": "all_done"})})
    run_id = factories.start(database, workflow)
    flaky = factories.task_run(run_id, "flaky")

    (claim,) = factories.claim(database, flaky)
    database.perform(transitions.retry, [transitions.Release(claim.id, claim.token)])
    between = situation.states(run_id)
    situation.complete(database, factories.reload(flaky))

    assert between == {"flaky": "ready", "next": "pending"}
    assert situation.states(run_id) == {"flaky": "succeeded", "next": "ready"}


# The run


def test_a_run_succeeds_with_its_last_task(database: Database) -> None:
    run = situation.run_through(database, JOIN)

    assert (run.state, run.tasks_remaining, run.tasks_failed) == ("succeeded", 0, 0)
    assert run.finished_at >= run.started_at
    assert situation.run_history(run.id) == [
        ("created", None, "pending"),
        ("started", "pending", "running"),
        ("succeeded", "running", "succeeded"),
    ]


def test_a_run_fails_if_a_required_task_failed(database: Database) -> None:
    run = situation.run_through(database, JOIN, right=FAILED)

    assert (run.state, run.tasks_failed) == ("failed", 1)
    assert situation.states(run.id) == {"left": "succeeded", "right": "failed", "join": "skipped"}
    assert situation.run_history(run.id)[-1] == ("failed", "running", "failed")


def test_a_run_goes_on_after_a_failure_until_nothing_is_left(database: Database) -> None:
    run_id = factories.start(database, factories.make_workflow({"one": Node(), "other": Node()}))

    situation.complete(database, factories.task_run(run_id, "one"), FAILED)

    run = situation.run(run_id)
    assert (run.state, run.tasks_remaining, run.tasks_failed, run.finished_at) == ("running", 1, 1, None)


def test_a_clean_up_does_not_turn_red_into_green(database: Database) -> None:
    tasks = {"load": Node(), "clean_up": Node(["load"], {"when": "all_done"})}

    run = situation.run_through(database, tasks, load=FAILED)

    assert situation.states(run.id) == {"load": "failed", "clean_up": "succeeded"}
    assert run.state == "failed"


def test_a_failed_optional_task_does_not_fail_the_run(database: Database) -> None:
    tasks = {"load": Node(), "notify": Node(["load"], {"required": False})}

    run = situation.run_through(database, tasks, notify=FAILED)

    assert (run.state, run.tasks_failed) == ("succeeded", 0)


@pytest.mark.parametrize(("outcome", "state"), [(SUCCEEDED, "cancelled"), (CANCELLED, "cancelled"), (FAILED, "failed")])
def test_a_run_that_was_asked_to_cancel_ends_cancelled_unless_a_task_failed(
    database: Database, outcome: TaskState, state: str
) -> None:
    row = factories.start_single(database)
    asked = {models.WorkflowRun.cancel_requested_at: row.created_at}
    models.WorkflowRun.update(asked).where(models.WorkflowRun.id == row.workflow_run_id).execute()

    situation.complete(database, row, outcome)

    assert situation.run(row.workflow_run_id).state == state
