"""start_run: nothing -> pending (run), ready or pending (task runs)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg2
import pytest

from flowforge import models, transitions
from flowforge.transitions import NewRun, Started
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.db import Database

DIAMOND = {"extract": Node(), "left": Node(["extract"]), "right": Node(["extract"]), "join": Node(["left", "right"])}


def test_roots_are_ready_and_the_rest_waits(database: Database) -> None:
    workflow = factories.make_workflow(DIAMOND)

    run_id = factories.start(database, workflow)

    run = situation.run(run_id)
    assert (run.state, run.tasks_remaining, run.tasks_failed, run.started_at) == ("pending", 4, 0, None)
    assert situation.run_history(run_id) == [("created", None, "pending")]
    expected = {"extract": "ready", "left": "pending", "right": "pending", "join": "pending"}
    assert situation.states(run_id) == expected
    rows = {key: factories.task_run(run_id, key) for key in DIAMOND}
    assert [row.upstream_remaining for row in rows.values()] == [0, 1, 1, 2]
    assert set(rows["extract"].dependents) == {rows["left"].id, rows["right"].id}
    assert all(factories.event_kinds(row) == ["created"] for row in rows.values())
    assert [len(situation.owed(row)) for row in rows.values()] == [1, 0, 0, 0]


def test_a_root_is_owed_one_dispatch_that_says_what_a_worker_needs(database: Database) -> None:
    workflow = factories.make_workflow({"extract": Node(options={"queue": "cpu"})})

    run_id = factories.start(database, workflow, priority=-7)

    row = factories.task_run(run_id, "extract")
    (message,) = situation.owed(row)
    assert (message.routing_key, message.priority, message.published_at) == ("cpu", -7, None)
    assert (message.fencing_token_snapshot, message.attempt_snapshot) == (0, 1)
    assert message.payload == {"workflow": "sales", "key": "extract", "task": str(row.task_id)}


def test_a_task_run_has_its_tasks_budgets_and_rule(database: Database) -> None:
    options = {"attempts": 5, "lost": 3, "when": "all_done", "required": False}
    workflow = factories.make_workflow({"extract": Node(), "clean_up": Node(["extract"], options)})

    run_id = factories.start(database, workflow)

    row = factories.task_run(run_id, "clean_up")
    assert (row.attempt, row.failures_left, row.losses_left) == (1, 4, 3)
    assert (row.when, row.required, row.fencing_token) == ("all_done", False, 0)


def test_the_organization_is_the_workflows(database: Database) -> None:
    other = models.Organization.create(slug="other", name="Other")
    workflow = factories.make_workflow({"only": Node()})
    theirs = models.Workflow.create(organization=other, name="theirs", version=1, digest="f" * 64)
    models.Task.create(**{**models.Task.get(workflow=workflow).__data__, "id": uuid4(), "workflow": theirs.id})

    run_id = factories.start(database, theirs)

    row = factories.task_run(run_id, "only")
    (message,) = situation.owed(row)
    owners = {situation.run(run_id).organization_id, row.organization_id, message.organization_id}
    assert owners == {other.id}


def test_several_runs_start_in_one_batch_and_do_not_mix(database: Database) -> None:
    workflow, short = factories.make_workflow(DIAMOND), factories.make_workflow({"only": Node()}, name="short")
    batch = [NewRun(uuid4(), w.id, f'{{"n": {n}}}') for n, w in enumerate([workflow, short, workflow])]

    answer = database.perform(transitions.start_run, batch)

    assert {*answer} == {Started(new.id, new.id, same=True) for new in batch}
    assert [situation.run(new.id).tasks_remaining for new in batch] == [4, 1, 4]
    assert [situation.run(new.id).parameters for new in batch] == [{"n": 0}, {"n": 1}, {"n": 2}]
    for new in (batch[0], batch[2]):
        left, join = factories.task_run(new.id, "left"), factories.task_run(new.id, "join")
        assert left.dependents == [join.id]


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    before = situation.picture()

    answer = database.perform(transitions.start_run, [])

    assert answer == []
    assert situation.changed_since(before) == set()


def test_an_unknown_workflow_gets_no_run(database: Database) -> None:
    workflow = factories.make_workflow({"only": Node()})
    known, unknown = NewRun(uuid4(), workflow.id, "{}"), NewRun(uuid4(), uuid4(), "{}")

    answer = database.perform(transitions.start_run, [known, unknown])

    assert answer == [Started(known.id, known.id, same=True)]
    assert models.WorkflowRun.select().count() == 1


def test_a_run_is_not_started_again_under_its_id(database: Database) -> None:
    workflow = factories.make_workflow({"only": Node()})
    run_id = factories.start(database, workflow)
    before = situation.picture()

    with pytest.raises(psycopg2.errors.UniqueViolation):
        database.perform(transitions.start_run, [NewRun(run_id, workflow.id, "{}")])

    assert situation.changed_since(before) == set()


def test_the_same_id_twice_in_one_batch_starts_nothing(database: Database) -> None:
    new = NewRun(uuid4(), factories.make_workflow({"only": Node()}).id, "{}")
    before = situation.picture()

    with pytest.raises(psycopg2.errors.UniqueViolation):
        database.perform(transitions.start_run, [new, new])

    assert situation.changed_since(before) == set()


def test_a_run_that_is_rolled_back_leaves_nothing(database: Database) -> None:
    """B025: no dispatch for a run that was never committed."""
    workflow = factories.make_workflow({"only": Node()})
    before = situation.picture()

    with database.atomic() as transaction:
        factories.start(database, workflow)
        transaction.rollback()

    assert situation.changed_since(before) == set()


@pytest.mark.usefixtures("database")
def test_two_starts_under_one_id_at_once_make_one_run(database_url: str) -> None:
    new = NewRun(uuid4(), factories.make_workflow({"only": Node()}).id, "{}")

    with (
        pytest.raises(psycopg2.errors.UniqueViolation),
        racing(
            database_url,
            lambda connection: transitions.start_run(connection, [new]),
            lambda connection: transitions.start_run(connection, [new]),
        ) as (first, _),
    ):
        pass

    assert first.answer == [Started(new.id, new.id, same=True)]
    assert models.TaskRun.select().count() == models.OutboxMessage.select().count() == 1


def test_two_starts_of_one_workflow_do_not_wait_for_each_other(database: Database, database_url: str) -> None:
    workflow = factories.make_workflow(DIAMOND)
    new = NewRun(uuid4(), workflow.id, "{}")

    with situation.held_open(database_url, lambda connection: transitions.start_run(connection, [new])):
        second = factories.start(database, workflow)
        runs_seen = [run.id for run in models.WorkflowRun.select()]

    assert runs_seen == [second]
    assert models.WorkflowRun.select().count() == 2


# Idempotency keys


def keyed(workflow: models.Workflow, *keys: str | None, parameters: str = "{}") -> list[NewRun]:
    """Return runs to start, one for each key."""
    return [NewRun(uuid4(), workflow.id, parameters, key=key) for key in keys]


def test_a_key_stands_for_the_run_that_was_started_with_it(database: Database) -> None:
    workflow = factories.make_workflow(DIAMOND)
    (first,), (again,), (other,) = (
        keyed(workflow, "k"),
        keyed(workflow, "k"),
        keyed(workflow, "k", parameters='{"n": 1}'),
    )

    answers = [database.perform(transitions.start_run, [new]) for new in (first, again, other)]

    assert answers == [
        [Started(first.id, first.id, same=True)],
        [Started(again.id, first.id, same=True)],
        [Started(other.id, first.id, same=False)],
    ]
    assert [run.id for run in models.WorkflowRun.select()] == [first.id]
    assert models.TaskRun.select().count() == len(DIAMOND)


def test_parameters_are_the_same_however_they_are_written(database: Database) -> None:
    workflow = factories.make_workflow({"only": Node()})
    (first,) = keyed(workflow, "k", parameters='{"day": "2026-11-29", "region": "eu"}')
    (again,) = keyed(workflow, "k", parameters='{"region":"eu","day":"2026\\u002d11-29"}')

    database.perform(transitions.start_run, [first])

    assert database.perform(transitions.start_run, [again]) == [Started(again.id, first.id, same=True)]


def test_a_batch_starts_what_has_no_key_or_a_new_one(database: Database) -> None:
    workflow = factories.make_workflow({"only": Node()})
    (before,) = keyed(workflow, "b")
    database.perform(transitions.start_run, [before])
    batch = keyed(workflow, "c", "b", None, "a")

    answer = database.perform(transitions.start_run, batch)

    assert {one.id: one.run_id for one in answer} == {new.id: before.id if new.key == "b" else new.id for new in batch}
    assert models.WorkflowRun.select().count() == 4
    assert sorted(row.key for row in models.IdempotencyKey.select()) == ["a", "b", "c"]


def test_one_key_twice_in_a_batch_starts_nothing(database: Database) -> None:
    workflow = factories.make_workflow({"only": Node()})
    before = situation.picture()

    with pytest.raises(psycopg2.errors.CardinalityViolation):
        database.perform(transitions.start_run, keyed(workflow, "k", "k"))

    assert situation.changed_since(before) == set()


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_start_waits_for_another_with_its_key_and_learns_how_that_ended(database_url: str, end: str) -> None:
    workflow = factories.make_workflow({"only": Node()})
    (first,), (second,) = keyed(workflow, "k"), keyed(workflow, "k")

    with racing(
        database_url,
        lambda connection: transitions.start_run(connection, [first]),
        lambda connection: transitions.start_run(connection, [second]),
    ) as (one, two):
        if end == "rollback":
            one.roll_back()

    expected = first.id if end == "commit" else second.id
    assert two.answer == [Started(second.id, expected, same=True)]
    assert [run.id for run in models.WorkflowRun.select()] == [expected]


@pytest.mark.usefixtures("database")
def test_two_batches_with_the_same_keys_in_other_orders_do_not_deadlock(database_url: str) -> None:
    workflow = factories.make_workflow({"only": Node()})
    keys = [f"key-{n}" for n in range(200)]
    batches = [keyed(workflow, *keys), keyed(workflow, *reversed(keys))]

    with racing(
        database_url,
        lambda connection: transitions.start_run(connection, batches[0]),
        lambda connection: transitions.start_run(connection, batches[1]),
    ) as (one, two):
        pass

    first = {new.key: new.id for new in batches[0]}
    by_id = {new.id: new.key for new in batches[1]}
    assert len(one.answer) == len(keys)
    assert {by_id[answer.id]: answer.run_id for answer in two.answer} == first
