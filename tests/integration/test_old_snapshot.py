"""A transaction that stays open for long, a report or a dump, keeps dead rows; publishing does not walk them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg2
import pytest

from flowforge import models, transitions
from flowforge.broker import Runway
from flowforge.outbox import Publisher
from flowforge.states import TaskState
from flowforge.transitions import Mark
from tests import factories
from tests.contract.plans import explain, recorded, run, sent_by
from tests.factories import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis as redis_client

    from flowforge.db import Database
    from flowforge.settings import Settings

WAVES, TASKS = 20, 200


@pytest.fixture
def report(database_url: str) -> Iterator[Any]:
    """A transaction with a snapshot from before everything."""
    with closing(psycopg2.connect(database_url)) as connection:
        connection.set_session(isolation_level="REPEATABLE READ")
        connection.cursor().execute("select 1")
        yield connection


def work(database: Database, publisher: Publisher, runway: Runway) -> None:
    """Start a wave of runs, publish, claim and finish them."""
    workflow = models.Workflow.get_or_none() or factories.make_workflow({"only": Node()})
    runs = [transitions.NewRun(uuid4(), workflow.id, "{}") for _ in range(TASKS)]
    database.perform(transitions.start_run, runs)
    assert publisher.publish() == TASKS
    _, popped = runway.pop(["default"], limit=TASKS, seconds=1)
    dispatches = [transitions.Dispatch.decode(one) for one in popped]
    claims = database.perform(transitions.claim, dispatches, owner="me", lease=60)
    outcomes = [transitions.Outcome(one.id, one.run_id, one.token, TaskState.SUCCEEDED) for one in claims]
    database.perform(transitions.finish, outcomes)


def pages_read(url: str, mark: Mark) -> int:
    """Return how many pages a look for due dispatches reads, from a mark on."""
    with closing(recorded(url)) as database:
        *_, statement = sent_by(database, lambda: transitions.take(database.raw(), "default", limit=10, after=mark))
        plan = explain(database.raw(), statement, options=b"analyze, buffers, ")
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_an_old_snapshot_costs_a_look_nothing_and_is_forgotten_when_it_ends(
    database: Database, database_url: str, redis: redis_client.Redis, settings: Settings, report: Any
) -> None:
    """B105: dead entries are passed over by the low-water mark, and are gone with the snapshot."""
    runway = Runway(redis, settings.namespace)
    publisher = Publisher(database, runway, limit=TASKS)
    for _ in range(WAVES):
        work(database, publisher, runway)
    mark = publisher._low_water["default"].mark

    from_the_mark, from_the_start = pages_read(database_url, mark), pages_read(database_url, Mark())
    report.rollback()
    run(database.raw(), "vacuum flowforge.outbox_message")
    after = pages_read(database_url, Mark())

    assert from_the_start > 5 * from_the_mark
    assert after <= 2 * from_the_mark
