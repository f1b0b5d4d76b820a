"""claim: ready -> running at the message's token, which becomes one more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import time_machine

from flowforge import models, transitions
from flowforge.states import TaskState
from flowforge.transitions import Release
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.db import Database


def test_a_ready_task_run_is_owned_from_now_on(database: Database) -> None:
    row = factories.start_single(database, attempts=3)

    (claim,) = factories.claim(database, row, owner="worker-7", lease=15)

    now = factories.reload(row)
    assert (now.state, now.attempt, now.fencing_token, now.lease_owner) == ("running", 1, 1, "worker-7")
    assert 14.9 < (now.lease_expires_at - now.started_at).total_seconds() < 15.1
    assert (claim.id, claim.run_id, claim.task_id) == (row.id, row.workflow_run_id, row.task_id)
    assert (claim.token, claim.attempt, claim.failures_left, claim.parameters) == (1, 1, 2, "{}")


def test_a_lease_begins_at_its_claim_by_the_databases_clock(database: Database) -> None:
    """B060: not by this process's clock, which is ten minutes off, nor by now(), which a transaction holds still."""
    row = factories.start_single(database)

    with time_machine.travel(time.time() + 600), database.atomic():
        database.execute_sql("select pg_sleep(0.2)")
        ((began,),) = database.execute_sql("select flowforge.clock()").fetchall()
        factories.claim(database, row, lease=15)

    assert 15 <= (factories.reload(row).lease_expires_at - began).total_seconds() < 16


def test_a_claim_is_told_and_its_dispatch_is_gone(database: Database) -> None:
    row = factories.start_single(database)

    factories.claim(database, row, owner="worker-7")

    event = situation.last_event(row)
    assert (event.kind, event.from_state, event.to_state) == ("claimed", "ready", "running")
    assert (event.attempt, event.fencing_token, event.detail) == (1, 1, {"owner": "worker-7"})
    assert situation.owed(row) == []


def test_the_first_claim_starts_the_run_and_the_next_does_not(database: Database) -> None:
    run_id = factories.start(database, factories.make_workflow({"left": Node(), "right": Node()}))

    factories.claim(database, factories.task_run(run_id, "left"))
    started_at = situation.run(run_id).started_at
    factories.claim(database, factories.task_run(run_id, "right"))

    run = situation.run(run_id)
    assert (run.state, run.tasks_remaining, run.started_at) == ("running", 2, started_at)
    assert situation.run_history(run_id) == [("created", None, "pending"), ("started", "pending", "running")]


def test_one_batch_claims_over_several_runs(database: Database) -> None:
    workflow = factories.make_workflow({"left": Node(), "right": Node()})
    runs = [factories.start(database, workflow) for _ in range(3)]
    rows = [factories.task_run(run_id, key) for run_id in runs for key in ("left", "right")]

    claims = factories.claim(database, *rows)

    assert {claim.id for claim in claims} == {row.id for row in rows}
    assert {situation.run(run_id).state for run_id in runs} == {"running"}
    assert models.OutboxMessage.select().count() == 0


def test_each_is_owned_for_its_own_lease(database: Database) -> None:
    short, long = factories.start_single(database), factories.start_single(database)

    messages = [factories.dispatch(row) for row in (short, long)]
    database.perform(transitions.claim, messages, owner="worker-1", lease=[5, 600])

    expiries = [factories.reload(row).lease_expires_at for row in (short, long)]
    assert 590 < (expiries[1] - expiries[0]).total_seconds() < 600


def test_a_batch_gives_what_is_ready_and_leaves_the_rest(database: Database) -> None:
    ready, running = factories.start_single(database), factories.start_single(database)
    factories.claim(database, running, owner="worker-2")

    claims = factories.claim(database, ready, running, owner="worker-1")

    assert [claim.id for claim in claims] == [ready.id]


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    factories.start_single(database)
    before = situation.picture()

    assert factories.claim(database) == []

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.READY])
def test_only_a_ready_task_run_is_given(database: Database, state: TaskState) -> None:
    """B076, B077: what has ended or was never due is not started by a message that says so."""
    row = situation.in_state(database, state)
    before = situation.picture()

    claims = factories.claim(database, row)

    assert claims == []
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("off", [-1, 1], ids=["stale", "future"])
def test_a_message_with_another_token_is_refused(database: Database, off: int) -> None:
    row = factories.start_single(database)
    factories.claim(database, row)
    database.perform(transitions.hand_back, [transitions.Release(row.id, 1)])
    message = factories.dispatch(factories.reload(row))
    before = situation.picture()

    message = message._replace(token=message.token + off)
    claims = database.perform(transitions.claim, [message], owner="worker-1", lease=15)

    assert claims == []
    assert situation.changed_since(before) == set()


def test_a_lost_reply_is_given_again_to_the_same_owner_only(database: Database) -> None:
    row = factories.start_single(database)
    (lost,) = factories.claim(database, row, owner="worker-1")
    before = situation.picture()

    again = factories.claim(database, row, owner="worker-1")
    other = factories.claim(database, row, owner="worker-2")

    assert again == [lost]
    assert other == []
    assert situation.changed_since(before) == set()


def test_of_a_late_and_a_present_dispatch_in_one_batch_the_present_one_is_claimed(database: Database) -> None:
    """B027: they name one task run at two tokens."""
    row = factories.start_single(database)
    late = factories.dispatch(row)
    (claimed,) = factories.claim(database, row)
    database.perform(transitions.hand_back, [Release(claimed.id, claimed.token)])
    present = factories.dispatch(factories.reload(row))

    claims = database.perform(transitions.claim, [late, present], owner="worker-1", lease=15)

    assert [claim.token for claim in claims] == [present.token + 1]


def test_a_doubled_message_in_one_batch_is_one_claim(database: Database) -> None:
    row = factories.start_single(database)

    claims = factories.claim(database, row, row)

    assert [claim.id for claim in claims] == [row.id]
    assert factories.event_kinds(row) == ["created", "claimed"]
    assert factories.reload(row).fencing_token == 1


def test_a_claim_ends_the_reason_for_which_it_was_deferred(database: Database) -> None:
    row = factories.start_single(database)
    database.perform(transitions.defer, [(factories.dispatch(row), "no such task here")], delay=0)

    factories.claim(database, row)

    assert factories.reload(row).deferred_because is None


@pytest.mark.parametrize("state", ["pending", "running"])
def test_of_two_claims_at_once_the_first_wins(database: Database, database_url: str, state: str) -> None:
    run_id = factories.start(database, factories.make_workflow({"one": Node(), "other": Node()}))
    if state == "running":
        factories.claim(database, factories.task_run(run_id, "other"))
    row = factories.task_run(run_id, "one")
    message = factories.dispatch(row)

    with racing(
        database_url,
        lambda connection: transitions.claim(connection, [message], owner="first", lease=15),
        lambda connection: transitions.claim(connection, [message], owner="second", lease=15),
    ) as (first, second):
        pass

    assert [claim.token for claim in first.answer] == [1]
    assert second.answer == []
    assert factories.reload(row).lease_owner == "first"
    assert factories.event_kinds(row) == ["created", "claimed"]


def test_two_claims_at_once_of_one_new_run_start_it_once(database: Database, database_url: str) -> None:
    run_id = factories.start(database, factories.make_workflow({"left": Node(), "right": Node()}))
    left, right = (factories.dispatch(factories.task_run(run_id, key)) for key in ("left", "right"))

    with racing(
        database_url,
        lambda connection: transitions.claim(connection, [left], owner="first", lease=15),
        lambda connection: transitions.claim(connection, [right], owner="second", lease=15),
    ) as (first, second):
        pass

    assert len(first.answer) == len(second.answer) == 1
    assert situation.run_history(run_id) == [("created", None, "pending"), ("started", "pending", "running")]
