"""renew: running -> running with a later expiry; it skips locked rows and never waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flowforge import transitions
from flowforge.states import TaskState
from flowforge.transitions import Renewal
from tests import factories
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.db import Database


def test_the_owner_keeps_a_task_run_for_longer(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)

    answer = database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token)], lease=60))

    now = factories.reload(row)
    assert answer == {(row.id, row.fencing_token): "renewed"}
    assert (now.lease_expires_at - row.lease_expires_at).total_seconds() > 40
    assert (now.lease_owner, now.fencing_token, now.attempt) == (row.lease_owner, row.fencing_token, row.attempt)


def test_a_renewal_changes_the_expiry_and_nothing_else(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token)], lease=60))

    assert situation.changed_since(before) == {"task_run"}
    assert {**factories.reload(row).__data__, "lease_expires_at": row.lease_expires_at} == row.__data__


def test_each_is_renewed_by_its_own_lease(database: Database) -> None:
    rows = [situation.in_state(database, TaskState.RUNNING) for _ in range(2)]
    short, long = (Renewal(row.id, row.fencing_token, lease, 3600) for row, lease in zip(rows, (5, 600), strict=True))

    database.perform(transitions.renew, [short, long])

    expiries = [factories.reload(row).lease_expires_at for row in rows]
    assert 590 < (expiries[1] - expiries[0]).total_seconds() < 600


@pytest.mark.parametrize("span", [30, -30], ids=["running out", "over"])
def test_no_lease_outlives_the_attempts_own_time(database: Database, span: float) -> None:
    """B052: an attempt that hangs in C code renews itself no longer than it may run, and is then expired."""
    row = situation.in_state(database, TaskState.RUNNING)

    database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token)], lease=60, span=span))

    now = factories.reload(row)
    assert (now.lease_expires_at - now.started_at).total_seconds() == span
    assert len(database.perform(transitions.expire, limit=10).taken) == (span < 0)


def test_who_is_asked_to_cancel_hears_of_it_and_keeps_the_lease(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    situation.ask_to_cancel(row)

    answer = database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token)], lease=60))

    assert answer == {(row.id, row.fencing_token): "cancel"}
    assert factories.reload(row).lease_expires_at > row.lease_expires_at


def test_one_batch_has_an_answer_for_each(database: Database) -> None:
    kept, ended, asked = (situation.in_state(database, TaskState.RUNNING) for _ in range(3))
    database.perform(transitions.finish, [situation.outcome(ended)])
    situation.ask_to_cancel(asked)

    held = [(row.id, row.fencing_token) for row in (kept, ended, asked)]
    answer = database.perform(transitions.renew, factories.renewals(held, lease=60))

    assert answer == dict(zip(held, ("renewed", "lost", "cancel"), strict=True))


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    assert database.perform(transitions.renew, factories.renewals([], lease=60)) == {}

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_what_does_not_run_is_lost(database: Database, state: TaskState) -> None:
    row = situation.in_state(database, state)
    before = situation.picture()

    answer = database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token)], lease=60))

    assert answer == {(row.id, row.fencing_token): "lost"}
    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("off", [-1, 1], ids=["stale", "future"])
def test_another_token_is_lost(database: Database, off: int) -> None:
    """B051: who was paused while another took over renews nothing."""
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    answer = database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token + off)], lease=60))

    assert answer == {(row.id, row.fencing_token + off): "lost"}
    assert situation.changed_since(before) == set()


def test_a_late_renewal_keeps_the_lease(database: Database) -> None:
    row = factories.start_single(database)
    (claim,) = factories.claim(database, row, lease=-1)

    answer = database.perform(transitions.renew, factories.renewals([(claim.id, claim.token)], lease=15))

    assert answer == {(claim.id, claim.token): "renewed"}
    assert database.perform(transitions.expire, limit=10).taken == []


def test_of_two_renewals_at_once_the_second_is_busy_and_does_not_wait(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    held = [(row.id, row.fencing_token)]
    shorter, longer = factories.renewals(held, lease=60), factories.renewals(held, lease=600)

    with situation.held_open(database_url, lambda connection: transitions.renew(connection, shorter)) as first:
        second = database.perform(transitions.renew, longer)

    assert first.answer == {(row.id, row.fencing_token): "renewed"}
    assert second == {(row.id, row.fencing_token): "busy"}
    assert (factories.reload(row).lease_expires_at - row.lease_expires_at).total_seconds() < 60


def test_while_its_completion_is_open_a_renewal_is_busy_and_then_lost(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    held = [(row.id, row.fencing_token)]

    with situation.held_open(database_url, lambda c: transitions.finish(c, [situation.outcome(row)])):
        during = database.perform(transitions.renew, factories.renewals(held, lease=60))
    after = database.perform(transitions.renew, factories.renewals(held, lease=60))

    assert (during, after) == ({(row.id, row.fencing_token): "busy"}, {(row.id, row.fencing_token): "lost"})


def test_what_ended_at_this_token_is_lost_even_while_the_row_is_locked(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    held = [(row.id, row.fencing_token)]
    database.perform(transitions.finish, [situation.outcome(row)])

    with situation.held_open(database_url, lambda connection: lock(connection, row.id)):
        answer = database.perform(transitions.renew, factories.renewals(held, lease=60))

    assert answer == {(row.id, row.fencing_token): "lost"}


def lock(connection: Any, task_run: UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select from flowforge.task_run where id = %s for update", (str(task_run),))


def test_a_stale_renewal_is_lost_even_while_the_row_is_locked(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    present = factories.renewals([(row.id, row.fencing_token)], lease=60)

    with situation.held_open(database_url, lambda connection: transitions.renew(connection, present)):
        answer = database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token - 1)], lease=60))

    assert answer == {(row.id, row.fencing_token - 1): "lost"}


def test_an_old_token_beside_the_present_one_is_told_apart(database: Database) -> None:
    """B051: a process that holds both a lost attempt and its successor stops the former."""
    row = situation.in_state(database, TaskState.RUNNING)
    old, present = (row.id, row.fencing_token - 1), (row.id, row.fencing_token)

    answer = database.perform(transitions.renew, factories.renewals([old, present], lease=60))

    assert answer == {old: "lost", present: "renewed"}
