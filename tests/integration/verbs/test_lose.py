"""lose, and hand_back by an heir: the owner of a task run is known to be gone, before its lease is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge import transitions
from flowforge.states import TaskState
from flowforge.transitions import Release
from tests import factories
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.db import Database


def test_what_is_lost_is_due_again_at_once(database: Database) -> None:
    """B043: nobody waits for a lease whose owner is known to be gone."""
    row = situation.in_state(database, TaskState.RUNNING, lost=2)

    lost = database.perform(transitions.lose, "worker-1", [(row.id, row.fencing_token)])
    between = factories.reload(row)
    (late,) = database.perform(transitions.expire, limit=10).taken

    assert lost == [row.id]
    assert {**between.__data__, "lease_expires_at": row.lease_expires_at} == row.__data__
    assert (late.id, late.became) == (row.id, "ready")
    assert (factories.reload(row).attempt, factories.reload(row).losses_left) == (2, 1)


def test_a_lease_that_is_over_is_not_made_longer(database: Database) -> None:
    row = situation.in_state(database, TaskState.READY)
    factories.claim(database, row, lease=-60)
    row = factories.reload(row)

    database.perform(transitions.lose, "worker-1", [(row.id, row.fencing_token)])

    assert factories.reload(row).lease_expires_at == row.lease_expires_at


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_only_what_is_running_is_lost(database: Database, state: TaskState) -> None:
    """B077."""
    row = situation.in_state(database, state)
    before = situation.picture()

    assert database.perform(transitions.lose, "worker-1", [(row.id, row.fencing_token)]) == []

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize(("owner", "off"), [("worker-1", -1), ("worker-1", 1), ("worker-2", 0)])
def test_what_is_in_other_hands_is_not_lost(database: Database, owner: str, off: int) -> None:
    """B047: by token and by owner."""
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    assert database.perform(transitions.lose, owner, [(row.id, row.fencing_token + off)]) == []

    assert situation.changed_since(before) == set()


def test_an_empty_batch_changes_nothing(database: Database) -> None:
    situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    assert database.perform(transitions.lose, "worker-1", []) == []

    assert situation.changed_since(before) == set()


def test_what_is_locked_is_left_alone_and_not_waited_for(database: Database, database_url: str) -> None:
    """B051: a completion under way, or a guard, goes before."""
    row = situation.in_state(database, TaskState.RUNNING)
    owned = [(row.id, row.fencing_token)]

    with situation.held_open(database_url, lambda c: transitions.finish(c, [situation.outcome(row)])):
        during = database.perform(transitions.lose, "worker-1", owned)
    after = database.perform(transitions.lose, "worker-1", owned)

    assert (during, after) == ([], [])
    assert factories.reload(row).state == "succeeded"


def test_of_two_at_once_the_second_finds_nothing_and_does_not_wait(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    owned = [(row.id, row.fencing_token)]

    with situation.held_open(database_url, lambda c: transitions.lose(c, "worker-1", owned)) as first:
        second = database.perform(transitions.lose, "worker-1", owned)

    assert (first.answer, second) == ([row.id], [])


# hand_back by an heir


def test_an_heir_hands_back_what_its_owner_had(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING)

    answer = database.perform(transitions.hand_back, [Release(row.id, row.fencing_token)], owner="worker-1")

    now = factories.reload(row)
    assert answer == {row.id: "ready"}
    assert (now.state, now.attempt, now.fencing_token) == ("ready", 1, row.fencing_token + 1)
    assert len(situation.owed(row)) == 1


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_an_heir_hands_back_only_what_is_running(database: Database, state: TaskState) -> None:
    """B077."""
    row = situation.in_state(database, state)
    before = situation.picture()

    assert database.perform(transitions.hand_back, [Release(row.id, row.fencing_token)], owner="worker-1") == {}

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize(("owner", "off"), [("worker-1", -1), ("worker-1", 1), ("worker-2", 0)])
def test_an_heir_hands_back_nothing_that_is_in_other_hands(database: Database, owner: str, off: int) -> None:
    """B047: by token and by owner; what its owner had ended itself is no refusal."""
    row = situation.in_state(database, TaskState.RUNNING)
    before = situation.picture()

    assert database.perform(transitions.hand_back, [Release(row.id, row.fencing_token + off)], owner=owner) == {}

    assert situation.changed_since(before) == set()


def test_who_was_asked_to_cancel_is_lost_and_ends_cancelled(database: Database) -> None:
    """B076: an heir hands it back to nobody."""
    row = situation.in_state(database, TaskState.RUNNING)
    situation.ask_to_cancel(row)
    owned = [(row.id, row.fencing_token)]

    answer = database.perform(transitions.hand_back, [Release(*owned[0])], owner="worker-1")
    lost = database.perform(transitions.lose, "worker-1", owned)
    database.perform(transitions.expire, limit=10)

    assert (answer, lost) == ({row.id: "cancel"}, [row.id])
    assert factories.reload(row).state == "cancelled"


def test_of_two_heirs_at_once_the_first_counts(database: Database, database_url: str) -> None:
    """B048."""
    row = situation.in_state(database, TaskState.RUNNING)
    release = Release(row.id, row.fencing_token)

    with racing(
        database_url,
        lambda c: transitions.hand_back(c, [release], owner="worker-1"),
        lambda c: transitions.hand_back(c, [release], owner="worker-1"),
    ) as (first, second):
        pass

    assert (first.answer, second.answer) == ({row.id: "ready"}, {})
    assert (factories.reload(row).fencing_token, len(situation.owed(row))) == (row.fencing_token + 1, 1)


def test_of_an_heir_and_an_owner_at_once_the_first_counts(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)
    release = Release(row.id, row.fencing_token)

    with racing(
        database_url,
        lambda c: transitions.hand_back(c, [release], owner="worker-1"),
        lambda c: transitions.finish(c, [situation.outcome(row)]),
    ) as (first, second):
        pass

    assert first.answer == {row.id: "ready"}
    assert [ending.became for ending in second.answer] == ["refused"]
    assert factories.reload(row).state == "ready"
