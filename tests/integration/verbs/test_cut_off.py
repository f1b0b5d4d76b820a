"""cut_off: running, and asked to stop -> cancelled; its owner's token is taken from it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from psycopg2.errors import LockNotAvailable

from flowforge import insights, models, transitions
from flowforge.states import TaskState
from flowforge.transitions import Ending, Outcome, Release, ending
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.integration.verbs.situation import OUTCOMES
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.db import Database


def asked(database: Database, **options: Any) -> Any:
    """Return the middle task run of a chain, running, and asked to stop."""
    row = situation.in_state(database, TaskState.RUNNING, **options)
    situation.cancel(database, row.workflow_run_id, row)
    return factories.reload(row)


def word(row: models.TaskRun, *, off: int = 0) -> Outcome:
    """Return what ends a task run at its present token, or `off` from it."""
    return situation.outcome(row, TaskState.CANCELLED, off=off)


def cut_off(row: models.TaskRun, connection: Any) -> list[Ending]:
    """Cut a task run off, in the connection's transaction."""
    return transitions.cut_off(connection, [word(row)])


# Allowed


def test_code_that_goes_on_loses_its_token(database: Database) -> None:
    row = asked(database)

    (ended, *_) = database.perform(transitions.cut_off, [word(row)])

    now, event = factories.reload(row), situation.last_event(row)
    assert ended == Ending(row.id, row.workflow_run_id, row.fencing_token, "ended")
    assert (now.state, now.fencing_token, now.attempt) == ("cancelled", row.fencing_token + 1, row.attempt)
    assert (now.lease_owner, now.lease_expires_at) == (None, None)
    assert now.finished_at >= now.started_at
    assert (event.kind, event.from_state, event.to_state) == ("cancelled", "running", "cancelled")
    assert event.fencing_token == row.fencing_token + 1
    assert situation.broken(database) == []


def test_dependents_and_run_hear_of_it(database: Database) -> None:
    """B074: nobody waits for code that does not stop."""
    tasks = {"load": Node(), "next": Node(["load"]), "clean_up": Node(["load"], {"when": "all_done"})}
    run_id = factories.start(database, factories.make_workflow(tasks))
    load = factories.task_run(run_id, "load")
    factories.claim(database, load)
    situation.cancel(database, run_id, load)

    database.perform(transitions.cut_off, [word(factories.reload(load))])

    run = situation.run(run_id)
    assert situation.states(run_id) == {"load": "cancelled", "next": "skipped", "clean_up": "ready"}
    assert (run.state, run.tasks_remaining, run.tasks_cancelled) == ("running", 1, 1)
    assert situation.broken(database) == []


def test_a_run_that_was_cancelled_ends_with_it(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    situation.cancel(database, row.workflow_run_id)

    database.perform(transitions.cut_off, [word(row)])

    assert situation.run(row.workflow_run_id).state == "cancelled"
    assert situation.run_history(row.workflow_run_id)[-1] == ("cancelled", "running", "cancelled")


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    asked(database)
    before = situation.picture()

    assert database.perform(transitions.cut_off, []) == []

    assert situation.changed_since(before) == set()


def test_those_are_found_that_were_asked_longer_ago_than_the_grace(database: Database) -> None:
    row = asked(database)
    situation.in_state(database, TaskState.RUNNING)

    within = database.perform(insights.asked_before, 60.0, limit=10)
    ((id_, run_id, token, owner),) = database.perform(insights.asked_before, 0.0, limit=10)

    assert within == []
    assert (id_, run_id, token, owner) == (row.id, row.workflow_run_id, row.fencing_token, "worker-1")


# Refused by state


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_what_is_not_running_is_not_cut_off(database: Database, state: TaskState) -> None:
    """B077."""
    row = situation.in_state(database, state)
    before = situation.picture()

    endings = database.perform(transitions.cut_off, [word(row)])

    known = "ended before" if state == TaskState.CANCELLED else "refused"
    assert [one.became for one in endings] == [known]
    assert situation.changed_since(before) == set()


def test_what_was_not_asked_to_stop_is_not_cut_off(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    endings = database.perform(transitions.cut_off, [word(row)])

    assert [one.became for one in endings] == ["refused"]
    assert situation.changed_since(before) == set()


# Refused by token


@pytest.mark.parametrize("off", [-1, 1], ids=["stale", "future"])
def test_at_another_token_nothing_is_cut_off(database: Database, off: int) -> None:
    """B048: what was seen to go on may be in other hands by now; and a duty's late word is no worker's refusal."""
    row = asked(database)
    before = situation.picture()

    endings = database.perform(transitions.cut_off, [word(row, off=off)])

    assert [one.became for one in endings] == ["refused"]
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_its_owners_late_completion_is_refused_and_told(database: Database, outcome: TaskState) -> None:
    """B051, B074: not even its own `cancelled` is taken for the owner's commit."""
    row = asked(database)
    database.perform(transitions.cut_off, [word(row)])
    before = situation.picture()

    endings = database.perform(transitions.finish, [situation.outcome(row, outcome)])

    assert [one.became for one in endings] == ["refused"]
    assert situation.changed_since(before) == {"task_run_event"}
    assert situation.last_event(row).detail == {"token": row.fencing_token, "outcome": outcome}


@pytest.mark.parametrize("verb", [transitions.retry, transitions.hand_back])
def test_its_owner_releases_nothing(database: Database, verb: Any) -> None:
    row = asked(database, attempts=3)
    database.perform(transitions.cut_off, [word(row)])

    answer = database.perform(verb, [Release(row.id, row.fencing_token)])

    assert answer == {}
    assert (factories.reload(row).state, situation.last_event(row).kind) == ("cancelled", "refused")


def test_its_owner_renews_and_guards_nothing(database: Database) -> None:
    row = asked(database)
    held = (row.id, row.fencing_token)
    database.perform(transitions.cut_off, [word(row)])

    assert database.perform(transitions.renew, factories.renewals([held], lease=60)) == {held: "lost"}
    assert database.perform(transitions.guard, *held) is False
    assert database.perform(transitions.expire, limit=10).taken == []


# At once


def test_of_two_at_once_the_first_counts(database: Database, database_url: str) -> None:
    """B048."""
    row = asked(database)

    with racing(database_url, partial(cut_off, row), partial(cut_off, row)) as (first, second):
        pass

    assert [one.became for one in first.answer if one.id == row.id] == ["ended"]
    assert [one.became for one in second.answer] == ["refused"]
    assert factories.event_kinds(row)[-2:] == ["cancel_requested", "cancelled"]
    assert factories.reload(row).fencing_token == row.fencing_token + 1
    assert situation.broken(database) == []


def test_an_owner_that_ends_it_at_once_is_the_one(database: Database, database_url: str) -> None:
    row = asked(database)

    with racing(database_url, lambda c: transitions.finish(c, [situation.outcome(row)]), partial(cut_off, row)) as (
        first,
        second,
    ):
        pass

    assert [one.became for one in first.answer if one.id == row.id] == ["ended"]
    assert [one.became for one in second.answer] == ["ended before"]
    assert factories.reload(row).fencing_token == row.fencing_token
    assert factories.event_kinds(row)[-1] == "cancelled"


def test_an_owner_that_ends_it_too_late_is_refused(database: Database, database_url: str) -> None:
    row = asked(database)

    with racing(database_url, partial(cut_off, row), lambda c: transitions.finish(c, [situation.outcome(row)])) as (
        _,
        second,
    ):
        pass

    assert [one.became for one in second.answer] == ["refused"]
    assert factories.event_kinds(row)[-2:] == ["cancelled", "refused"]


def test_while_a_guard_is_held_nothing_is_cut_off(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B051: code that guards may write under its token until its own transaction ends."""
    monkeypatch.setattr(ending._end, "__kwdefaults__", {**ending._end.__kwdefaults__, "patience": 0.05})
    row = asked(database)
    before = situation.picture()

    with situation.held_open(database_url, lambda c: transitions.guard(c, row.id, row.fencing_token)):
        with pytest.raises(LockNotAvailable):
            database.perform(transitions.cut_off, [word(row)])
        unchanged = situation.changed_since(before) == set()
    database.perform(transitions.cut_off, [word(row)])

    assert unchanged
    assert factories.reload(row).state == "cancelled"
