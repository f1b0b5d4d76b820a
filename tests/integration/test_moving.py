"""A run goes on by another version: what has begun stays, what has not follows the version, and nothing runs twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from flowforge import client, insights, models, transitions
from flowforge.client import Move, Run
from flowforge.errors import CannotMove
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RunState, TaskState
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.client import Engine
    from flowforge.db import Database

V1 = {"extract": Node(), "clean": Node(["extract"]), "old_name": Node(["clean"]), "load": Node(["old_name"])}


@pytest.fixture
def database(engine: Engine) -> Database:
    """The engine's own database: moves go through the client."""
    return engine.database


def deploy(tasks: dict[str, Node], version: int) -> models.Workflow:
    """Store a version and make it current."""
    row = factories.make_workflow(tasks)
    assert row.version == version
    models.Deployment.create(organization=DEFAULT_ORGANIZATION, workflow=row, deployed_by="me")
    return row


def finish(database: Database, run_id: UUID, key: str, state: TaskState = TaskState.SUCCEEDED) -> None:
    """Claim and end a task run."""
    (claimed,) = factories.claim(database, factories.task_run(run_id, key))
    database.perform(transitions.finish, [factories.outcome(claimed, state)])


def moved(run_id: UUID, **options: Any) -> Move:
    """Move a run."""
    return client.move(Run(run_id, DEFAULT_ORGANIZATION), **options)


def states(run_id: UUID) -> dict[str, str]:
    """Return key -> state of a run's task runs."""
    rows = models.TaskRun.select().where(models.TaskRun.workflow_run == run_id)
    return {row.task.key: row.state for row in rows}


def sound(database: Database) -> bool:
    """Whether no invariant is broken."""
    return not any(insights.broken_invariants(database.raw()).values())


def complete(database: Database, run_id: UUID) -> list[str]:
    """Run what is ready until nothing is; return the keys in order."""
    order = []
    while ready := [key for key, state in states(run_id).items() if state == "ready"]:
        finish(database, run_id, ready[0])
        order.append(ready[0])
    return order


def test_a_renamed_an_added_and_a_removed_task(database: Database) -> None:
    """B128, B129."""
    run_id = factories.start(database, deploy(V1, 1))
    finish(database, run_id, "extract")
    finish(database, run_id, "clean")
    v2 = {"extract": Node(), "clean": Node(["extract"]), "new_name": Node(["clean"]), "audit": Node(["extract"])}
    after = deploy({**v2, "load": Node(["new_name", "audit"])}, 2)

    told = moved(run_id)

    assert (told.before, told.after) == (1, 2)
    assert told.differences == ["new_name: new, ready", "audit: new, ready", "old_name: not in the version, skipped"]
    assert states(run_id) == {
        "extract": "succeeded", "clean": "succeeded", "new_name": "ready", "audit": "ready", "load": "pending",
        "old_name": "skipped",
    }  # fmt: skip
    assert situation.run(run_id).workflow_id == after.id
    assert sound(database)
    assert complete(database, run_id)[-1] == "load"
    assert situation.run(run_id).state == "succeeded"
    assert sound(database)


def test_a_dry_run_says_the_same_and_changes_nothing(database: Database) -> None:
    run_id = factories.start(database, deploy(V1, 1))
    deploy({"extract": Node(), "fresh": Node()}, 2)
    before = situation.picture()

    told = moved(run_id, dry_run=True)

    assert situation.changed_since(before) == set()
    assert told.differences == moved(run_id).differences


def test_a_dispatch_from_before_the_move_is_refused_by_its_token(database: Database) -> None:
    run_id = factories.start(database, deploy(V1, 1))
    stale = factories.dispatch(factories.task_run(run_id, "extract"))
    deploy({"extract": Node(options={"queue": "cpu"})}, 2)

    moved(run_id)

    assert database.perform(transitions.claim, [stale], owner="me", lease=15) == []
    (message,) = models.OutboxMessage.select()
    assert (message.routing_key, message.fencing_token_snapshot) == ("cpu", 1)
    assert complete(database, run_id) == ["extract"]
    assert sound(database)


def test_what_is_running_goes_on_and_its_outcome_counts_for_the_new_version(database: Database) -> None:
    run_id = factories.start(database, deploy(V1, 1))
    (claimed,) = factories.claim(database, factories.task_run(run_id, "extract"))
    deploy({"extract": Node(), "load": Node(["extract"])}, 2)

    moved(run_id)
    database.perform(transitions.finish, [factories.outcome(claimed, TaskState.SUCCEEDED)])

    assert states(run_id)["load"] == "ready"
    assert complete(database, run_id) == ["load"]
    assert situation.run(run_id).state == "succeeded"
    assert sound(database)


def test_what_waits_again_for_a_new_upstream_is_pending(database: Database) -> None:
    run_id = factories.start(database, deploy({"load": Node()}, 1))
    deploy({"extract": Node(), "load": Node(["extract"])}, 2)

    assert moved(run_id).differences == ["extract: new, ready", "load: ready -> pending"]

    assert complete(database, run_id) == ["extract", "load"]
    assert sound(database)


def test_a_rule_is_decided_by_what_has_ended(database: Database) -> None:
    run_id = factories.start(database, deploy({"extract": Node(), "later": Node(["extract"], {"when": "all_done"})}, 1))
    finish(database, run_id, "extract", TaskState.FAILED)
    alarm = Node(["extract"], {"when": "any_failed"})
    deploy({"extract": Node(), "later": Node(["extract"]), "next": Node(["later"]), "alarm": alarm}, 2)

    assert moved(run_id).differences == ["later: ready -> skipped", "next: new, skipped", "alarm: new, ready"]

    assert complete(database, run_id) == ["alarm"]
    assert situation.run(run_id).state == "failed"
    assert sound(database)


def test_a_run_of_which_nothing_is_left_ends(database: Database) -> None:
    run_id = factories.start(database, deploy({"extract": Node(), "load": Node(["extract"])}, 1))
    finish(database, run_id, "extract")
    deploy({"extract": Node()}, 2)

    moved(run_id)

    assert situation.run(run_id).state == "succeeded"
    assert situation.run_history(run_id)[-2:] == [
        ("moved", "running", "running"),
        ("succeeded", "running", "succeeded"),
    ]
    assert sound(database)


def test_a_run_moves_back(database: Database) -> None:
    """B136: what is current may be older again."""
    run_id = factories.start(database, deploy(V1, 1))
    deploy({"extract": Node(), "fresh": Node()}, 2)
    moved(run_id)

    told = moved(run_id, version=1)

    assert (told.before, told.after) == (2, 1)
    assert sound(database)
    assert (
        complete(database, run_id) == ["extract", "clean", "old_name", "load"]
        or states(run_id)["old_name"] == "skipped"
    )


# What is refused


def test_a_running_task_that_the_version_lacks_is_in_the_way(database: Database) -> None:
    run_id = factories.start(database, deploy(V1, 1))
    factories.claim(database, factories.task_run(run_id, "extract"))
    deploy({"other": Node()}, 2)
    before = situation.picture()

    with pytest.raises(CannotMove, match="task 'extract' is running, and the version has no such task: wait until"):
        moved(run_id)

    assert situation.changed_since(before) == set()


def test_tasks_are_not_added_after_one_that_is_running(database: Database) -> None:
    """Its outcome may be waiting for the run's lock, and would not see them."""
    run_id = factories.start(database, deploy(V1, 1))
    factories.claim(database, factories.task_run(run_id, "extract"))
    deploy({"extract": Node(), "report": Node(["extract"])}, 2)
    before = situation.picture()

    with pytest.raises(
        CannotMove, match="task 'extract' is running, and the version adds tasks after it: move the run"
    ):
        moved(run_id)

    assert situation.changed_since(before) == set()


def test_a_run_that_has_ended_stays_as_it_is(database: Database) -> None:
    run_id = factories.start(database, deploy({"extract": Node()}, 1))
    finish(database, run_id, "extract")
    deploy({"other": Node()}, 2)
    before = situation.picture()

    with pytest.raises(CannotMove, match="has ended: only a run that goes on can be moved"):
        moved(run_id)

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize(("version", "message"), [(None, "has no current version"), (7, "has no version 7")])
def test_a_version_that_is_not_there_is_named(database: Database, version: int | None, message: str) -> None:
    run_id = factories.start(database, factories.make_workflow({"extract": Node()}))

    with pytest.raises(CannotMove, match=f"workflow 'sales' {message}"):
        moved(run_id, version=version)


def test_a_run_that_is_not_there_is_named(database: Database) -> None:
    assert database

    with pytest.raises(CannotMove, match="is not there"):
        moved(uuid4())


def test_a_plan_that_is_no_longer_true_changes_nothing_of_a_task_run(database: Database) -> None:
    """By token and state: the plan was made without holding the rows."""
    run_id = factories.start(database, deploy(V1, 1))
    v2 = deploy({"extract": Node()}, 2)
    with database.atomic():
        held = transitions.hold(database.raw(), run_id)
    planned = transitions.plan(held, insights.targets(v2.id))
    finish(database, run_id, "extract")

    before = situation.picture()

    assert database.perform(transitions.move, run_id, v2.id, planned) is False

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("meanwhile", ["an upstream ended", "its end", "a cancel"])
def test_a_plan_is_not_carried_out_for_a_run_in_another_state(database: Database, meanwhile: str) -> None:
    """At tokens that are still the same."""
    tasks = {"extract": Node(), "load": Node(["extract"])} if meanwhile == "an upstream ended" else {"extract": Node()}
    run_id = factories.start(database, deploy(tasks, 1))
    v2 = deploy({**tasks, "other": Node()}, 2)
    (claimed,) = factories.claim(database, factories.task_run(run_id, "extract"))
    if meanwhile == "its end":
        database.perform(transitions.finish, [factories.outcome(claimed)])
    with database.atomic():
        planned = transitions.plan(transitions.hold(database.raw(), run_id), insights.targets(v2.id))
    if meanwhile == "an upstream ended":
        database.perform(transitions.finish, [factories.outcome(claimed)])
    if meanwhile == "a cancel":
        situation.cancel(database, run_id)
    before = situation.picture()

    assert database.perform(transitions.move, run_id, v2.id, planned) is False

    assert situation.changed_since(before) == set()


# Two at once


@pytest.mark.usefixtures("database")
def test_a_move_waits_for_a_completion_and_plans_with_it(database: Database, database_url: str) -> None:
    run_id = factories.start(database, deploy(V1, 1))
    v2 = deploy({"extract": Node(), "report": Node(["extract"])}, 2)
    (claimed,) = factories.claim(database, factories.task_run(run_id, "extract"))

    def move(connection: Any) -> bool:
        held = transitions.hold(connection, run_id)
        return transitions.move(connection, run_id, v2.id, transitions.plan(held, insights.targets(v2.id)))

    outcome = factories.outcome(claimed, TaskState.SUCCEEDED)
    with racing(database_url, lambda connection: transitions.finish(connection, [outcome]), move) as (_, second):
        pass

    assert second.answer is True
    assert states(run_id)["report"] == "ready"
    assert sound(database)
    assert complete(database, run_id) == ["report"]
    assert Run(run_id, DEFAULT_ORGANIZATION).state is RunState.SUCCEEDED


# What a task run keeps, and what it takes over


def test_a_pause_before_a_retry_goes_on_and_its_budget_stays(database: Database) -> None:
    run_id = factories.start(database, deploy({"extract": Node(options={"attempts": 3})}, 1))
    (claimed,) = factories.claim(database, factories.task_run(run_id, "extract"))
    database.perform(transitions.retry, [transitions.Release(claimed.id, claimed.token, delay=3600.0)])
    due = models.OutboxMessage.get().available_at
    deploy({"extract": Node(options={"attempts": 9, "queue": "cpu"})}, 2)

    told = moved(run_id)

    message = models.OutboxMessage.get()
    assert told.differences == ["extract: queue default -> cpu"]
    assert (message.available_at, message.routing_key, message.attempt_snapshot) == (due, "cpu", 2)
    assert factories.task_run(run_id, "extract").failures_left == 1
    assert sound(database)


def test_what_has_begun_keeps_its_budgets(database: Database) -> None:
    run_id = factories.start(database, deploy({"extract": Node(options={"attempts": 2, "lost": 1})}, 1))
    factories.claim(database, factories.task_run(run_id, "extract"))
    deploy({"extract": Node(options={"attempts": 9, "lost": 8})}, 2)

    moved(run_id)

    extract = factories.task_run(run_id, "extract")
    assert (extract.failures_left, extract.losses_left) == (1, 1)


def test_what_was_never_tried_takes_over_the_budgets(database: Database) -> None:
    run_id = factories.start(database, deploy(V1, 1))
    deploy({"extract": Node(options={"attempts": 5, "lost": 7})}, 2)

    moved(run_id)

    row = factories.task_run(run_id, "extract")
    assert (row.failures_left, row.losses_left) == (4, 7)
