"""Databases as they are after a year: 100,000 task runs and more, and a few that are at work."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg2

from flowforge import models, transitions
from flowforge.db import Database, fetch, load_statements, proxy
from flowforge.transitions import Claim, Dispatch, Mark, NewRun
from tests import factories
from tests.contract import catalogue
from tests.factories import Node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

#: The most rows that one call of a verb is about: a full runway.
BATCH = 256
#: The queue of what is at work; the others' is `backlog`.
QUEUE = "busy"

_SQL = load_statements("tests.contract", "rows.sql")


@dataclass(frozen=True)
class Busy:
    """What is at work in a full database: a batch for each thing that a verb may be asked to do."""

    workflow_id: UUID
    published: list[Dispatch]
    messages: list[tuple[UUID, datetime]]
    held: list[Claim]

    def first(self, size: int) -> Busy:
        """Return as much as one call of this size is about."""
        return Busy(self.workflow_id, self.published[:size], self.messages[:size], self.held[:size])


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
    """Start four batches of runs by the verbs themselves; leave one due, one published, one owned, and one overdue."""
    with closing(Database(url)) as database:
        proxy.initialize(database)
        connection = database.raw()
        options = {"queue": QUEUE, "attempts": 5}
        lasting, fragile = (
            factories.make_workflow({"extract": Node((), {**options, "lost": lost}), "load": Node(("extract",))})
            for lost in (2, 0)
        )
        runs = [NewRun(uuid4(), workflow.id, "{}") for workflow in (lasting, fragile) for _ in range(2 * BATCH)]
        transitions.start_run(connection, runs)
        published, _ = transitions.take(connection, QUEUE, limit=3 * BATCH, after=Mark())
        published.sort(key=lambda dispatch: dispatch.task_run_id)
        held = transitions.claim(connection, published[:BATCH], owner="alive", lease=3600)
        transitions.claim(connection, published[BATCH : 2 * BATCH], owner="lost", lease=-60)
        messages = models.OutboxMessage.select().where(models.OutboxMessage.published_at.is_null(is_null=False))
        return Busy(lasting.id, published[2 * BATCH :], [(row.id, row.published_at) for row in messages], held)
