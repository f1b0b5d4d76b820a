"""Databases as they are after a year: 100,000 task runs and more, and a few that are at work."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg2

from flowforge import models, transitions
from flowforge.db import Database, fetch, load_statements, proxy
from flowforge.states import Paused, TaskState
from flowforge.transitions import Claim, Decision, Dispatch, Mark, NewRun, Subject
from tests import factories
from tests.contract import catalogue
from tests.factories import Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.models import Workflow

#: The most rows that one call of a verb is about: a full runway.
BATCH = 256
#: The queue of what is at work; the others' is `backlog`.
QUEUE = "busy"
#: Somebody's.
DECISION = Decision("me")

_SQL = load_statements("tests.contract", "rows.sql")


@dataclass(frozen=True)
class Busy:
    """What is at work in a full database: a batch for each thing that a verb may be asked to do."""

    workflow_id: UUID
    published: list[Dispatch]
    messages: list[tuple[UUID, datetime]]
    held: list[Claim]
    #: A run that has begun, and one that has failed, by their number of tasks: one, and a batch.
    going: Mapping[int, UUID]
    over: Mapping[int, UUID]

    @property
    def size(self) -> int:
        """How much one call is about."""
        return len(self.held)

    def first(self, size: int) -> Busy:
        """Return as much as one call of this size is about."""
        return replace(self, published=self.published[:size], messages=self.messages[:size], held=self.held[:size])


@contextmanager
def filling(url: str) -> Iterator[Connection]:
    """Connect to write what the verbs would have written: foreign keys unchecked, nothing vacuumed or analyzed."""
    with closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        fetch(connection, "set session_replication_role = replica", {})
        fetch(connection, "set work_mem = '256MB'", {})
        for table in catalogue.tables(connection):
            fetch(connection, f"alter table flowforge.{table} set (autovacuum_enabled = off)", {})
        yield connection


def add(connection: Connection, kind: str, **parameters: Any) -> None:
    """Add rows by a statement of rows.sql."""
    fetch(connection, _SQL[kind], {"versions": 1, **parameters})


@contextmanager
def without_indexes(connection: Connection) -> Iterator[None]:
    """Drop the indexes that are no constraint's for the block: many rows go faster that way."""
    dropped = [row for row in catalogue.rows(connection, "index") if row.name.startswith("idx_")]
    for row in dropped:
        fetch(connection, f"drop index flowforge.{row.name}", {})
    yield
    for row in dropped:
        fetch(connection, row.definition, {})


def fill(url: str) -> Busy:
    """Analyze when little was ever done and nothing waits; then add 100,000 task runs, of which half wait."""
    with filling(url) as connection:
        add(connection, "workflows", name="crowd-", workflows=100, tasks=1)
        add(connection, "runs", name="crowd-", runs=100, finished=True)
        fetch(connection, "analyze", {})
        with without_indexes(connection):
            add(connection, "runs", name="crowd-", runs=50_000, finished=False)
            add(connection, "runs", name="crowd-", runs=50_000, finished=True)
    return get_busy(url)


def fill_skewed(url: str) -> Busy:
    """Analyze when every task run is waiting; then finish them all, and add others until 500,000 are finished."""
    with filling(url) as connection:
        add(connection, "workflows", name="crowd-", workflows=100, tasks=5)
        add(connection, "runs", name="crowd-", runs=10_000, finished=False)
        fetch(connection, "analyze", {})
        add(connection, "finish_everything")
        with without_indexes(connection):
            add(connection, "runs", name="crowd-", runs=90_000, finished=True)
    return get_busy(url)


def get_busy(url: str) -> Busy:
    """Bring runs by the verbs themselves to where each verb and duty finds a batch to do."""
    with closing(Database(url)) as database:
        proxy.initialize(database)
        connection = database.raw()
        published, held = get_published_and_held(connection)
        add_late(connection)
        add_asked(connection)
        add_held(connection)
        query = models.OutboxMessage.select().where(models.OutboxMessage.published_at.is_null(is_null=False))
        messages = [(row.id, row.published_at) for row in query]
        going, over = ({size: get_run(connection, size, ended=ended) for size in (1, BATCH)} for ended in (False, True))
        lasting = models.Workflow.get(name="sales", version=1)
        return Busy(lasting.id, published, messages, held, going, over)


def get_published_and_held(connection: Connection) -> tuple[list[Dispatch], list[Claim]]:
    """Start four batches of runs; leave one due, one published, one owned, and one overdue."""
    options = {"queue": QUEUE, "attempts": 5}
    for lost in (2, 0):
        tasks = {"extract": Node((), {**options, "lost": lost}), "load": Node(("extract",))}
        start_batch(connection, factories.make_workflow(tasks), runs=2 * BATCH)
    published = take(connection, QUEUE, limit=3 * BATCH)
    published.sort(key=lambda dispatch: dispatch.task_run_id)
    held = transitions.claim(connection, published[:BATCH], owner="alive", lease=3600)
    transitions.claim(connection, published[BATCH : 2 * BATCH], owner="lost", lease=-60)
    return published[2 * BATCH :], held


def add_late(connection: Connection) -> None:
    """Leave a batch that no worker took in time, of runs whose deadline has passed."""
    late = factories.make_workflow({"only": Node((), {"queue": "late", "start_by": timedelta(microseconds=1)})})
    start_batch(connection, late, deadline=1e-6)


def add_asked(connection: Connection) -> None:
    """Leave a batch that is owned and was asked to stop."""
    start_batch(connection, factories.make_workflow({"only": Node((), {"queue": "asked"})}))
    dispatches = take(connection, "asked", limit=BATCH)
    transitions.claim(connection, dispatches, owner="deaf", lease=3600)
    for dispatch in dispatches:
        transitions.cancel(connection, dispatch.run_id, DECISION)


def add_held(connection: Connection) -> None:
    """Leave a batch, the most urgent of the queue, that a pause held back which is there no longer."""
    start_batch(connection, factories.make_workflow({"only": Node((), {"queue": QUEUE})}, name="held"), priority=-1)
    with pausing(connection, Subject(models.DEFAULT_ORGANIZATION, Paused.WORKFLOW, "held")):
        assert take(connection, QUEUE, limit=BATCH) == []


def get_run(connection: Connection, tasks: int, *, ended: bool) -> UUID:
    """Start a run of a task and others that wait for it; with `ended` that task fails, and so does the run."""
    name = f"{'over' if ended else 'going'}-{tasks}"
    nodes = {"task_1": Node((), {"queue": name})} | {f"task_{n}": Node(("task_1",)) for n in range(2, tasks + 1)}
    start_batch(connection, factories.make_workflow(nodes, name=name), runs=1)
    [dispatch] = take(connection, name, limit=1)
    if ended:
        [claim] = transitions.claim(connection, [dispatch], owner="alive", lease=3600)
        transitions.finish(connection, [factories.outcome(claim, TaskState.FAILED)])
    return dispatch.run_id


@contextmanager
def pausing(connection: Connection, subject: Subject) -> Iterator[None]:
    """Pause a subject for the block; what was held in it stays so."""
    assert transitions.pause(connection, subject, DECISION)
    yield
    assert transitions.resume(connection, subject, DECISION)


def queue(name: str) -> Subject:
    """Return a queue, to be paused."""
    return Subject(models.DEFAULT_ORGANIZATION, Paused.QUEUE, name)


def take(connection: Connection, queue: str, *, limit: int) -> list[Dispatch]:
    """Publish what is due in a queue."""
    return transitions.take(connection, queue, limit=limit, after=Mark()).dispatches


def start_batch(
    connection: Connection, workflow: Workflow, *, runs: int = BATCH, priority: int = 0, deadline: float | None = None
) -> None:
    """Start runs of a workflow."""
    new = [NewRun(uuid4(), workflow.id, "{}", priority, deadline=deadline) for _ in range(runs)]
    assert len(transitions.start_run(connection, new)) == runs
