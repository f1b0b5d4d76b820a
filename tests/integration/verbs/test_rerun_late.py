"""After a rerun: what was said before it is refused by its token; and others at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from flowforge import models, transitions
from flowforge.states import RunState, TaskState
from flowforge.transitions import Mark, Outcome, Release, Rerun
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.integration.verbs.situation import OUTCOMES
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.db import Database

CHAIN = {"load": Node(options={"attempts": 3}), "next": Node(["load"], {"when": "all_done"})}


def failed(database: Database) -> tuple[transitions.Claim, models.TaskRun]:
    """Return the claim of a task run that failed, with its run, and its row."""
    run_id = factories.start(database, factories.make_workflow(CHAIN))
    (claimed,) = factories.claim(database, factories.task_run(run_id, "load"))
    database.perform(transitions.finish, [factories.outcome(claimed, TaskState.FAILED)])
    situation.complete(database, factories.task_run(run_id, "next"))
    return claimed, factories.task_run(run_id, "load")


def rerun(row: models.TaskRun, connection: Any) -> Rerun:
    """Rerun the run of a task run from what failed, in the connection's transaction."""
    done = transitions.rerun(connection, row.workflow_run_id, situation.DECISION)
    assert done is not None
    return done


# Messages of before


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("claimed_again", [False, True], ids=["ready", "running"])
def test_a_completion_of_before_is_refused_and_told(
    database: Database, outcome: TaskState, *, claimed_again: bool
) -> None:
    """B051: not even the one that was accepted then is taken for it now."""
    claimed, row = failed(database)
    situation.rerun(database, row.workflow_run_id)
    if claimed_again:
        factories.claim(database, factories.reload(row), owner="worker-2")
    before = situation.picture()

    endings = database.perform(transitions.finish, [factories.outcome(claimed, outcome)])

    assert [one.became for one in endings] == ["refused"]
    assert situation.changed_since(before) == {"task_run_event"}
    assert situation.last_event(row).detail == {"token": claimed.token, "outcome": outcome}


@pytest.mark.parametrize("verb", [transitions.retry, transitions.hand_back])
def test_a_release_of_before_is_refused(database: Database, verb: Any) -> None:
    claimed, row = failed(database)
    situation.rerun(database, row.workflow_run_id)
    factories.claim(database, factories.reload(row))
    before = situation.picture()

    assert database.perform(verb, [Release(claimed.id, claimed.token)]) == {}

    assert situation.changed_since(before) == {"task_run_event"}


def test_an_owner_of_before_renews_and_guards_nothing(database: Database) -> None:
    claimed, row = failed(database)
    situation.rerun(database, row.workflow_run_id)
    factories.claim(database, factories.reload(row))
    held = (claimed.id, claimed.token)
    before = situation.picture()

    assert database.perform(transitions.renew, factories.renewals([held], lease=600)) == {held: "lost"}
    assert database.perform(transitions.guard, *held) is False

    assert situation.changed_since(before) == set()


def test_a_dispatch_of_before_starts_nothing(database: Database) -> None:
    """B076: it stood in Redis, and the run was cancelled and rerun."""
    row = factories.start_single(database)
    with database.atomic():
        (old,) = transitions.take(database.raw(), "default", limit=10, after=Mark()).dispatches
    situation.cancel(database, row.workflow_run_id)
    situation.rerun(database, row.workflow_run_id)
    before = situation.picture()

    refused = database.perform(transitions.claim, [old], owner="worker-1", lease=15)
    unchanged = situation.changed_since(before) == set()
    with database.atomic():
        (new,) = transitions.take(database.raw(), "default", limit=10, after=Mark()).dispatches

    assert refused == []
    assert unchanged
    assert new.token == old.token + 2
    assert len(database.perform(transitions.claim, [old, new], owner="worker-1", lease=15)) == 1


def test_a_duty_that_saw_it_before_ends_nothing(database: Database) -> None:
    """B047: what was asked to stop, or was not started, before the rerun is another attempt now."""
    row = factories.start_single(database)
    factories.claim(database, row)
    situation.cancel(database, row.workflow_run_id)
    seen = situation.outcome(factories.reload(row), TaskState.CANCELLED)
    database.perform(transitions.finish, [seen])
    situation.rerun(database, row.workflow_run_id)
    before = situation.picture()

    for verb in (transitions.cut_off, transitions.give_up):
        assert [one.became for one in database.perform(verb, [seen])] == ["refused"]

    assert situation.changed_since(before) == set()


def test_nothing_is_expired_or_cut_off_that_was_rerun(database: Database) -> None:
    row = factories.start_single(database)
    factories.claim(database, row, lease=-1)
    situation.cancel(database, row.workflow_run_id)
    database.perform(transitions.expire, limit=10)
    situation.rerun(database, row.workflow_run_id)

    assert database.perform(transitions.expire, limit=10).taken == []

    now = factories.reload(row)
    assert (now.state, now.cancel_requested_at, now.lease_expires_at) == ("ready", None, None)


# At once


def test_of_two_at_once_the_first_counts(database: Database, database_url: str) -> None:
    _, row = failed(database)

    with racing(database_url, partial(rerun, row), partial(rerun, row)) as (first, second):
        pass

    assert (first.answer.accepted, second.answer.accepted) == (True, False)
    assert second.answer.before == RunState.RUNNING
    assert factories.reload(row).fencing_token == row.fencing_token + 1
    assert len(situation.owed(row)) == 1
    assert [kind for kind, _, _ in situation.run_history(row.workflow_run_id)].count("rerun") == 1
    assert situation.broken(database) == []


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.SUCCEEDED])
def test_of_a_run_that_ends_at_once_the_end_is_seen(database: Database, database_url: str, state: TaskState) -> None:
    """B073: the rerun waits for the last completion, and answers by what that made of the run."""
    row = factories.start_single(database)
    (claimed,) = factories.claim(database, row)

    with racing(
        database_url, lambda c: transitions.finish(c, [factories.outcome(claimed, state)]), partial(rerun, row)
    ) as (_, second):
        pass

    again = state == TaskState.FAILED
    now = factories.reload(row)
    assert (second.answer.accepted, second.answer.before) == (again, RunState(state))
    assert now.state == ("ready" if again else state)
    assert len(situation.owed(row)) == again
    assert situation.broken(database) == []


def test_a_completion_that_waits_for_the_rerun_is_refused(database: Database, database_url: str) -> None:
    """B066: the second copy of what had failed the run."""
    claimed, row = failed(database)

    with racing(
        database_url,
        partial(rerun, row),
        lambda c: transitions.finish(c, [factories.outcome(claimed, TaskState.FAILED)]),
    ) as (_, second):
        pass

    assert [one.became for one in second.answer] == ["refused"]
    assert factories.event_kinds(row)[-2:] == ["rerun", "refused"]
    assert factories.reload(row).state == "ready"


def test_a_cancel_that_waits_for_the_rerun_cancels_what_is_due_again(database: Database, database_url: str) -> None:
    """B074: nothing of it is left to start, neither task runs nor dispatches."""
    _, row = failed(database)

    with racing(
        database_url,
        partial(rerun, row),
        lambda c: transitions.cancel(c, row.workflow_run_id, situation.DECISION, now=True),
    ) as (_, second):
        pass

    assert (second.answer.accepted, second.answer.state) == (True, RunState.CANCELLED)
    assert set(situation.states(row.workflow_run_id).values()) == {"cancelled"}
    assert models.OutboxMessage.select().count() == 0
    assert situation.broken(database) == []


def test_a_rerun_that_waits_for_a_cancel_carries_out_what_that_ended(database: Database, database_url: str) -> None:
    row = factories.start_single(database)

    with racing(
        database_url,
        lambda c: transitions.cancel(c, row.workflow_run_id, situation.DECISION),
        partial(rerun, row),
    ) as (first, second):
        pass

    assert first.answer.state == RunState.CANCELLED
    assert (second.answer.accepted, second.answer.before) == (True, RunState.CANCELLED)
    assert len(situation.owed(row)) == 1
    assert situation.run(row.workflow_run_id).state == "running"
    assert situation.broken(database) == []


def test_a_rerun_that_waits_for_the_last_loss_sees_it(database: Database, database_url: str) -> None:
    row = factories.start_single(database, lost=0)
    factories.claim(database, row, lease=-1)
    late = Outcome(row.id, row.workflow_run_id, 1, TaskState.FAILED)

    with racing(database_url, lambda c: transitions.finish(c, [late], overdue=True), partial(rerun, row)) as (
        _,
        second,
    ):
        pass

    assert second.answer.accepted
    assert factories.reload(row).state == "ready"
    assert situation.broken(database) == []
