"""rerun, row by row: fresh budgets, going tokens, a dispatch, a deadline, and who did it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from flowforge import models, transitions
from flowforge.states import TaskState
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from flowforge.db import Database

CHAIN = {
    "extract": Node(),
    "load": Node(["extract"]),
    "report": Node(["load"]),
    "clean_up": Node(["load"], {"when": "all_done"}),
}


def test_budgets_are_fresh(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3, lost=4)
    database.perform(transitions.retry, [transitions.Release(row.id, row.fencing_token)])
    factories.claim(database, factories.reload(row), lease=-1)
    database.perform(transitions.expire, limit=10)
    situation.complete(database, factories.reload(row), TaskState.FAILED)
    spent = factories.reload(row)

    situation.rerun(database, row.workflow_run_id)

    now = factories.reload(row)
    assert (spent.failures_left, spent.losses_left) == (1, 3)
    assert (now.failures_left, now.losses_left) == (2, 4)


def test_tokens_and_attempts_go_on(database: Database) -> None:
    """B079: an attempt has one number, before and after any rerun."""
    run = situation.run_through(database, CHAIN, load=TaskState.FAILED)
    keys = ("load", "report", "clean_up")
    before = {key: factories.task_run(run.id, key) for key in keys}

    situation.rerun(database, run.id)

    now = {key: factories.task_run(run.id, key) for key in keys}
    assert {key: row.fencing_token for key, row in before.items()} == {"load": 1, "report": 0, "clean_up": 1}
    assert {key: row.fencing_token for key, row in now.items()} == {"load": 2, "report": 1, "clean_up": 2}
    assert {key: row.attempt for key, row in now.items()} == {"load": 2, "report": 1, "clean_up": 2}


def test_what_was_cancelled_before_its_next_attempt_has_that_attempt(database: Database) -> None:
    """B079: attempts are numbered without a gap."""
    row = factories.start_single(database, attempts=3)
    (claimed,) = factories.claim(database, row)
    database.perform(transitions.retry, [transitions.Release(claimed.id, claimed.token, delay=3600)])
    situation.cancel(database, row.workflow_run_id)

    situation.rerun(database, row.workflow_run_id)
    factories.claim(database, factories.reload(row))

    claims = models.TaskRunEvent.select().where(models.TaskRunEvent.kind == "claimed")
    assert [event.attempt for event in claims.order_by(models.TaskRunEvent.created_at)] == [1, 2]


def test_nothing_of_how_it_ended_is_left(database: Database) -> None:
    tasks = {"load": Node(), "next": Node(["load"])}
    run_id = factories.start(database, factories.make_workflow(tasks))
    for key, ended in (
        ("load", {"result": "[1]"}),
        ("next", {"state": TaskState.FAILED, "error": json.dumps({"type": "E"})}),
    ):
        (claimed,) = factories.claim(database, factories.task_run(run_id, key))
        database.perform(transitions.finish, [factories.outcome(claimed, **ended)])

    situation.rerun(database, run_id, "load")

    for row in (factories.task_run(run_id, key) for key in tasks):
        assert (row.result, row.error, row.started_at, row.finished_at) == (None, None, None, None)
        assert (row.lease_owner, row.lease_expires_at, row.deferred_because) == (None, None, None)


def test_a_dispatch_is_owed_for_each_that_is_ready(database: Database) -> None:
    tasks = {"load": Node(options={"queue": "cpu", "start_by": timedelta(hours=1)}), "next": Node(["load"])}
    run_id = factories.start(database, factories.make_workflow(tasks), priority=-7)
    situation.complete(database, factories.task_run(run_id, "load"), TaskState.FAILED)

    situation.rerun(database, run_id)

    load, (message,) = factories.task_run(run_id, "load"), models.OutboxMessage.select()
    assert (message.task_run_id, message.routing_key, message.priority, message.held) == (load.id, "cpu", -7, False)
    assert (message.fencing_token_snapshot, message.attempt_snapshot) == (load.fencing_token, load.attempt) == (2, 2)
    assert message.payload == {"workflow": "sales", "key": "load", "task": str(load.task_id)}
    assert message.published_at is None
    assert abs(message.start_by - message.available_at - timedelta(hours=1)) < timedelta(seconds=1)


def test_the_events_say_who_and_why(database: Database) -> None:
    run = situation.run_through(database, CHAIN, load=TaskState.FAILED)

    situation.rerun(database, run.id)

    load, report = (situation.last_event(factories.task_run(run.id, key)) for key in ("load", "report"))
    assert situation.run_history(run.id)[-1] == ("rerun", "failed", "running")
    assert situation.run_detail(run.id, "rerun") == situation.TOLD
    assert (load.kind, load.from_state, load.to_state, load.detail) == ("rerun", "failed", "ready", situation.TOLD)
    assert (load.attempt, load.fencing_token) == (2, 2)
    assert (report.kind, report.from_state, report.to_state) == ("rerun", "skipped", "pending")


@pytest.mark.parametrize("age", [timedelta(), timedelta(days=1)], ids=["young", "old"])
def test_the_deadline_is_as_far_from_each_rerun_as_it_was_from_the_start(database: Database, age: timedelta) -> None:
    """Were it to grow by the age of the run each time, there would soon be none."""
    run_id = factories.start(database, factories.make_workflow({"only": Node()}), deadline=3600)
    run = models.WorkflowRun
    run.update({run.created_at: run.created_at - age, run.deadline: run.deadline - age}).execute()
    spans = []

    for _ in range(3):
        situation.complete(database, factories.task_run(run_id, "only"), TaskState.FAILED)
        finished_at = situation.run(run_id).finished_at
        situation.rerun(database, run_id)
        spans.append(situation.run(run_id).deadline - finished_at)

    assert all(timedelta(hours=1) <= span < timedelta(hours=1, seconds=2) for span in spans), spans


def test_without_a_deadline_there_is_none(database: Database) -> None:
    run = situation.run_through(database, CHAIN, load=TaskState.FAILED)

    situation.rerun(database, run.id)

    assert situation.run(run.id).deadline is None
