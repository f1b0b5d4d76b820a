"""expire: running with a lease that is over -> ready at the next token, or ended after the last loss."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg2
import pytest

from flowforge import models, transitions
from flowforge.states import TaskState
from flowforge.transitions import Mark, NewRun
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.support import Racer, racing, wait_for

if TYPE_CHECKING:
    from flowforge.db import Database
    from flowforge.transitions import Late


def lose(database: Database, row: Any) -> Any:
    """Claim a ready task run with a lease that is over at once; return it as it is then."""
    factories.claim(database, factories.reload(row), owner="lost-worker", lease=-1)
    return factories.reload(row)


def lost_one(database: Database, **options: Any) -> Any:
    """Return the middle task run of a chain, running, with its lease over."""
    return lose(database, situation.in_state(database, TaskState.READY, **options))


def lost_many(database: Database, number: int, **options: Any) -> None:
    """Start runs of one task each, and lose the worker of all of them."""
    workflow = factories.make_workflow({"only": Node(options=options)})
    database.perform(transitions.start_run, [NewRun(uuid4(), workflow.id, "{}") for _ in range(number)])
    lose_all(database)


def lose_all(database: Database) -> None:
    """Claim all that is due, with leases that are over at once."""
    with database.atomic():
        due, *_ = transitions.take(database.raw(), "default", limit=1000, after=Mark())
    database.perform(transitions.claim, due, owner="lost-worker", lease=-1)


def expire(connection: Any, limit: int = 10) -> list[Late]:
    """Expire as a process of its own does: each step is a transaction."""
    connection.rollback()
    connection.autocommit = True
    return transitions.expire(connection, limit=limit).taken


# Allowed


def test_only_a_lease_that_is_over_is_told_to_be_locked(database: Database, database_url: str) -> None:
    """Its owner is spared for a while; who renews in time needs no such thing."""
    late, healthy = lost_one(database), situation.in_state(database, TaskState.RUNNING)

    with situation.held_open(database_url, lambda connection: lock(connection, late, healthy)):
        expired = database.perform(transitions.expire, limit=10)

    assert (expired.taken, expired.locked) == ([], [late.id])


def lock(connection: Any, *rows: Any) -> None:
    with connection.cursor() as cursor:
        ids = [str(row.id) for row in rows]
        cursor.execute("select from flowforge.task_run where id = any(%s::uuid[]) for update", [ids])


def test_the_first_loss_is_due_at_once_and_costs_one_loss(database: Database) -> None:
    """B043: a claim is a lease, and nobody holds a task run without one."""
    row = lost_one(database, lost=2, attempts=3)

    (late,) = database.perform(transitions.expire, limit=10).taken

    now, (message,) = factories.reload(row), situation.owed(row)
    assert (late.id, late.run_id, late.owner, late.became) == (row.id, row.workflow_run_id, "lost-worker", "ready")
    assert (now.state, now.attempt, now.fencing_token, now.lease_owner) == ("ready", 2, 2, None)
    assert (now.losses_left, now.failures_left) == (1, 2)
    assert (message.fencing_token_snapshot, message.attempt_snapshot) == (2, 2)
    assert message.available_at <= message.created_at


def test_a_loss_is_told_with_its_owner(database: Database) -> None:
    row = lost_one(database)

    database.perform(transitions.expire, limit=10)

    event = situation.last_event(row)
    assert (event.kind, event.from_state, event.to_state) == ("expired", "running", "ready")
    assert (event.attempt, event.fencing_token, event.detail) == (2, 2, {"owner": "lost-worker"})


def test_the_run_and_its_dependents_wait_for_the_next_attempt(database: Database) -> None:
    row = lost_one(database)
    run, report = situation.run(row.workflow_run_id), factories.task_run(row.workflow_run_id, "report")

    database.perform(transitions.expire, limit=10)

    assert situation.run(run.id).__data__ == run.__data__
    assert factories.reload(report).__data__ == report.__data__


def test_each_further_loss_waits_longer_with_jitter(database: Database) -> None:
    """B044: what kills its worker does not take the next one down at once."""
    lost_many(database, 20, lost=4)
    database.perform(transitions.expire, limit=100)
    delays = []

    for _ in range(3):
        for row in models.TaskRun.select():
            lose(database, row)
        database.perform(transitions.expire, limit=100)
        messages = list(models.OutboxMessage.select())
        delays.append([(message.available_at - message.created_at).total_seconds() for message in messages])

    for longest, waits in zip([1, 3, 7], delays, strict=True):
        assert longest / 2 - 0.1 <= min(waits) < max(waits) <= longest
        assert len(set(waits)) > 10


def test_a_worker_lost_more_often_than_allowed_fails_the_task_run(database: Database) -> None:
    """B044: two losses allowed are three starts."""
    row = factories.start_single(database, lost=2)
    became = []

    for _ in range(3):
        lose(database, row)
        became += [late.became for late in database.perform(transitions.expire, limit=10).taken]

    now = factories.reload(row)
    assert became == ["ready", "ready", "exhausted"]
    assert (now.state, now.attempt, now.error["type"]) == ("failed", 3, "worker_lost")
    assert now.error["message"] == "lost-worker was lost and no further start is left"
    assert factories.event_kinds(row).count("claimed") == 3


def test_a_crash_on_the_last_attempt_resolves_dependents_and_run(database: Database) -> None:
    """B045: nothing waits for a task run that nobody will run again."""
    tasks = {
        "load": Node(options={"lost": 0}),
        "report": Node(["load"]),
        "clean_up": Node(["load"], {"when": "all_done"}),
    }
    run_id = factories.start(database, factories.make_workflow(tasks))
    load = lose(database, factories.task_run(run_id, "load"))

    database.perform(transitions.expire, limit=10)
    states = situation.states(run_id)
    situation.complete(database, factories.task_run(run_id, "clean_up"))

    assert states == {"load": "failed", "report": "skipped", "clean_up": "ready"}
    assert factories.event_kinds(load) == ["created", "claimed", "failed"]
    assert situation.last_event(load).detail["type"] == "worker_lost"
    assert situation.run(run_id).state == "failed"
    assert situation.run_history(run_id)[-1] == ("failed", "running", "failed")


@pytest.mark.parametrize(
    ("when", "state"),
    [("all_succeeded", "skipped"), ("none_failed", "skipped"), ("all_done", "ready"), ("any_failed", "ready")],
)
def test_a_join_of_many_is_decided_although_one_was_lost(database: Database, when: str, state: str) -> None:
    """B070: of ten upstreams one fails, one is lost and one is cancelled; the join does not wait."""
    parts = {f"part_{n}": Node(options={"lost": 0}) for n in range(10)}
    run_id = factories.start(database, factories.make_workflow(parts | {"join": Node(list(parts), {"when": when})}))
    lost, *others = [factories.task_run(run_id, key) for key in parts]
    outcomes = [TaskState.FAILED, TaskState.CANCELLED] + [TaskState.SUCCEEDED] * 7

    lose(database, lost)
    for row, outcome in zip(others, outcomes, strict=True):
        situation.complete(database, row, outcome)
    database.perform(transitions.expire, limit=10)

    join = factories.task_run(run_id, "join")
    assert (join.state, join.upstream_remaining) == (state, 0)
    assert (join.upstream_failed, join.upstream_unsucceeded) == (2, 3)


def test_who_was_asked_to_cancel_ends_cancelled(database: Database) -> None:
    """B075: the worker that should confirm the cancel is gone."""
    row = lost_one(database)
    situation.ask_to_cancel(row)

    (late,) = database.perform(transitions.expire, limit=10).taken

    assert late.became == "cancel"
    assert factories.reload(row).state == "cancelled"
    assert situation.last_event(row).kind == "cancelled"
    assert factories.task_run(row.workflow_run_id, "report").state == "skipped"


def test_one_call_takes_no_more_than_its_limit(database: Database) -> None:
    lost_many(database, 5)

    taken = [len(database.perform(transitions.expire, limit=2).taken) for _ in range(4)]

    assert taken == [2, 2, 1, 0]


def test_without_a_lease_that_is_over_nothing_changes(database: Database) -> None:
    situation.in_state(database, TaskState.READY)
    before = situation.picture()

    assert database.perform(transitions.expire, limit=10).taken == []

    assert situation.changed_since(before) == set()


# Refused


@pytest.mark.parametrize("state", list(TaskState))
def test_only_a_lease_that_is_over_expires(database: Database, state: TaskState) -> None:
    """B046: a task run whose lease is live is left alone, however old it is."""
    situation.in_state(database, state)
    before = situation.picture()

    assert database.perform(transitions.expire, limit=10).taken == []

    assert situation.changed_since(before) == set()


def test_a_renewal_in_time_keeps_the_task_run(database: Database) -> None:
    """B046: what is healthy goes on, for as long as it is renewed."""
    row = lost_one(database)
    database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token)], lease=15))
    before = situation.picture()

    assert database.perform(transitions.expire, limit=10).taken == []

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("outcome", [TaskState.SUCCEEDED, TaskState.FAILED])
def test_after_the_last_word_a_completion_is_refused_and_told(database: Database, outcome: TaskState) -> None:
    """B049: a late result is recorded as refused; it is not taken for the owner's own commit either."""
    row = lost_one(database, lost=0)
    database.perform(transitions.expire, limit=10)
    before = situation.picture()

    endings = database.perform(transitions.finish, [situation.outcome(row, outcome)])

    assert [ending.became for ending in endings] == ["refused"]
    assert situation.changed_since(before) == {"task_run_event"}
    assert situation.last_event(row).detail == {"token": row.fencing_token, "outcome": outcome}


def test_the_last_word_takes_the_token_from_the_lost_worker(database: Database) -> None:
    row = lost_one(database, lost=0)

    database.perform(transitions.expire, limit=10)

    now = factories.reload(row)
    assert now.fencing_token == row.fencing_token + 1
    assert situation.last_event(row).fencing_token == now.fencing_token


# At once


def test_a_renewal_between_look_and_last_word_wins(database: Database, database_url: str) -> None:
    """B047: what was seen to be over is asked again on the locked row."""
    row = lost_one(database, lost=0)

    with racing(database_url, lambda connection: lock_run(connection, row), expire) as (_, expirer):
        answer = database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token)], lease=60))

    assert answer == {(row.id, row.fencing_token): "renewed"}
    assert [late.became for late in expirer.answer] == ["exhausted"]
    assert factories.reload(row).state == "running"
    assert factories.event_kinds(row)[-1] == "claimed"


def lock_run(connection: Any, row: models.TaskRun) -> None:
    """Keep every verb that ends a task run of this run waiting."""
    with connection.cursor() as cursor:
        cursor.execute("select from flowforge.workflow_run where id = %s for no key update", (row.workflow_run_id,))


def test_a_completion_that_is_not_committed_yet_stands(database: Database, database_url: str) -> None:
    """B047: expire does not wait for it, and does not overwrite it."""
    row = lost_one(database)

    with situation.held_open(database_url, lambda c: transitions.finish(c, [situation.outcome(row)])):
        during = database.perform(transitions.expire, limit=10).taken
    after = database.perform(transitions.expire, limit=10).taken

    assert during == after == []
    assert factories.reload(row).state == "succeeded"


def test_of_two_at_once_the_second_finds_nothing_and_does_not_wait(database: Database, database_url: str) -> None:
    row = lost_one(database)

    with situation.held_open(database_url, lambda connection: transitions.expire(connection, limit=10).taken) as first:
        second = database.perform(transitions.expire, limit=10).taken

    assert [late.id for late in first.answer] == [row.id]
    assert second == []
    assert factories.event_kinds(row)[-1] == "expired"


def test_two_last_words_at_once_are_one_failure(database: Database, database_url: str) -> None:
    """B048: the second expirer saw the loss too, and its word changes nothing."""
    row = lost_one(database, lost=0)
    expirers = [Racer(database_url, expire) for _ in range(2)]

    with situation.held_open(database_url, lambda connection: lock_run(connection, row)):
        for expirer in expirers:
            expirer.start()
        wait_for(lambda: situation.waiting(database_url) == len(expirers))
    answers = [expirer.commit() for expirer in expirers]

    assert [[late.became for late in answer] for answer in answers] == [["exhausted"], ["exhausted"]]
    assert factories.event_kinds(row)[-2:] == ["claimed", "failed"]
    assert factories.reload(row).fencing_token == row.fencing_token + 1


def test_four_at_once_expire_a_hundred_leases_once_each(database: Database, database_url: str) -> None:
    """B048."""
    lost_many(database, 100, lost=1)
    barrier = Barrier(4)

    def sweep() -> list[Late]:
        with closing(psycopg2.connect(database_url)) as connection:
            barrier.wait()
            return [late for _ in range(5) for late in expire(connection, limit=30)]

    with ThreadPoolExecutor(4) as pool:
        sweeps = [pool.submit(sweep) for _ in range(4)]

    taken = [late.id for one in sweeps for late in one.result()]
    expired = models.TaskRunEvent.select().where(models.TaskRunEvent.kind == "expired")
    assert len(taken) == len(set(taken)) == 100
    assert {event.task_run_id for event in expired} == set(taken)
    assert expired.count() == 100
    assert {row.attempt for row in models.TaskRun.select()} == {2}


def test_locked_leases_do_not_hide_the_others(database: Database, database_url: str) -> None:
    """An open guard in a user's transaction locks its task run, for as long as that lasts."""
    locked = [lost_one(database) for _ in range(3)]
    free = lost_one(database)

    with situation.held_open(database_url, lambda c: [transitions.guard(c, r.id, r.fencing_token) for r in locked]):
        late = database.perform(transitions.expire, limit=3).taken

    assert [one.id for one in late] == [free.id]
