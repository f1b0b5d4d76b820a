"""guard: a user's own transaction holds a task run that is running at its token, until it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg2
import pytest
from psycopg2.errors import LockNotAvailable

from flowforge import transitions
from flowforge.states import TaskState
from tests import factories
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from flowforge.db import Database


def test_the_owner_holds_its_task_run_and_nobody_takes_it(database: Database, database_url: str) -> None:
    """B047, B051: neither expiry nor another's completion comes between the guard and the commit."""
    row = factories.start_single(database)
    (claim,) = factories.claim(database, row, lease=-1)

    with situation.held_open(database_url, lambda c: transitions.guard(c, claim.id, claim.token)) as guard:
        expired = database.perform(transitions.expire, limit=10).taken
        renewed = database.perform(transitions.renew, factories.renewals([(claim.id, claim.token)], lease=15))
        with pytest.raises(LockNotAvailable):
            database.perform(transitions.finish, [factories.outcome(claim)], patience=0.05)

    assert guard.answer is True
    assert (expired, renewed) == ([], {(claim.id, claim.token): "busy"})
    assert factories.reload(row).state == TaskState.RUNNING


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_only_a_running_task_run_is_guarded(database: Database, state: TaskState) -> None:
    row = situation.in_state(database, state)

    assert database.perform(transitions.guard, row.id, row.fencing_token) is False


@pytest.mark.parametrize("off", [-1, 1], ids=["stale", "future"])
def test_another_token_guards_nothing(database: Database, off: int) -> None:
    row = situation.in_state(database, TaskState.RUNNING)

    assert database.perform(transitions.guard, row.id, row.fencing_token + off) is False


def test_two_guards_of_one_owner_share_it(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    one, two = psycopg2.connect(database_url), psycopg2.connect(database_url)

    assert transitions.guard(one, row.id, row.fencing_token)
    assert transitions.guard(two, row.id, row.fencing_token)

    for connection in (one, two):
        connection.close()
