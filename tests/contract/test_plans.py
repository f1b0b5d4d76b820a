"""Whatever the statistics say, a verb reads the rows that it is about, and no others."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import psycopg2
import pytest

from flowforge import transitions
from flowforge.db import Database, fetch, proxy
from flowforge.states import TaskState
from flowforge.transitions import Mark, NewRun, Outcome, Release
from tests.contract.conftest import another_database
from tests.contract.crowd import BATCH, QUEUE, Busy, add, fill_skewed, filling
from tests.contract.plans import explain, recorded, rows_read, sent_by, tables_scanned_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.embedded.servers import PostgresServer

BIG = {"workflow_run", "task_run", "outbox_message", "workflow_run_event", "task_run_event"}


class Situation(NamedTuple):
    """A full database and what is at work in it."""

    database: Database
    busy: Busy


def outcomes(busy: Busy, state: TaskState) -> list[Outcome]:
    """Return that all owned attempts ended this way."""
    return [Outcome(claim.id, claim.run_id, claim.token, state) for claim in busy.held]


#: Each verb at work on a batch; `finish` on success, and on failure, after which dependents are skipped.
VERBS: dict[str, Callable[[Connection, Busy], Any]] = {
    "start_run": lambda c, busy: transitions.start_run(
        c, [NewRun(uuid4(), busy.workflow_id, "{}") for _ in range(BATCH)]
    ),
    "claim": lambda c, busy: transitions.claim(c, busy.published, owner="me", lease=15),
    "renew": lambda c, busy: transitions.renew(c, [(claim.id, claim.token) for claim in busy.held], lease=15),
    "finish": lambda c, busy: transitions.finish(c, outcomes(busy, TaskState.SUCCEEDED)),
    "skip": lambda c, busy: transitions.finish(c, outcomes(busy, TaskState.FAILED)),
    "retry": lambda c, busy: transitions.retry(c, [Release(claim.id, claim.token) for claim in busy.held]),
    "hand_back": lambda c, busy: transitions.hand_back(c, [Release(claim.id, claim.token) for claim in busy.held]),
    "defer": lambda c, busy: transitions.defer(c, [(dispatch, "no such task") for dispatch in busy.published], delay=5),
    "expire": lambda c, _: transitions.expire(c, limit=BATCH),
    "take": lambda c, _: transitions.take(c, QUEUE, limit=BATCH, after=Mark()),
    "resend": lambda c, busy: transitions.resend(c, busy.messages),
    "guard": lambda c, busy: transitions.guard(c, busy.held[0].id, busy.held[0].token),
}

#: What planners do with joins and sorts, each of which may be forbidden.
METHODS = ("material", "hashjoin", "mergejoin", "nestloop", "hashagg", "sort", "indexscan", "bitmapscan", "seqscan")


@pytest.fixture(scope="module")
def skewed(postgres: PostgresServer, template: str) -> Iterator[tuple[str, Busy]]:
    """A database of 500,000 finished task runs, whose statistics say that all are ready."""
    with another_database(postgres, template) as url:
        yield url, fill_skewed(url)


@pytest.fixture(scope="module", params=["no", "fresh", "stale", "skewed"])
def situation(request: Any, postgres: PostgresServer, crowded: tuple[str, Busy]) -> Iterator[Situation]:
    """A full database in each state that its statistics may be in."""
    if request.param == "skewed":
        url, busy = request.getfixturevalue("skewed")
        yield from opened(url, busy)
        return
    template, busy = crowded
    with another_database(postgres, template) as url:
        with filling(url) as connection:
            if request.param == "no":
                add(connection, "forget_statistics")
            elif request.param == "fresh":
                fetch(connection, "analyze", {})
        yield from opened(url, busy)


def opened(url: str, busy: Busy) -> Iterator[Situation]:
    """Bind the models to a recorded database."""
    with closing(recorded(url)) as database:
        proxy.initialize(database)
        yield Situation(database, busy)


@pytest.fixture
def analyzed(situation: Situation, verb: str) -> Iterator[list[dict[str, Any]]]:
    """The plans, with what they did, of all statements that a verb sends; then undone."""
    connection = situation.database.raw()
    statements = sent_by(situation.database, lambda: VERBS[verb](connection, situation.busy))
    with situation.database.atomic() as transaction:
        yield [explain(connection, statement, options=b"analyze, ") for statement in statements]
        transaction.rollback()


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_no_more_than_its_batch(analyzed: list[dict[str, Any]], verb: str) -> None:
    for plan in analyzed:
        assert not tables_scanned_whole(plan) & BIG
        assert {table: rows for table, rows in rows_read(plan).items() if table in BIG and rows > 4 * BATCH} == {}

    assert sum(plan["Actual Rows"] for plan in analyzed) >= (BATCH if verb != "guard" else 1)


def test_every_verb_is_planned() -> None:
    assert {name for name in transitions.__all__ if name.islower()} - {"reserve"} == set(VERBS)
