"""skip: pending -> skipped, for task runs whose rule was not met; it cascades within finish's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge import models, transitions
from flowforge.states import TaskState
from flowforge.transitions import Ending
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.db import Database


def unwanted(database: Database, tasks: Mapping[str, Node], key: str = "load") -> Ending:
    """Start a run and bring a task run to where finish leaves it before it skips: its rule decided, and not met."""
    run_id = factories.start(database, factories.make_workflow(tasks))
    row = factories.task_run(run_id, key)
    decided = {"upstream_remaining": 0, "upstream_failed": 1, "upstream_unsucceeded": 1}
    models.TaskRun.update(decided).where(models.TaskRun.id == row.id).execute()
    return Ending(row.id, run_id, 0, "unwanted")


def asked_to_skip(row: models.TaskRun, *, off: int = 0) -> Ending:
    """Return what finish says of a task run that is to be skipped."""
    return Ending(row.id, row.workflow_run_id, row.fencing_token + off, "unwanted")


CHAIN = {"extract": Node(), "load": Node(["extract"])}


def test_an_unwanted_task_run_is_skipped_without_a_dispatch(database: Database) -> None:
    unwanted_one = unwanted(database, CHAIN)

    endings = database.perform(transitions.skip, [unwanted_one])

    row = factories.task_run(unwanted_one.run_id, "load")
    event = situation.last_event(row)
    assert endings == [Ending(row.id, row.workflow_run_id, 0, "ended")]
    assert (row.state, row.attempt, row.fencing_token, row.started_at) == ("skipped", 1, 0, None)
    assert row.finished_at is not None
    assert (event.kind, event.from_state, event.to_state) == ("skipped", "pending", "skipped")
    assert situation.owed(row) == []
    assert situation.run(row.workflow_run_id).tasks_remaining == 1


def test_a_chain_is_skipped_to_its_end(database: Database) -> None:
    chain = {"extract": Node(), "load": Node(["extract"]), "sum": Node(["load"]), "report": Node(["sum"])}
    run_id = factories.start(database, factories.make_workflow(chain))

    situation.complete(database, factories.task_run(run_id, "extract"), TaskState.FAILED)

    run = situation.run(run_id)
    skipped = [factories.task_run(run_id, key) for key in ("load", "sum", "report")]
    assert {row.state for row in skipped} == {"skipped"}
    assert all(factories.event_kinds(row) == ["created", "skipped"] for row in skipped)
    assert (run.state, run.tasks_remaining, run.tasks_failed) == ("failed", 0, 1)
    assert models.OutboxMessage.select().count() == 0


def test_a_chain_is_skipped_up_to_the_task_that_wants_to_run(database: Database) -> None:
    chain = {
        "extract": Node(),
        "load": Node(["extract"]),
        "sum": Node(["load"]),
        "clean_up": Node(["sum"], {"when": "all_done"}),
        "alert": Node(["sum"], {"when": "any_failed"}),
    }
    run_id = factories.start(database, factories.make_workflow(chain))

    situation.complete(database, factories.task_run(run_id, "extract"), TaskState.FAILED)

    states = situation.states(run_id)
    assert states == {"extract": "failed", "load": "skipped", "sum": "skipped", "clean_up": "ready", "alert": "skipped"}
    assert len(situation.owed(factories.task_run(run_id, "clean_up"))) == 1
    assert situation.run(run_id).state == "running"


def test_a_skipped_upstream_is_no_failure(database: Database) -> None:
    chain = {"extract": Node(), "load": Node(["extract"]), "report": Node(["load"], {"when": "none_failed"})}
    run_id = factories.start(database, factories.make_workflow(chain))

    situation.complete(database, factories.task_run(run_id, "extract"), TaskState.SKIPPED)

    report = factories.task_run(run_id, "report")
    assert (report.state, report.upstream_failed, report.upstream_unsucceeded) == ("ready", 0, 1)


def test_a_run_in_which_the_first_task_skips_succeeds(database: Database) -> None:
    run_id = factories.start(database, factories.make_workflow(CHAIN))

    situation.complete(database, factories.task_run(run_id, "extract"), TaskState.SKIPPED)

    assert situation.states(run_id) == {"extract": "skipped", "load": "skipped"}
    assert situation.run(run_id).state == "succeeded"


def test_one_batch_skips_in_several_runs(database: Database) -> None:
    batch = [unwanted(database, CHAIN) for _ in range(3)]

    database.perform(transitions.skip, batch)

    assert [situation.states(one.run_id)["load"] for one in batch] == ["skipped"] * 3
    assert [situation.run(one.run_id).tasks_remaining for one in batch] == [1, 1, 1]


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    unwanted(database, CHAIN)
    before = situation.picture()

    assert database.perform(transitions.skip, []) == []

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.PENDING])
def test_only_a_pending_task_run_is_skipped(database: Database, state: TaskState) -> None:
    row = situation.in_state(database, state)
    before = situation.picture()

    endings = database.perform(transitions.skip, [asked_to_skip(row)])

    assert [ending.became for ending in endings] == ["ended before" if state == TaskState.SKIPPED else "refused"]
    assert situation.changed_since(before) == set()


def test_what_still_waits_for_an_upstream_is_not_skipped(database: Database) -> None:
    row = situation.in_state(database, TaskState.PENDING)
    before = situation.picture()

    endings = database.perform(transitions.skip, [asked_to_skip(row)])

    assert [ending.became for ending in endings] == ["refused"]
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize(("off", "changed"), [(-1, {"task_run_event"}), (1, set())], ids=["stale", "future"])
def test_another_token_skips_nothing(database: Database, off: int, changed: set[str]) -> None:
    unwanted_one = unwanted(database, CHAIN)
    before = situation.picture()

    endings = database.perform(transitions.skip, [unwanted_one._replace(token=off)])

    assert [ending.became for ending in endings] == ["refused"]
    assert situation.changed_since(before) == changed


def test_the_same_task_run_twice_in_one_batch_counts_once(database: Database) -> None:
    tasks = {**CHAIN, "other": Node(), "report": Node(["load", "other"])}
    unwanted_one = unwanted(database, tasks)

    database.perform(transitions.skip, [unwanted_one, unwanted_one])

    report = factories.task_run(unwanted_one.run_id, "report")
    assert (report.state, report.upstream_remaining, report.upstream_unsucceeded) == ("pending", 1, 1)
    assert situation.run(unwanted_one.run_id).tasks_remaining == 3


def test_of_two_at_once_the_first_counts(database: Database, database_url: str) -> None:
    unwanted_one = unwanted(database, CHAIN)

    with racing(
        database_url,
        lambda connection: transitions.skip(connection, [unwanted_one]),
        lambda connection: transitions.skip(connection, [unwanted_one]),
    ) as (first, second):
        pass

    assert [ending.became for ending in first.answer] == ["ended"]
    assert [ending.became for ending in second.answer] == ["ended before"]
    assert situation.run(unwanted_one.run_id).tasks_remaining == 1
