"""cancel, of task runs that are named: what depends on them goes by its rule, and the run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from flowforge import models, transitions
from flowforge.states import TASK_TERMINAL, RunState, TaskState, When
from flowforge.transitions import stopping
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.integration.verbs.situation import OUTCOMES

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.db import Database

TWO = {"left": Node(), "right": Node()}


def start(database: Database, tasks: dict[str, Node]) -> UUID:
    """Start a run of these tasks."""
    return factories.start(database, factories.make_workflow(tasks))


def cancel(database: Database, run_id: UUID, *keys: str) -> dict[str, str]:
    """Cancel the task runs of some keys; return key -> word of what was concerned."""
    done = situation.cancel(database, run_id, *[factories.task_run(run_id, key) for key in keys])
    return {models.TaskRun.get_by_id(id_).task.key: word for id_, word in done.tasks.items()}


# Allowed


def test_what_was_cancelled_before_what_it_waits_for_stays_so(database: Database) -> None:
    """B077."""
    row = situation.in_state(database, TaskState.READY)
    cancel(database, row.workflow_run_id, "report")
    before = factories.task_run(row.workflow_run_id, "report")

    cancel(database, row.workflow_run_id, "load")

    now = factories.reload(before)
    assert (now.state, now.fencing_token) == ("cancelled", before.fencing_token)
    assert factories.event_kinds(now) == ["created", "cancelled"]


@pytest.mark.parametrize("state", [TaskState.PENDING, TaskState.READY])
def test_what_has_not_begun_ends_at_a_new_token(database: Database, state: TaskState) -> None:
    row = situation.in_state(database, state)

    words = cancel(database, row.workflow_run_id, "load")

    now, event = factories.reload(row), situation.last_event(row)
    assert words == {"load": "cancelled"}
    assert (now.state, now.attempt, now.fencing_token) == ("cancelled", 1, row.fencing_token + 1)
    assert now.finished_at is not None
    assert (event.kind, event.from_state, event.to_state) == ("cancelled", state, "cancelled")
    assert (event.fencing_token, event.detail) == (row.fencing_token + 1, situation.TOLD)
    assert situation.owed(row) == []
    assert situation.broken(database) == []


def test_what_is_running_is_asked_and_the_run_hears_nothing(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    words = cancel(database, row.workflow_run_id, "load")

    now, event = factories.reload(row), situation.last_event(row)
    assert words == {"load": "asked"}
    assert (now.state, now.fencing_token, now.lease_owner) == ("running", row.fencing_token, row.lease_owner)
    assert now.cancel_requested_at is not None
    assert (event.kind, event.detail) == ("cancel_requested", situation.TOLD)
    assert situation.changed_since(before) == {"task_run", "task_run_event"}


def test_the_run_is_not_asked_and_goes_on(database: Database) -> None:
    run_id = start(database, TWO)

    cancel(database, run_id, "left")

    run = situation.run(run_id)
    assert (run.state, run.cancel_requested_at, run.tasks_remaining, run.tasks_cancelled) == ("pending", None, 1, 1)
    assert situation.run_history(run_id) == [("created", None, "pending")]
    assert len(factories.claim(database, factories.task_run(run_id, "right"))) == 1


@pytest.mark.parametrize("when", list(When))
@pytest.mark.parametrize("state", [TaskState.READY, TaskState.RUNNING])
def test_what_depends_on_it_goes_by_its_rule(database: Database, when: When, state: TaskState) -> None:
    """B070: a cancelled upstream has not failed, and it has not succeeded either."""
    run_id = start(database, {"load": Node(), "next": Node(["load"], {"when": when})})
    claims = factories.claim(database, factories.task_run(run_id, "load")) if state == TaskState.RUNNING else []

    cancel(database, run_id, "load")
    database.perform(transitions.finish, [factories.outcome(claim) for claim in claims])

    dependent = factories.task_run(run_id, "next")
    wanted = when in {When.ALL_DONE, When.NONE_FAILED}
    assert dependent.state == ("ready" if wanted else "skipped")
    assert (dependent.upstream_remaining, dependent.upstream_failed, dependent.upstream_unsucceeded) == (0, 0, 1)
    assert len(situation.owed(dependent)) == wanted
    assert situation.broken(database) == []


def test_a_rule_that_wants_a_failure_has_it_from_another(database: Database) -> None:
    run_id = start(database, TWO | {"alarm": Node(["left", "right"], {"when": "any_failed"})})
    situation.complete(database, factories.task_run(run_id, "left"), TaskState.FAILED)

    cancel(database, run_id, "right")

    assert situation.states(run_id)["alarm"] == "ready"
    assert situation.broken(database) == []


def test_what_waits_for_another_upstream_too_stays_pending(database: Database) -> None:
    run_id = start(database, TWO | {"join": Node(["left", "right"])})

    cancel(database, run_id, "left")
    between = factories.task_run(run_id, "join")
    situation.complete(database, factories.task_run(run_id, "right"))

    assert (between.state, between.upstream_remaining, between.upstream_unsucceeded) == ("pending", 1, 1)
    assert factories.reload(between).state == "skipped"
    assert situation.broken(database) == []


def test_a_skip_goes_on_down_to_the_last_dependent(database: Database) -> None:
    tasks = {"a": Node(), "b": Node(["a"]), "c": Node(["b"]), "d": Node(["c"]), "e": Node(["d"], {"when": "all_done"})}
    run_id = start(database, tasks)

    words = cancel(database, run_id, "a")

    run = situation.run(run_id)
    assert words == {"a": "cancelled"}
    assert situation.states(run_id) == {
        "a": "cancelled", "b": "skipped", "c": "skipped", "d": "skipped", "e": "ready",
    }  # fmt: skip
    assert (run.state, run.tasks_remaining, run.tasks_cancelled) == ("pending", 1, 1)
    assert factories.event_kinds(factories.task_run(run_id, "c")) == ["created", "skipped"]
    assert situation.broken(database) == []


def test_a_cancel_and_its_skips_are_one_transaction(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """B083: whoever dies between them has cancelled nothing."""
    run_id = start(database, {"a": Node(), "b": Node(["a"]), "c": Node(["b"])})
    monkeypatch.setattr(stopping, "skip", Mock(side_effect=KeyboardInterrupt))
    before = situation.picture()

    with pytest.raises(KeyboardInterrupt):
        cancel(database, run_id, "a")

    assert situation.changed_since(before) == set()


def test_an_upstream_that_ends_later_does_not_revive_it(database: Database) -> None:
    row = situation.in_state(database, TaskState.PENDING)
    cancel(database, row.workflow_run_id, "load")

    situation.complete(database, factories.task_run(row.workflow_run_id, "extract"))

    now = factories.reload(row)
    assert (now.state, now.fencing_token) == ("cancelled", 1)
    assert situation.owed(row) == []
    assert factories.event_kinds(row) == ["created", "cancelled"]
    assert situation.run(row.workflow_run_id).state == "cancelled"
    assert situation.broken(database) == []


def test_several_are_cancelled_together_with_one_that_depends_on_another(database: Database) -> None:
    run_id = start(database, {"a": Node(), "b": Node(["a"]), "c": Node(["b"]), "d": Node()})

    words = cancel(database, run_id, "a", "b", "d")

    assert words == {"a": "cancelled", "b": "cancelled", "d": "cancelled"}
    assert situation.states(run_id)["c"] == "skipped"
    assert situation.run(run_id).tasks_cancelled == 3
    assert situation.broken(database) == []


# The run's outcome


@pytest.mark.parametrize(
    ("required", "other", "state"),
    [
        (True, TaskState.SUCCEEDED, "cancelled"),
        (False, TaskState.SUCCEEDED, "succeeded"),
        (True, TaskState.FAILED, "failed"),
        (True, TaskState.SKIPPED, "cancelled"),
    ],
)
@pytest.mark.parametrize("last", ["cancelled", "other"])
@pytest.mark.parametrize("running", [False, True], ids=["ready", "running"])
def test_a_required_one_that_was_cancelled_cancels_the_run(
    database: Database, last: str, other: TaskState, state: str, *, required: bool, running: bool
) -> None:
    run_id = start(database, {"left": Node(options={"required": required}), "right": Node()})
    left, right = (factories.task_run(run_id, key) for key in TWO)

    if last == "cancelled":
        situation.complete(database, right, other)
    claims = factories.claim(database, left) if running else []
    cancel(database, run_id, "left")
    database.perform(transitions.finish, [factories.outcome(claim) for claim in claims])
    if last == "other":
        situation.complete(database, right, other)

    run = situation.run(run_id)
    assert (run.state, run.tasks_remaining, run.tasks_cancelled) == (state, 0, required)
    assert situation.run_history(run_id)[-1] == (state, "running", state)
    assert situation.broken(database) == []


def test_the_only_task_run_cancelled_cancels_a_run_that_never_began(database: Database) -> None:
    row = factories.start_single(database)

    done = situation.cancel(database, row.workflow_run_id, row)

    run = situation.run(row.workflow_run_id)
    assert (done.state, run.state, run.cancel_requested_at) == (RunState.CANCELLED, "cancelled", None)
    assert situation.run_history(run.id) == [("created", None, "pending"), ("cancelled", "pending", "cancelled")]


def test_a_run_that_ends_by_skips_alone_is_cancelled(database: Database) -> None:
    run_id = start(database, {"a": Node(), "b": Node(["a"])})

    cancel(database, run_id, "a")

    assert situation.states(run_id) == {"a": "cancelled", "b": "skipped"}
    assert situation.run(run_id).state == "cancelled"
    assert situation.broken(database) == []


def test_after_one_task_run_the_whole_run_is_cancelled(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    cancel(database, row.workflow_run_id, "load")

    done = situation.cancel(database, row.workflow_run_id)
    database.perform(transitions.finish, [situation.outcome(row)])

    assert done.state == RunState.RUNNING
    assert factories.event_kinds(row)[-2:] == ["cancel_requested", "cancelled"]
    assert situation.states(row.workflow_run_id)["report"] == "cancelled"
    assert situation.run(row.workflow_run_id).state == "cancelled"


# Refused


@pytest.mark.parametrize("state", OUTCOMES)
def test_what_has_ended_keeps_its_state_and_says_it(database: Database, state: TaskState) -> None:
    """B077: in a run that goes on as well as in one that has ended."""
    row = situation.in_state(database, state)
    before = situation.picture()

    words = cancel(database, row.workflow_run_id, "load")

    assert state in TASK_TERMINAL
    assert words == {"load": state}
    assert situation.changed_since(before) == set()


def test_what_has_ended_among_others_stays(database: Database) -> None:
    run_id = start(database, TWO | {"third": Node()})
    situation.complete(database, factories.task_run(run_id, "left"))

    assert cancel(database, run_id, "left", "right") == {"left": "succeeded", "right": "cancelled"}

    assert situation.states(run_id) == {"left": "succeeded", "right": "cancelled", "third": "ready"}


def test_one_that_was_asked_is_not_asked_again(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    cancel(database, row.workflow_run_id, "load")
    before = situation.picture()

    assert cancel(database, row.workflow_run_id, "load") == {"load": "asked"}

    assert situation.changed_since(before) == set()


def test_a_task_run_of_another_run_is_not_touched(database: Database) -> None:
    row, other = (situation.in_state(database, TaskState.READY) for _ in range(2))
    before = situation.picture()

    done = situation.cancel(database, other.workflow_run_id, row)

    assert done.tasks == {}
    assert situation.changed_since(before) == set()


def test_an_empty_list_cancels_nothing(database: Database) -> None:
    row = situation.in_state(database, TaskState.READY)
    before = situation.picture()

    done = database.perform(transitions.cancel, row.workflow_run_id, situation.DECISION, tasks=[])

    assert done is not None
    assert done.tasks == {}
    assert situation.changed_since(before) == set()
