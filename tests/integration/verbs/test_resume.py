"""resume and unhold: what a pause held back is due again, once nothing else pauses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge import models, transitions
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import Paused, TaskState
from flowforge.transitions import Release, Subject
from tests import factories
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from flowforge.db import Database

KINDS = list(Paused)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_resume_what_was_held_is_due_again(database: Database, kind: Paused) -> None:
    row = factories.start_single(database)
    situation.pause(database, row, kind)
    situation.take(database)

    resumed = situation.resume(database, row, kind)
    released = database.perform(transitions.unhold)
    taken = situation.take(database)

    assert (resumed, released, situation.ids(taken)) == (True, 1, {row.id})
    assert list(models.Pause.select()) == []
    assert [claim.id for claim in database.perform(transitions.claim, taken, owner="w", lease=15)] == [row.id]
    assert situation.broken(database) == []


def test_a_run_that_has_ended_while_it_was_paused_is_resumed_without_a_word(database: Database) -> None:
    row = factories.start_single(database)
    (claimed,) = factories.claim(database, row)
    situation.pause(database, row, Paused.RUN)
    database.perform(transitions.finish, [factories.outcome(claimed)])

    assert situation.resume(database, row, Paused.RUN) is True

    assert [kind for kind, *_ in situation.run_history(row.workflow_run_id)][-2:] == ["paused", "succeeded"]
    assert situation.broken(database) == []


def test_what_is_not_held_is_not_let_go(database: Database) -> None:
    factories.start_single(database)
    before = situation.picture()

    assert database.perform(transitions.unhold) == 0

    assert situation.changed_since(before) == set()


def test_what_is_not_paused_is_not_resumed(database: Database) -> None:
    row = factories.start_single(database)
    before = situation.picture()

    assert [situation.resume(database, row, kind) for kind in KINDS] == [False, False, False]

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_pause_holds_stays_held(database: Database, kind: Paused) -> None:
    row = factories.start_single(database)
    for each in KINDS:
        situation.pause(database, row, each)
    situation.take(database)
    others = [other for other in KINDS if other is not kind]

    released = []
    for each in [*others, kind]:
        situation.resume(database, row, each)
        released.append(database.perform(transitions.unhold))

    assert released == [0, 0, 1]
    assert not situation.owed(row)[0].held


def test_what_is_paused_is_not_let_go(database: Database) -> None:
    row = factories.start_single(database)
    situation.pause(database, row, Paused.QUEUE)
    situation.take(database)
    before = situation.picture()

    assert database.perform(transitions.unhold) == 0

    assert situation.changed_since(before) == set()


def test_one_call_lets_go_no_more_than_its_limit(database: Database) -> None:
    """B030."""
    rows = [factories.start_single(database) for _ in range(5)]
    situation.pause(database, rows[0], Paused.QUEUE)
    situation.take(database)
    situation.resume(database, rows[0], Paused.QUEUE)

    assert [database.perform(transitions.unhold, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert situation.ids(situation.take(database)) == {row.id for row in rows}


def test_the_wait_before_a_retry_goes_on_while_it_is_paused(database: Database) -> None:
    row = situation.in_state(database, TaskState.RUNNING, attempts=3)
    database.perform(transitions.retry, [Release(row.id, row.fencing_token, delay=3600)])
    due = situation.owed(row)[0].available_at
    situation.pause(database, row, Paused.QUEUE)
    factories.claim(database, factories.reload(row))
    situation.resume(database, row, Paused.QUEUE)

    database.perform(transitions.unhold)

    (message,) = situation.owed(row)
    assert (message.held, message.available_at) == (False, due)
    assert situation.take(database) == []


def test_a_run_that_ended_while_it_was_paused_can_be_resumed(database: Database) -> None:
    row = factories.start_single(database)
    factories.claim(database, row)
    situation.pause(database, row, Paused.RUN)
    database.perform(transitions.finish, [situation.outcome(factories.reload(row))])

    assert situation.resume(database, row, Paused.RUN) is True

    assert [kind for kind, _, _ in situation.run_history(row.workflow_run_id)][-1] == "succeeded"
    assert list(models.Pause.select()) == []


def test_each_organization_pauses_and_resumes_its_own(database: Database) -> None:
    ours, theirs = (Subject(id_, Paused.QUEUE, "cpu") for id_ in (DEFAULT_ORGANIZATION, factories.make_organization()))

    paused = [database.perform(transitions.pause, one, situation.DECISION) for one in (ours, theirs)]
    resumed = database.perform(transitions.resume, ours, situation.DECISION)

    assert (paused, resumed) == ([True, True], True)
    assert [row.organization_id for row in models.Pause.select()] == [theirs.organization]
