"""cancel, of a whole run: what has not begun ends, what is running is asked to stop, clean-ups still run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from flowforge import models, transitions
from flowforge.states import Paused, RunState, TaskState
from flowforge.transitions import Cancelled, Subject
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.db import Database

CHAIN = {
    "extract": Node(),
    "load": Node(["extract"]),
    "report": Node(["load"]),
    "clean_up": Node(["load"], {"when": "all_done"}),
}


def started(database: Database, tasks: dict[str, Node] = CHAIN) -> tuple[UUID, transitions.Claim]:
    """Return a run, and the claim of its first task, which is running."""
    run_id = factories.start(database, factories.make_workflow(tasks))
    (claimed,) = factories.claim(database, factories.task_run(run_id, next(iter(tasks))))
    return run_id, claimed


def ended(database: Database, state: RunState) -> UUID:
    """Return a run of one task that has ended."""
    row = factories.start_single(database)
    if state == RunState.CANCELLED:
        situation.cancel(database, row.workflow_run_id)
    else:
        situation.complete(database, row, TaskState(state))
    assert situation.run(row.workflow_run_id).state == state
    return row.workflow_run_id


# Allowed


def test_a_run_that_has_not_begun_is_over_at_once(database: Database) -> None:
    """B075: nothing runs, so nobody is waited for; there is nothing to clean up either."""
    run_id = factories.start(database, factories.make_workflow(CHAIN))
    rows = [factories.task_run(run_id, key) for key in CHAIN]

    done = situation.cancel(database, run_id)

    run = situation.run(run_id)
    assert done == Cancelled(accepted=True, state=RunState.CANCELLED, tasks={row.id: "cancelled" for row in rows})
    assert set(situation.states(run_id).values()) == {"cancelled"}
    assert (run.state, run.tasks_remaining, run.tasks_failed, run.tasks_cancelled) == ("cancelled", 0, 0, 4)
    assert run.started_at is None
    assert run.finished_at >= run.cancel_requested_at
    assert situation.run_history(run_id)[1:] == [
        ("cancel_requested", "pending", "pending"),
        ("cancelled", "pending", "cancelled"),
    ]
    assert situation.broken(database) == []


def test_of_a_run_that_has_begun_the_running_are_asked_and_the_rest_ends(database: Database) -> None:
    run_id, extract = started(database)

    done = situation.cancel(database, run_id)

    load, report = (factories.task_run(run_id, key).id for key in ("load", "report"))
    run = situation.run(run_id)
    assert done.accepted
    assert done.state == RunState.RUNNING
    assert done.tasks == {extract.id: "asked", load: "cancelled", report: "cancelled"}
    assert situation.states(run_id) == {
        "extract": "running", "load": "cancelled", "report": "cancelled", "clean_up": "ready",
    }  # fmt: skip
    assert (run.state, run.tasks_remaining, run.tasks_cancelled, run.finished_at) == ("running", 2, 2, None)
    assert run.cancel_requested_at is not None
    assert situation.broken(database) == []


def test_the_run_is_cancelled_once_its_last_task_has_ended(database: Database) -> None:
    run_id, extract = started(database)
    situation.cancel(database, run_id)

    database.perform(transitions.finish, [factories.outcome(extract)])
    between = situation.run(run_id)
    situation.complete(database, factories.task_run(run_id, "clean_up"))

    run = situation.run(run_id)
    assert (between.state, between.tasks_remaining) == ("running", 1)
    assert (run.state, run.tasks_remaining, run.tasks_cancelled) == ("cancelled", 0, 3)
    assert situation.states(run_id)["clean_up"] == "succeeded"
    assert situation.run_history(run_id)[-1] == ("cancelled", "running", "cancelled")
    assert situation.broken(database) == []


def test_a_clean_up_waits_for_what_is_still_running(database: Database) -> None:
    tasks = {"extract": Node(), "clean_up": Node(["extract"], {"when": "all_done"})}
    run_id, extract = started(database, tasks)

    situation.cancel(database, run_id)
    between = situation.states(run_id)["clean_up"]
    database.perform(transitions.finish, [factories.outcome(extract)])

    assert between == "pending"
    assert situation.states(run_id) == {"extract": "cancelled", "clean_up": "ready"}
    assert len(situation.owed(factories.task_run(run_id, "clean_up"))) == 1


def test_a_clean_up_that_the_cancel_made_ready_is_owed_a_dispatch(database: Database) -> None:
    run_id, _ = started(database)

    situation.cancel(database, run_id)

    clean_up = factories.task_run(run_id, "clean_up")
    (message,) = situation.owed(clean_up)
    assert (clean_up.upstream_remaining, clean_up.upstream_failed, clean_up.upstream_unsucceeded) == (0, 0, 1)
    assert (message.fencing_token_snapshot, message.attempt_snapshot, message.routing_key) == (0, 1, "default")
    assert message.payload == {"workflow": "sales", "key": "clean_up", "task": str(clean_up.task_id)}
    assert factories.event_kinds(clean_up) == ["created", "readied"]


def test_what_follows_a_clean_up_does_not_start(database: Database) -> None:
    tasks = {"load": Node(), "clean_up": Node(["load"], {"when": "all_done"}), "notify": Node(["clean_up"])}
    run_id, load = started(database, tasks)

    situation.cancel(database, run_id)
    database.perform(transitions.finish, [factories.outcome(load)])
    situation.complete(database, factories.task_run(run_id, "clean_up"))

    assert situation.states(run_id) == {"load": "cancelled", "clean_up": "succeeded", "notify": "cancelled"}
    assert situation.run(run_id).state == "cancelled"


def test_a_clean_up_that_is_running_is_not_asked(database: Database) -> None:
    tasks = {"clean_up": Node(options={"when": "all_done"}), "load": Node(["clean_up"])}
    run_id, clean_up = started(database, tasks)

    done = situation.cancel(database, run_id)
    database.perform(transitions.finish, [factories.outcome(clean_up)])

    assert clean_up.id not in done.tasks
    assert situation.states(run_id) == {"clean_up": "succeeded", "load": "cancelled"}
    assert situation.run(run_id).state == "cancelled"


def test_now_spares_no_clean_up(database: Database) -> None:
    run_id, extract = started(database)

    done = situation.cancel(database, run_id, now=True)
    between = situation.states(run_id)
    database.perform(transitions.finish, [factories.outcome(extract)])

    assert done.tasks[factories.task_run(run_id, "clean_up").id] == "cancelled"
    assert between == {"extract": "running", "load": "cancelled", "report": "cancelled", "clean_up": "cancelled"}
    assert models.OutboxMessage.select().count() == 0
    assert situation.run(run_id).state == "cancelled"
    assert situation.broken(database) == []


def test_now_after_a_cancel_ends_the_clean_ups_that_it_left(database: Database) -> None:
    tasks = {"extract": Node(), "ready": Node(options={"when": "all_done"}), "busy": Node(options={"when": "all_done"})}
    run_id, extract = started(database, tasks)
    (busy,) = factories.claim(database, factories.task_run(run_id, "busy"))
    situation.cancel(database, run_id)

    done = situation.cancel(database, run_id, now=True)

    assert done.accepted
    assert done.tasks == {
        extract.id: "asked", factories.task_run(run_id, "ready").id: "cancelled", busy.id: "asked",
    }  # fmt: skip
    assert situation.run(run_id).tasks_remaining == 2
    assert [kind for kind, _, _ in situation.run_history(run_id)] == ["created", "started", "cancel_requested"]
    assert situation.broken(database) == []


def test_the_last_ready_task_run_ends_the_run_at_once(database: Database) -> None:
    """B075: the worker that ran the first of two is gone, and no other is needed."""
    tasks = {"extract": Node(), "load": Node(["extract"])}
    run_id, extract = started(database, tasks)
    database.perform(transitions.finish, [factories.outcome(extract)])

    done = situation.cancel(database, run_id)

    assert done.state == RunState.CANCELLED
    assert situation.states(run_id) == {"extract": "succeeded", "load": "cancelled"}
    assert situation.run_history(run_id)[-2:] == [
        ("cancel_requested", "running", "running"),
        ("cancelled", "running", "cancelled"),
    ]


def test_what_waits_for_its_next_attempt_is_over_at_once(database: Database) -> None:
    """B075: a task run in retry wait has nobody to confirm the cancel."""
    row = factories.start_single(database, attempts=3)
    (claimed,) = factories.claim(database, row)
    database.perform(transitions.retry, [transitions.Release(claimed.id, claimed.token, delay=3600)])

    done = situation.cancel(database, row.workflow_run_id)

    assert done.state == RunState.CANCELLED
    assert factories.reload(row).state == "cancelled"
    assert situation.owed(row) == []


def test_what_a_worker_deferred_is_cancelled_without_its_reason(database: Database) -> None:
    row = factories.start_single(database)
    database.perform(transitions.defer, [(factories.dispatch(row), "no such task here")], delay=60)

    situation.cancel(database, row.workflow_run_id)

    now = factories.reload(row)
    assert (now.state, now.deferred_because) == ("cancelled", None)
    assert situation.owed(row) == []


@pytest.mark.parametrize("published", [False, True], ids=["due", "published"])
def test_no_dispatch_is_owed_for_what_was_cancelled(database: Database, *, published: bool) -> None:
    """B074."""
    run_id = factories.start(database, factories.make_workflow({"one": Node(), "other": Node()}))
    if published:
        with database.atomic():
            transitions.take(database.raw(), "default", limit=10, after=transitions.Mark())

    situation.cancel(database, run_id)

    assert models.OutboxMessage.select().count() == 0


# The run's outcome, and its counters


@pytest.mark.parametrize(("required", "state", "failed"), [(True, "failed", 1), (False, "cancelled", 0)])
def test_a_required_failure_outweighs_the_cancel(
    database: Database, state: str, failed: int, *, required: bool
) -> None:
    tasks = {"broken": Node(options={"required": required}), "other": Node()}
    run_id, broken = started(database, tasks)
    database.perform(transitions.finish, [factories.outcome(broken, TaskState.FAILED)])

    done = situation.cancel(database, run_id)

    run = situation.run(run_id)
    assert (done.state, run.state, run.tasks_failed, run.tasks_cancelled) == (state, state, failed, 1)
    assert situation.run_history(run_id)[-1] == (state, "running", state)
    assert situation.broken(database) == []


def test_a_clean_up_that_fails_fails_the_run(database: Database) -> None:
    run_id, extract = started(database)
    situation.cancel(database, run_id)
    database.perform(transitions.finish, [factories.outcome(extract)])

    situation.complete(database, factories.task_run(run_id, "clean_up"), TaskState.FAILED)

    assert situation.run(run_id).state == "failed"
    assert situation.broken(database) == []


def test_only_required_task_runs_count_as_cancelled(database: Database) -> None:
    tasks = {"one": Node(), "optional": Node(options={"required": False}), "asked": Node(options={"required": False})}
    run_id = factories.start(database, factories.make_workflow(tasks))
    (asked,) = factories.claim(database, factories.task_run(run_id, "asked"))

    situation.cancel(database, run_id)
    database.perform(transitions.finish, [factories.outcome(asked)])

    run = situation.run(run_id)
    assert (run.state, run.tasks_remaining, run.tasks_cancelled) == ("cancelled", 0, 1)
    assert situation.broken(database) == []


def test_what_ended_before_keeps_its_state(database: Database) -> None:
    tasks = {key: Node() for key in ("succeeded", "failed", "skipped", "other")}
    run_id = factories.start(database, factories.make_workflow(tasks))
    for state in (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.SKIPPED):
        situation.complete(database, factories.task_run(run_id, state), state)
    tokens = [factories.task_run(run_id, key).fencing_token for key in tasks]

    situation.cancel(database, run_id)

    assert situation.states(run_id) == {
        "succeeded": "succeeded", "failed": "failed", "skipped": "skipped", "other": "cancelled",
    }  # fmt: skip
    assert [factories.task_run(run_id, key).fencing_token for key in tasks] == [*tokens[:3], tokens[3] + 1]


# What is told


def test_the_events_say_who_and_why(database: Database) -> None:
    run_id, extract = started(database)

    situation.cancel(database, run_id)

    load, asked = (situation.last_event(factories.task_run(run_id, key)) for key in ("load", "extract"))
    assert situation.run_detail(run_id, "cancel_requested") == situation.TOLD
    assert (load.kind, load.from_state, load.to_state) == ("cancelled", "pending", "cancelled")
    assert (load.attempt, load.fencing_token, load.detail) == (1, 1, situation.TOLD)
    assert (asked.kind, asked.from_state, asked.to_state) == ("cancel_requested", "running", "running")
    assert (asked.attempt, asked.fencing_token, asked.detail) == (1, extract.token, situation.TOLD)


def test_who_is_asked_keeps_token_and_lease_until_it_stops(database: Database) -> None:
    run_id, _ = started(database)
    before = factories.task_run(run_id, "extract")

    situation.cancel(database, run_id)

    now = factories.reload(before)
    assert now.cancel_requested_at is not None
    assert {**now.__data__, "cancel_requested_at": None} == before.__data__


def test_a_cancel_asked_twice_is_told_once_and_changes_nothing(database: Database) -> None:
    run_id, extract = started(database)
    situation.cancel(database, run_id)
    before = situation.picture()

    again = situation.cancel(database, run_id)

    assert again == Cancelled(accepted=True, state=RunState.RUNNING, tasks={extract.id: "asked"})
    assert situation.changed_since(before) == set()


def test_other_runs_go_on(database: Database) -> None:
    workflow = factories.make_workflow(CHAIN)
    other, run_id = factories.start(database, workflow), factories.start(database, workflow)

    situation.cancel(database, run_id)

    assert situation.run(other).state == "pending"
    assert situation.states(other)["extract"] == "ready"
    assert len(situation.owed(factories.task_run(other, "extract"))) == 1


def test_a_pause_of_the_run_is_lifted_and_others_stay(database: Database) -> None:
    """B075: clean-ups of a cancelled run wait for nobody's resume."""
    run_id, _ = started(database)
    other, _ = started(database)
    for kind, name in ((Paused.RUN, str(run_id)), (Paused.RUN, str(other)), (Paused.QUEUE, "cpu")):
        subject = Subject(models.DEFAULT_ORGANIZATION, kind, name)
        assert database.perform(transitions.pause, subject, situation.DECISION)

    situation.cancel(database, run_id)

    assert {(row.kind, row.subject) for row in models.Pause.select()} == {("run", str(other)), ("queue", "cpu")}


def test_a_clean_up_that_a_pause_held_back_runs_after_the_cancel(database: Database) -> None:
    tasks = {"load": Node(), "clean_up": Node(options={"when": "all_done"})}
    run_id, _ = started(database, tasks)
    clean_up = factories.task_run(run_id, "clean_up")
    subject = Subject(models.DEFAULT_ORGANIZATION, Paused.RUN, str(run_id))
    database.perform(transitions.pause, subject, situation.DECISION)
    refused = factories.claim(database, clean_up)

    situation.cancel(database, run_id)
    released = database.perform(transitions.unhold)

    assert (refused, released) == ([], 1)
    assert len(factories.claim(database, clean_up)) == 1


# Refused


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED])
@pytest.mark.parametrize("now", [False, True], ids=["kindly", "now"])
def test_a_run_that_has_ended_stays_as_it_ended(database: Database, state: RunState, *, now: bool) -> None:
    """B073, B077: the answer is the state that stands."""
    run_id = ended(database, state)
    before = situation.picture()

    done = situation.cancel(database, run_id, now=now)

    assert done == Cancelled(accepted=False, state=state, tasks={})
    assert situation.changed_since(before) == set()


def test_of_a_run_that_is_not_there_there_is_no_answer(database: Database) -> None:
    factories.start_single(database)
    before = situation.picture()

    assert database.perform(transitions.cancel, uuid4(), situation.DECISION) is None

    assert situation.changed_since(before) == set()
