"""cancel, and others at once: whatever the order, the answer is what became of the run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from random import Random
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest
from psycopg2.errors import LockNotAvailable

from flowforge import insights, models, transitions
from flowforge.states import Paused, RunState, TaskState
from flowforge.transitions import Cancelled, Ending, Release, Subject, stopping
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from flowforge.db import Database

RACES = 200


def cancel(row: models.TaskRun, connection: Any) -> Cancelled:
    """Cancel the run of a task run, in the connection's transaction."""
    done = transitions.cancel(connection, row.workflow_run_id, situation.DECISION)
    assert done is not None
    return done


def finish(row: models.TaskRun, connection: Any) -> list[Ending]:
    """End a task run at its present token, in the connection's transaction."""
    return transitions.finish(connection, [situation.outcome(row)])


# Completions


def test_a_completion_before_the_cancel_stands_and_is_answered(database: Database, database_url: str) -> None:
    """B073."""
    row = factories.start_single(database)
    factories.claim(database, row)
    row = factories.reload(row)

    with racing(database_url, partial(finish, row), partial(cancel, row)) as (_, second):
        pass

    assert second.answer == Cancelled(accepted=False, state=RunState.SUCCEEDED, tasks={})
    assert (factories.reload(row).state, situation.run(row.workflow_run_id).state) == ("succeeded", "succeeded")
    assert situation.run(row.workflow_run_id).cancel_requested_at is None


def test_a_completion_after_the_cancel_ends_cancelled(database: Database, database_url: str) -> None:
    """B073."""
    row = factories.start_single(database)
    factories.claim(database, row)
    row = factories.reload(row)

    with racing(database_url, partial(cancel, row), partial(finish, row)) as (first, second):
        pass

    assert first.answer == Cancelled(accepted=True, state=RunState.RUNNING, tasks={row.id: "asked"})
    assert [ending.became for ending in second.answer] == ["ended"]
    assert (factories.reload(row).state, situation.run(row.workflow_run_id).state) == ("cancelled", "cancelled")


def test_what_a_completion_made_ready_is_cancelled_too(database: Database, database_url: str) -> None:
    """B074."""
    row = situation.in_state(database, TaskState.RUNNING)

    with racing(database_url, partial(finish, row), partial(cancel, row)) as (_, second):
        pass

    report = factories.task_run(row.workflow_run_id, "report")
    assert second.answer == Cancelled(accepted=True, state=RunState.CANCELLED, tasks={report.id: "cancelled"})
    assert situation.states(row.workflow_run_id) == {
        "extract": "succeeded", "load": "succeeded", "report": "cancelled",
    }  # fmt: skip
    assert models.OutboxMessage.select().count() == 0
    assert situation.broken(database) == []


def test_a_completion_makes_nothing_ready_that_was_cancelled_meanwhile(database: Database, database_url: str) -> None:
    """B074."""
    row = situation.in_state(database, TaskState.RUNNING)

    with racing(database_url, partial(cancel, row), partial(finish, row)):
        pass

    assert situation.states(row.workflow_run_id) == {
        "extract": "succeeded", "load": "cancelled", "report": "cancelled",
    }  # fmt: skip
    assert models.OutboxMessage.select().count() == 0
    assert situation.run(row.workflow_run_id).state == "cancelled"
    assert situation.broken(database) == []


def test_in_two_hundred_races_answer_and_row_agree(database: Database, database_url: str) -> None:
    """B073: a cancel within five milliseconds of a completion, before or after."""
    seen: dict[str, int] = {}
    with (
        closing(psycopg2.connect(database_url)) as one,
        closing(psycopg2.connect(database_url)) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        one.autocommit = other.autocommit = True
        for seed in range(RACES):
            final = race(database, pool, one, other, Random(seed))
            seen[final] = seen.get(final, 0) + 1

    assert seen.keys() == {"succeeded", "cancelled"}
    assert sum(seen.values()) == RACES
    assert situation.broken(database) == []


def race(database: Database, pool: ThreadPoolExecutor, one: Any, other: Any, random: Random) -> str:
    """Cancel a run while its only task run ends; return how both have ended, which is what the cancel answered."""
    row = factories.start_single(database)
    factories.claim(database, row)
    start = Barrier(2)

    cancelling = pool.submit(after, random.uniform(0, 0.005), start, partial(cancel, row, one))
    finishing = pool.submit(after, random.uniform(0, 0.005), start, partial(finish, factories.reload(row), other))
    done, (ending,) = cancelling.result(30), finishing.result(30)

    state = factories.reload(row).state
    assert ending.became == "ended"
    assert done.accepted == (state == "cancelled")
    assert done.state == (RunState.RUNNING if done.accepted else state)
    assert situation.run(row.workflow_run_id).state == state
    return str(state)


def after(seconds: float, start: Barrier, call: Callable[[], Any]) -> Any:
    """Make a call so long after both are at the start."""
    start.wait(30)
    Event().wait(seconds)
    return call()


# Claims and releases


def test_a_claim_after_the_cancel_starts_nothing(database: Database, database_url: str) -> None:
    """B076: the claim asks the locked row, not what it saw before it waited."""
    row = factories.start_single(database)
    message = factories.dispatch(row)

    with racing(
        database_url,
        partial(cancel, row),
        lambda connection: transitions.claim(connection, [message], owner="worker-1", lease=15),
    ) as (first, second):
        pass

    assert first.answer.state == RunState.CANCELLED
    assert second.answer == []
    assert factories.event_kinds(row) == ["created", "cancelled"]
    assert [kind for kind, _, _ in situation.run_history(row.workflow_run_id)][1:] == ["cancel_requested", "cancelled"]


def test_what_was_claimed_before_the_cancel_is_asked(database: Database, database_url: str) -> None:
    row = factories.start_single(database)
    message = factories.dispatch(row)

    with racing(
        database_url,
        lambda connection: transitions.claim(connection, [message], owner="worker-1", lease=15),
        partial(cancel, row),
    ) as (_, second):
        pass

    assert second.answer == Cancelled(accepted=True, state=RunState.RUNNING, tasks={row.id: "asked"})
    assert factories.reload(row).cancel_requested_at is not None


@pytest.mark.parametrize("verb", [transitions.retry, transitions.hand_back])
def test_what_was_released_before_the_cancel_ends(database: Database, database_url: str, verb: Any) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)
    release = Release(row.id, row.fencing_token)

    with racing(database_url, lambda c: verb(c, [release]), partial(cancel, row)) as (first, second):
        pass

    assert first.answer == {row.id: "ready"}
    assert second.answer.state == RunState.CANCELLED
    assert situation.owed(row) == []
    assert factories.reload(row).state == "cancelled"


@pytest.mark.parametrize("verb", [transitions.retry, transitions.hand_back])
def test_a_release_after_the_cancel_is_none(database: Database, database_url: str, verb: Any) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)
    release = Release(row.id, row.fencing_token)

    with racing(database_url, partial(cancel, row), lambda c: verb(c, [release])) as (_, second):
        pass

    assert second.answer == {row.id: "cancel"}
    assert factories.reload(row).state == "running"
    assert situation.owed(row) == []


def test_what_was_expired_before_the_cancel_ends(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.READY)
    factories.claim(database, row, lease=-1)

    with racing(database_url, lambda c: transitions.expire(c, limit=10).taken, partial(cancel, row)) as (_, second):
        pass

    assert second.answer.state == RunState.CANCELLED
    assert factories.reload(row).state == "cancelled"
    assert situation.owed(row) == []


# Decisions


def test_of_two_cancels_at_once_the_first_is_told_and_both_are_answered(database: Database, database_url: str) -> None:
    row = factories.start_single(database)

    with racing(database_url, partial(cancel, row), partial(cancel, row)) as (first, second):
        pass

    assert first.answer == Cancelled(accepted=True, state=RunState.CANCELLED, tasks={row.id: "cancelled"})
    assert second.answer == Cancelled(accepted=False, state=RunState.CANCELLED, tasks={})
    assert factories.event_kinds(row) == ["created", "cancelled"]
    assert factories.reload(row).fencing_token == 1


def test_a_pause_at_once_leaves_no_cancelled_run_paused(database: Database, database_url: str) -> None:
    """B075: a clean-up that is held back by a pause which nobody lifts keeps the run from its end."""
    tasks = {"load": Node(), "clean_up": Node(["load"], {"when": "all_done"})}
    run_id = factories.start(database, factories.make_workflow(tasks))
    load = factories.task_run(run_id, "load")
    factories.claim(database, load)
    subject = Subject(models.DEFAULT_ORGANIZATION, Paused.RUN, str(run_id))

    with racing(database_url, lambda c: transitions.pause(c, subject, situation.DECISION), partial(cancel, load)) as (
        first,
        second,
    ):
        pass

    assert first.answer is True
    assert second.answer.accepted
    assert list(models.Pause.select()) == []


def test_what_a_move_adds_meanwhile_is_cancelled_too(database: Database, database_url: str) -> None:
    """B074: the cancel began before the move was committed, and still no task starts after it."""
    row = factories.start_single(database)
    version = factories.make_workflow({"only": Node(), "added": Node(), "later": Node(["added"])})

    with racing(database_url, partial(move, row.workflow_run_id, version), partial(cancel, row)) as (first, second):
        pass

    assert first.answer is True
    assert second.answer.accepted
    assert set(situation.states(row.workflow_run_id).values()) == {"cancelled"}
    assert models.OutboxMessage.select().count() == 0
    assert situation.run(row.workflow_run_id).state == second.answer.state == RunState.CANCELLED
    assert situation.broken(database) == []


def test_a_run_cancelled_meanwhile_is_not_moved(database: Database, database_url: str) -> None:
    row = factories.start_single(database)
    version = factories.make_workflow({"only": Node(), "added": Node()})

    with racing(database_url, partial(cancel, row), partial(move, row.workflow_run_id, version)) as (_, second):
        pass

    assert second.answer is False
    assert situation.states(row.workflow_run_id) == {"only": "cancelled"}
    assert situation.broken(database) == []


def move(run_id: UUID, version: models.Workflow, connection: Any) -> bool:
    """Hold a run, and move it, in the connection's transaction."""
    held = transitions.hold(connection, run_id)
    return transitions.move(connection, run_id, version.id, transitions.plan(held, insights.targets(version.id)))


# Guards


@pytest.mark.parametrize("whole", [True, False], ids=["run", "task run"])
def test_while_a_guard_is_held_a_cancel_changes_nothing(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    """B047: who guards its task run writes under it until its own commit; then the cancel is accepted."""
    monkeypatch.setattr(stopping, "_PATIENCE", 0.05)
    row = situation.in_state(database, TaskState.RUNNING)
    rows = [] if whole else [row]
    before = situation.picture()

    with situation.held_open(database_url, lambda c: transitions.guard(c, row.id, row.fencing_token)) as guard:
        with pytest.raises(LockNotAvailable):
            situation.cancel(database, row.workflow_run_id, *rows)
        unchanged = situation.changed_since(before) == set()

    assert guard.answer is True
    assert unchanged
    assert situation.cancel(database, row.workflow_run_id, *rows).tasks[row.id] == "asked"
