"""pause: nothing of a run, a workflow or a queue is dispatched or claimed; what runs goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from flowforge import models, transitions
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import Paused, TaskState
from flowforge.transitions import Mark, Release, Subject
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from flowforge.db import Database

KINDS = list(Paused)


# pause


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_says_what_by_whom_and_why(database: Database, kind: Paused) -> None:
    row = factories.start_single(database)

    assert situation.pause(database, row, kind) is True

    (told,) = models.Pause.select()
    assert (told.organization_id, told.kind, told.subject) == situation.subject(row, kind)
    assert (told.paused_by, told.reason) == ("me", "wrong day")


def test_of_a_run_its_history_says_it_too(database: Database) -> None:
    row = factories.start_single(database)

    situation.pause(database, row, Paused.RUN)
    situation.resume(database, row, Paused.RUN)

    run_id = row.workflow_run_id
    assert situation.run_history(run_id)[1:] == [("paused", "pending", "pending"), ("resumed", "pending", "pending")]
    assert situation.run_detail(run_id, "paused") == situation.TOLD
    assert situation.run_detail(run_id, "resumed") == situation.TOLD


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_changes_no_state(database: Database, kind: Paused) -> None:
    row = situation.in_state(database, TaskState.READY)
    before = situation.picture()

    situation.pause(database, row, kind)

    assert situation.changed_since(before) == {"pause"} | ({"workflow_run_event"} if kind is Paused.RUN else set())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_paused_is_not_paused_again(database: Database, kind: Paused) -> None:
    row = factories.start_single(database)
    situation.pause(database, row, kind)
    before = situation.picture()

    assert situation.pause(database, row, kind) is False

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("state", [TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED])
def test_a_run_that_has_ended_is_not_paused(database: Database, state: TaskState) -> None:
    """B077."""
    row = factories.start_single(database)
    situation.complete(database, row, state)
    before = situation.picture()

    assert situation.pause(database, row, Paused.RUN) is False

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("organization", ["other", "own"])
def test_a_run_is_paused_only_where_it_is(database: Database, organization: str) -> None:
    row = factories.start_single(database)
    other = factories.make_organization()
    nowhere = {
        "other": Subject(other, Paused.RUN, str(row.workflow_run_id)),
        "own": Subject(DEFAULT_ORGANIZATION, Paused.RUN, str(uuid4())),
    }
    before = situation.picture()

    assert database.perform(transitions.pause, nowhere[organization], situation.DECISION) is False

    assert situation.changed_since(before) == set()


# What is not dispatched, and not claimed


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_it_is_dispatched(database: Database, kind: Paused) -> None:
    row = factories.start_single(database)
    situation.pause(database, row, kind)

    with database.atomic():
        taken = transitions.take(database.raw(), "default", limit=10, after=Mark())

    (message,) = situation.owed(row)
    assert (taken.dispatches, taken.read) == ([], 1)
    assert taken.mark == Mark(message.priority, message.available_at)
    assert (message.held, message.published_at) == (True, None)
    assert factories.reload(row).state == "ready"
    assert situation.broken(database) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_stood_in_redis_before_the_pause_is_not_claimed(database: Database, kind: Paused) -> None:
    """B076: it comes out of the runway after the pause was committed, and is held from then on."""
    row = factories.start_single(database)
    runway = situation.take(database)
    situation.pause(database, row, kind)

    claims = database.perform(transitions.claim, runway, owner="worker-1", lease=15)

    (message,) = situation.owed(row)
    assert (situation.ids(runway), claims) == ({row.id}, [])
    assert (factories.reload(row).state, factories.reload(row).fencing_token) == ("ready", 0)
    assert (message.held, message.published_at) == (True, None)
    assert factories.event_kinds(row) == ["created"]
    assert situation.run(row.workflow_run_id).state == "pending"
    assert situation.broken(database) == []


def test_what_is_held_is_taken_once_and_not_looked_at_again(database: Database) -> None:
    row = factories.start_single(database)
    situation.pause(database, row, Paused.QUEUE)
    situation.take(database)
    before = situation.picture()

    with database.atomic():
        again = transitions.take(database.raw(), "default", limit=10, after=Mark())

    assert (again.dispatches, again.read) == ([], 0)
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_paused_is_not_held_up_by_what_is(database: Database, kind: Paused) -> None:
    paused = factories.start_single(database, queue="cpu")
    other = factories.make_workflow({"only": Node(options={"queue": "gpu"})}, name="other")
    free = factories.task_run(factories.start(database, other), "only")
    runway = [factories.dispatch(row) for row in (paused, free)]
    situation.pause(database, paused, kind)

    taken = situation.take(database, "cpu") + situation.take(database, "gpu")
    claims = database.perform(transitions.claim, runway, owner="worker-1", lease=15)

    assert situation.ids(taken) == {free.id}
    assert [claim.id for claim in claims] == [free.id]
    assert (situation.owed(paused)[0].held, situation.owed(free)) == (True, [])


def test_a_full_batch_of_paused_dispatches_says_how_far_it_has_read(database: Database) -> None:
    """A publisher that took nothing for the end of the queue would never come to what is behind them."""
    paused = factories.make_workflow({"only": Node()}, name="paused")
    for _ in range(5):
        row = factories.task_run(factories.start(database, paused), "only")
    free = factories.start_single(database)
    database.perform(
        transitions.pause, situation.subject(row, Paused.WORKFLOW)._replace(name="paused"), situation.DECISION
    )

    with database.atomic():
        first = transitions.take(database.raw(), "default", limit=5, after=Mark())
        second = transitions.take(database.raw(), "default", limit=5, after=first.mark)

    assert (first.dispatches, first.read) == ([], 5)
    assert (situation.ids(second.dispatches), second.read) == ({free.id}, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_becomes_ready_later_is_held_as_well(database: Database, kind: Paused) -> None:
    running = situation.in_state(database, TaskState.RUNNING)
    situation.pause(database, running, kind)

    database.perform(transitions.finish, [situation.outcome(running)])

    report = factories.task_run(running.workflow_run_id, "report")
    assert situation.take(database) == []
    assert (report.state, situation.owed(report)[0].held) == ("ready", True)


@pytest.mark.parametrize("verb", [transitions.retry, transitions.hand_back])
def test_the_next_attempt_of_what_was_running_is_held(database: Database, verb: Any) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)
    situation.pause(database, row, Paused.RUN)

    answer = database.perform(verb, [Release(row.id, row.fencing_token)])
    claims = factories.claim(database, factories.reload(row))

    assert answer == {row.id: "ready"}
    assert (claims, situation.take(database), situation.owed(row)[0].held) == ([], [], True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_published_before_the_pause_is_not_sent_again(database: Database, kind: Paused) -> None:
    """B058: the broker lost it while it is paused."""
    row = factories.start_single(database)
    situation.take(database)
    (message,) = situation.owed(row)
    situation.pause(database, row, kind)

    queues = database.perform(transitions.resend, [(message.id, message.published_at)])

    assert queues == ["default"]
    assert situation.take(database) == []
    assert situation.owed(row)[0].held


# What runs goes on


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_running_is_renewed_and_finishes(database: Database, kind: Paused) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    held = (row.id, row.fencing_token)
    situation.pause(database, row, kind)

    renewed = database.perform(transitions.renew, factories.renewals([held], lease=60))
    guarded = database.perform(transitions.guard, *held)
    database.perform(transitions.finish, [situation.outcome(row)])

    assert (renewed, guarded) == ({held: "renewed"}, True)
    assert factories.reload(row).state == "succeeded"


def test_the_reply_to_a_claim_that_was_lost_is_given_again_all_the_same(database: Database) -> None:
    row = factories.start_single(database)
    (lost,) = factories.claim(database, row)
    situation.pause(database, row, Paused.RUN)

    assert factories.claim(database, row) == [lost]


def test_a_run_whose_last_task_runs_ends_while_it_is_paused(database: Database) -> None:
    row = factories.start_single(database)
    factories.claim(database, row)
    situation.pause(database, row, Paused.RUN)

    database.perform(transitions.finish, [situation.outcome(factories.reload(row))])

    assert situation.run(row.workflow_run_id).state == "succeeded"


# Other organizations


@pytest.mark.parametrize("kind", KINDS)
def test_other_organizations_are_not_touched(database: Database, kind: Paused) -> None:
    """Their workflows and queues may have the same names."""
    workflow = factories.make_workflow({"only": Node()}, organization=factories.make_organization())
    theirs = factories.task_run(factories.start(database, workflow), "only")
    ours = factories.start_single(database)
    situation.pause(database, ours, kind)

    taken = situation.take(database)
    claims = factories.claim(database, theirs, ours)

    assert situation.ids(taken) == {theirs.id}
    assert [claim.id for claim in claims] == [theirs.id]
