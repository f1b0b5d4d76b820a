"""rerun: chosen task runs of a run that has ended, and all that depend on them, are due again."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from flowforge import transitions
from flowforge.states import RunState, TaskState, When
from flowforge.transitions import Again, Rerun
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.db import Database

FAILED, SUCCEEDED, SKIPPED, CANCELLED = TaskState.FAILED, TaskState.SUCCEEDED, TaskState.SKIPPED, TaskState.CANCELLED
CHAIN = {
    "extract": Node(),
    "load": Node(["extract"], {"attempts": 3, "lost": 4}),
    "report": Node(["load"]),
    "clean_up": Node(["load"], {"when": "all_done"}),
    "other": Node(),
}
JOIN = {"left": Node(), "right": Node(), "join": Node(["left", "right"])}


def complete(database: Database, run_id: UUID) -> list[str]:
    """End what is ready until nothing is; return the keys in order."""
    order = []
    while ready := [key for key, state in situation.states(run_id).items() if state == "ready"]:
        situation.complete(database, factories.task_run(run_id, ready[0]))
        order.append(ready[0])
    return order


# Which task runs


def test_from_the_failed_ones_all_that_depend_on_them_are_due_again(database: Database) -> None:
    run = situation.run_through(database, CHAIN, load=FAILED)

    done = situation.rerun(database, run.id)

    now = situation.run(run.id)
    assert done == Rerun(
        accepted=True,
        before=RunState.FAILED,
        tasks=[Again("load", "ready"), Again("report", "pending"), Again("clean_up", "pending")],
    )
    assert situation.states(run.id) == {
        "extract": "succeeded", "load": "ready", "report": "pending", "clean_up": "pending", "other": "succeeded",
    }  # fmt: skip
    assert (now.state, now.tasks_remaining, now.tasks_failed, now.finished_at) == ("running", 3, 0, None)
    assert situation.broken(database) == []


def test_a_run_that_is_carried_out_again_ends_by_what_happens_then(database: Database) -> None:
    run = situation.run_through(database, CHAIN, load=FAILED)
    situation.rerun(database, run.id)

    order = complete(database, run.id)

    now = situation.run(run.id)
    assert order == ["load", "report", "clean_up"]
    assert (now.state, now.tasks_remaining, now.tasks_failed) == ("succeeded", 0, 0)
    assert now.finished_at > run.finished_at
    assert [kind for kind, _, _ in situation.run_history(run.id)] == [
        "created", "started", "failed", "rerun", "succeeded",
    ]  # fmt: skip
    assert situation.broken(database) == []


def test_from_a_named_task_downwards(database: Database) -> None:
    run = situation.run_through(database, CHAIN)

    done = situation.rerun(database, run.id, "load")

    assert done.before == RunState.SUCCEEDED
    assert [again.key for again in done.tasks] == ["load", "report", "clean_up"]
    assert situation.states(run.id) == {
        "extract": "succeeded", "load": "ready", "report": "pending", "clean_up": "pending", "other": "succeeded",
    }  # fmt: skip
    assert complete(database, run.id) == ["load", "report", "clean_up"]
    assert situation.broken(database) == []


def test_what_did_not_fail_is_left_alone(database: Database) -> None:
    run = situation.run_through(database, CHAIN, load=FAILED)
    kept = [factories.task_run(run.id, key) for key in ("extract", "other")]

    situation.rerun(database, run.id)

    assert [factories.reload(row).__data__ for row in kept] == [row.__data__ for row in kept]


def test_several_failed_ones_are_due_together(database: Database) -> None:
    run = situation.run_through(database, JOIN, left=FAILED, right=FAILED)

    done = situation.rerun(database, run.id)

    join = factories.task_run(run.id, "join")
    assert done.tasks == [Again("left", "ready"), Again("right", "ready"), Again("join", "pending")]
    assert (join.upstream_remaining, join.upstream_failed, join.upstream_unsucceeded) == (2, 0, 0)
    assert complete(database, run.id) == ["left", "right", "join"]


def test_a_join_waits_only_for_the_upstreams_that_run_again(database: Database) -> None:
    run = situation.run_through(database, JOIN, right=FAILED)

    situation.rerun(database, run.id)

    join = factories.task_run(run.id, "join")
    assert (join.state, join.upstream_remaining, join.upstream_unsucceeded) == ("pending", 1, 0)
    assert complete(database, run.id) == ["right", "join"]
    assert situation.run(run.id).state == "succeeded"


def test_one_that_depends_on_another_named_one_waits_for_it(database: Database) -> None:
    run = situation.run_through(database, JOIN)

    done = situation.rerun(database, run.id, "join", "left", "join")

    assert done.tasks == [Again("left", "ready"), Again("join", "pending")]
    assert complete(database, run.id) == ["left", "join"]


def test_a_cancelled_run_is_carried_out_again_where_it_was_stopped(database: Database) -> None:
    run_id = factories.start(database, factories.make_workflow(CHAIN))
    situation.complete(database, factories.task_run(run_id, "extract"))
    (claimed,) = factories.claim(database, factories.task_run(run_id, "load"))
    situation.cancel(database, run_id, now=True)
    database.perform(transitions.finish, [factories.outcome(claimed)])

    done = situation.rerun(database, run_id)

    run, load = situation.run(run_id), factories.task_run(run_id, "load")
    assert done.before == RunState.CANCELLED
    assert [again.key for again in done.tasks] == ["load", "report", "clean_up", "other"]
    assert (run.state, run.tasks_cancelled, run.cancel_requested_at, load.cancel_requested_at) == (
        "running", 0, None, None,
    )  # fmt: skip
    assert complete(database, run_id) == ["load", "report", "clean_up", "other"]
    assert situation.run(run_id).state == "succeeded"
    assert situation.broken(database) == []


def test_a_run_that_never_began_begins_with_the_rerun(database: Database) -> None:
    run_id = factories.start(database, factories.make_workflow(JOIN))
    situation.cancel(database, run_id)

    situation.rerun(database, run_id)

    run = situation.run(run_id)
    assert (run.state, run.tasks_remaining) == ("running", 3)
    assert run.started_at > run.created_at
    assert {factories.task_run(run_id, key).attempt for key in JOIN} == {1}
    assert complete(database, run_id) == ["left", "right", "join"]
    assert situation.broken(database) == []


def test_after_a_rerun_a_cancel_cancels_again(database: Database) -> None:
    row = factories.start_single(database)
    for _ in range(2):
        assert situation.cancel(database, row.workflow_run_id).state == RunState.CANCELLED
        situation.rerun(database, row.workflow_run_id)

    assert factories.reload(row).fencing_token == 4
    assert factories.event_kinds(row) == ["created", "cancelled", "rerun", "cancelled", "rerun"]


# Counters


@pytest.mark.parametrize(("required", "state", "failed"), [(True, "failed", 1), (False, "succeeded", 0)])
def test_a_failure_that_stays_counts(database: Database, state: str, failed: int, *, required: bool) -> None:
    tasks = {"left": Node(options={"required": required}), "right": Node()}
    run = situation.run_through(database, tasks, left=FAILED, right=FAILED)

    situation.rerun(database, run.id, "right")
    between = situation.run(run.id)
    complete(database, run.id)

    assert (between.tasks_remaining, between.tasks_failed) == (1, failed)
    assert situation.run(run.id).state == state
    assert situation.broken(database) == []


@pytest.mark.parametrize(("required", "state", "cancelled"), [(True, "cancelled", 1), (False, "succeeded", 0)])
def test_a_cancelled_one_that_stays_counts(database: Database, state: str, cancelled: int, *, required: bool) -> None:
    tasks = {"left": Node(options={"required": required}), "right": Node()}
    run = situation.run_through(database, tasks, left=CANCELLED)

    situation.rerun(database, run.id, "right")
    between = situation.run(run.id)
    complete(database, run.id)

    assert (between.tasks_remaining, between.tasks_cancelled) == (1, cancelled)
    assert situation.run(run.id).state == state
    assert situation.broken(database) == []


@pytest.mark.parametrize(
    ("stays", "counters"), [(FAILED, (1, 1, 1)), (SKIPPED, (1, 0, 1)), (CANCELLED, (1, 0, 1)), (SUCCEEDED, (1, 0, 0))]
)
def test_an_upstream_that_stays_counts_as_it_ended(
    database: Database, stays: TaskState, counters: tuple[int, int, int]
) -> None:
    tasks = {"left": Node(), "right": Node(), "join": Node(["left", "right"], {"when": "all_done"})}
    run = situation.run_through(database, tasks, left=stays)

    situation.rerun(database, run.id, "right")

    join = factories.task_run(run.id, "join")
    assert (join.upstream_remaining, join.upstream_failed, join.upstream_unsucceeded) == counters
    assert situation.broken(database) == []


# Rules


MET = {
    When.ALL_SUCCEEDED: {SUCCEEDED},
    When.NONE_FAILED: {SUCCEEDED, SKIPPED, CANCELLED},
    When.ALL_DONE: {SUCCEEDED, SKIPPED, CANCELLED, FAILED},
    When.ANY_FAILED: {FAILED},
}


@pytest.mark.parametrize("when", list(When))
@pytest.mark.parametrize("stays", [SUCCEEDED, SKIPPED, CANCELLED, FAILED])
def test_a_named_one_runs_again_only_if_its_rule_is_met(database: Database, when: When, stays: TaskState) -> None:
    """B072: a rerun is no way round a rule; where it is not met, nothing of the run is changed."""
    tasks = {"load": Node(), "next": Node(["load"], {"when": when}), "last": Node(["next"]), "other": Node()}
    run = situation.run_through(database, tasks, load=stays)
    before = situation.picture()

    done = situation.rerun(database, run.id, "next", "other")

    met = stays in MET[when]
    words = {again.key: again.becomes for again in done.tasks}
    assert done.accepted == met
    assert words == {"next": "ready" if met else "unwanted", "last": "pending", "other": "ready"}
    assert met or situation.changed_since(before) == set()
    assert situation.run(run.id).state == ("running" if met else run.state)
    assert situation.broken(database) == []


def test_with_the_upstream_that_is_in_its_way_it_waits(database: Database) -> None:
    run = situation.run_through(database, CHAIN, load=FAILED)

    done = situation.rerun(database, run.id, "report", "load")

    assert done.accepted
    assert Again("report", "pending") in done.tasks
    assert complete(database, run.id) == ["load", "report", "clean_up"]


# Refused by state


@pytest.mark.parametrize("keys", [(), ("left",), ("right",), ("join",)], ids=["failed", "ended", "running", "pending"])
def test_a_run_that_goes_on_is_not_rerun(database: Database, keys: tuple[str, ...]) -> None:
    """B077."""
    run_id = factories.start(database, factories.make_workflow(JOIN))
    situation.complete(database, factories.task_run(run_id, "left"), FAILED)
    factories.claim(database, factories.task_run(run_id, "right"))
    before = situation.picture()

    done = situation.rerun(database, run_id, *keys)

    assert (done.accepted, done.before) == (False, RunState.RUNNING)
    assert situation.changed_since(before) == set()


def test_a_run_that_has_not_begun_is_not_rerun(database: Database) -> None:
    run_id = factories.start(database, factories.make_workflow(JOIN))
    before = situation.picture()

    done = situation.rerun(database, run_id, "left")

    assert (done.accepted, done.before) == (False, RunState.PENDING)
    assert situation.changed_since(before) == set()


def test_where_nothing_failed_nothing_is_due_again(database: Database) -> None:
    run = situation.run_through(database, JOIN)
    before = situation.picture()

    assert situation.rerun(database, run.id) == Rerun(accepted=False, before=RunState.SUCCEEDED, tasks=[])

    assert situation.changed_since(before) == set()


def test_a_task_run_of_another_run_is_not_touched(database: Database) -> None:
    run, other = (situation.run_through(database, JOIN) for _ in range(2))
    before = situation.picture()

    row = factories.task_run(other.id, "left")
    done = database.perform(transitions.rerun, run.id, situation.DECISION, tasks=[row.id])

    assert done == Rerun(accepted=False, before=RunState.SUCCEEDED, tasks=[])
    assert situation.changed_since(before) == set()


def test_of_a_run_that_is_not_there_there_is_no_answer(database: Database) -> None:
    situation.run_through(database, JOIN)
    before = situation.picture()

    assert database.perform(transitions.rerun, uuid4(), situation.DECISION) is None

    assert situation.changed_since(before) == set()
