"""pause and resume, and others at once: nothing is held for ever, and nothing begins after the pause."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from flowforge import models, transitions
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import Paused, TaskState
from flowforge.transitions import Mark, Subject, Taken
from tests import factories
from tests.integration.verbs import situation
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.db import Database

QUEUE = Subject(DEFAULT_ORGANIZATION, Paused.QUEUE, "default")


def the_run(row: models.TaskRun) -> Subject:
    """Return the run of a task run, to be paused."""
    return Subject(row.organization_id, Paused.RUN, str(row.workflow_run_id))


def pause(subject: Subject, connection: Any) -> bool:
    """Pause in the connection's transaction."""
    return transitions.pause(connection, subject, situation.DECISION)


def resume(subject: Subject, connection: Any) -> bool:
    """Resume in the connection's transaction."""
    return transitions.resume(connection, subject, situation.DECISION)


def claim(row: models.TaskRun, connection: Any) -> list[transitions.Claim]:
    """Claim a task run at its present token in the connection's transaction."""
    return transitions.claim(connection, [factories.dispatch(row)], owner="worker-1", lease=15)


def take(connection: Any) -> Taken:
    """Take in the connection's transaction."""
    return transitions.take(connection, "default", limit=10, after=Mark())


# Claims and dispatches


def test_a_claim_that_raced_with_a_resume_leaves_nothing_held_for_ever(database: Database, database_url: str) -> None:
    """B031: it saw the pause, and held the dispatch only after the resume had let go what it saw held."""
    row = factories.start_single(database)
    database.perform(transitions.pause, QUEUE, situation.DECISION)

    with situation.held_open(database_url, partial(claim, row)) as claimer:
        resumed = database.perform(transitions.resume, QUEUE, situation.DECISION)
        released_at_once = database.perform(transitions.unhold)
    held = situation.owed(row)[0].held
    released_later = database.perform(transitions.unhold)

    assert (claimer.answer, resumed, released_at_once, held, released_later) == ([], True, 0, True, 1)
    assert len(factories.claim(database, row)) == 1


def test_a_publisher_that_raced_with_a_resume_leaves_nothing_held_for_ever(
    database: Database, database_url: str
) -> None:
    row = factories.start_single(database)
    database.perform(transitions.pause, QUEUE, situation.DECISION)

    with situation.held_open(database_url, take) as publisher:
        database.perform(transitions.resume, QUEUE, situation.DECISION)
        released_at_once = database.perform(transitions.unhold)
    released_later = database.perform(transitions.unhold)

    assert (publisher.answer.dispatches, publisher.answer.read) == ([], 1)
    assert (released_at_once, released_later) == (0, 1)
    assert len(factories.claim(database, row)) == 1


def test_what_was_claimed_before_the_pause_was_committed_runs(database: Database, database_url: str) -> None:
    row = factories.start_single(database)

    with situation.held_open(database_url, partial(pause, QUEUE)):
        (claimed,) = factories.claim(database, row)
    database.perform(transitions.finish, [factories.outcome(claimed)])

    assert factories.reload(row).state == "succeeded"


def test_what_was_dispatched_before_the_pause_was_committed_is_turned_back(
    database: Database, database_url: str
) -> None:
    """B076."""
    row = factories.start_single(database)

    with situation.held_open(database_url, partial(pause, QUEUE)), database.atomic():
        (dispatch,) = take(database.raw()).dispatches
    claims = database.perform(transitions.claim, [dispatch], owner="worker-1", lease=15)

    assert claims == []
    assert situation.owed(row)[0].held


def test_a_claim_that_waited_while_it_was_paused_owns_or_holds_but_not_both(
    database: Database, database_url: str
) -> None:
    row = factories.start_single(database)
    defer = partial(transitions.defer, dispatches=[(factories.dispatch(row), "no such task")], delay=0)

    with racing(database_url, defer, partial(claim, row)) as (_, claimer):
        database.perform(transitions.pause, QUEUE, situation.DECISION)

    (claimed,) = claimer.answer
    assert (factories.reload(row).state, factories.reload(row).fencing_token) == ("running", claimed.token)
    assert situation.owed(row) == []
    assert situation.broken(database) == []


def test_who_holds_and_who_lets_go_do_not_wait_for_each_other(database: Database, database_url: str) -> None:
    row = factories.start_single(database)
    database.perform(transitions.pause, QUEUE, situation.DECISION)
    with database.atomic():
        take(database.raw())
    database.perform(transitions.resume, QUEUE, situation.DECISION)

    with situation.held_open(database_url, transitions.unhold) as first:
        second = database.perform(transitions.unhold)
        with database.atomic():
            taken = take(database.raw())

    assert (first.answer, second, taken.dispatches) == (1, 0, [])
    assert not situation.owed(row)[0].held


# Two decisions


@pytest.mark.parametrize("kind", [Paused.RUN, Paused.QUEUE])
def test_of_two_pauses_at_once_the_first_counts(database: Database, database_url: str, kind: Paused) -> None:
    row = factories.start_single(database)
    subject = the_run(row) if kind is Paused.RUN else QUEUE

    with racing(database_url, partial(pause, subject), partial(pause, subject)) as (first, second):
        pass

    assert (first.answer, second.answer) == (True, False)
    assert models.Pause.select().count() == 1
    assert [kind for kind, _, _ in situation.run_history(row.workflow_run_id)].count("paused") == (kind is Paused.RUN)


def test_a_pause_that_is_rolled_back_leaves_the_second_to_count(database: Database, database_url: str) -> None:
    factories.start_single(database)

    with racing(database_url, partial(pause, QUEUE), partial(pause, QUEUE)) as (first, second):
        first.roll_back()

    assert second.answer is True
    assert models.Pause.select().count() == 1


@pytest.mark.parametrize("kind", [Paused.RUN, Paused.QUEUE])
def test_of_two_resumes_at_once_the_first_counts(database: Database, database_url: str, kind: Paused) -> None:
    row = factories.start_single(database)
    subject = the_run(row) if kind is Paused.RUN else QUEUE
    database.perform(transitions.pause, subject, situation.DECISION)

    with racing(database_url, partial(resume, subject), partial(resume, subject)) as (first, second):
        pass

    assert (first.answer, second.answer) == (True, False)
    assert [kind for kind, _, _ in situation.run_history(row.workflow_run_id)].count("resumed") == (kind is Paused.RUN)


@pytest.mark.parametrize("kind", [Paused.RUN, Paused.QUEUE])
def test_a_pause_that_waits_for_a_resume_pauses_anew(database: Database, database_url: str, kind: Paused) -> None:
    row = factories.start_single(database)
    subject = the_run(row) if kind is Paused.RUN else QUEUE
    database.perform(transitions.pause, subject, situation.DECISION)

    with racing(database_url, partial(resume, subject), partial(pause, subject)) as (first, second):
        pass

    assert (first.answer, second.answer) == (True, True)
    assert models.Pause.select().count() == 1
    assert factories.claim(database, row) == []


def test_a_resume_at_once_with_the_pause_of_a_run_says_what_became_of_it(database: Database, database_url: str) -> None:
    """Either came first; but "resumed" is not said of what is paused, nor the other way round."""
    row = factories.start_single(database)

    with racing(database_url, partial(pause, the_run(row)), partial(resume, the_run(row))) as (first, second):
        pass

    assert first.answer is True
    assert second.answer == (models.Pause.select().count() == 0)
    assert len(factories.claim(database, row)) == second.answer


# Runs that end


def test_a_run_that_ends_at_once_is_not_paused(database: Database, database_url: str) -> None:
    """B077: the pause asks the locked run, not what it saw before it waited."""
    row = factories.start_single(database)
    (claimed,) = factories.claim(database, row)

    with racing(
        database_url, lambda c: transitions.finish(c, [factories.outcome(claimed)]), partial(pause, the_run(row))
    ) as (_, second):
        pass

    assert second.answer is False
    assert list(models.Pause.select()) == []


def test_a_run_that_is_cancelled_at_once_is_not_paused(database: Database, database_url: str) -> None:
    row = factories.start_single(database)

    with racing(
        database_url,
        lambda c: transitions.cancel(c, row.workflow_run_id, situation.DECISION),
        partial(pause, the_run(row)),
    ) as (_, second):
        pass

    assert second.answer is False
    assert list(models.Pause.select()) == []


def test_a_completion_waits_for_no_pause_of_a_queue(database: Database, database_url: str) -> None:
    row = situation.in_state(database, TaskState.RUNNING)

    with situation.held_open(database_url, partial(pause, QUEUE)):
        database.perform(transitions.finish, [situation.outcome(row)])

    assert factories.reload(row).state == "succeeded"
