"""Whatever the statistics say, a verb reads the rows that it is about, and no others."""

from __future__ import annotations

from contextlib import closing
from itertools import compress, product
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg2
import pytest

from flowforge import transitions
from flowforge.db import Database, fetch, proxy
from flowforge.transitions import Mark
from tests import factories
from tests.contract.at_work import OF_ONE, OTHERWISE, READS, VERBS, new_runs
from tests.contract.conftest import another_database
from tests.contract.crowd import BATCH, DECISION, Busy, add, fill_skewed, filling, pausing, queue
from tests.contract.plans import Plan, explain, recorded, rows_done, rows_read, run, sent_by, tables_scanned_whole
from tests.factories import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.embedded.servers import PostgresServer

BIG = {"workflow_run", "task_run", "outbox_message", "workflow_run_event", "task_run_event"}


class Situation(NamedTuple):
    """A full database and what is at work in it."""

    database: Database
    busy: Busy


#: What may be read beyond a batch: statistics that know of no running task run make these look at each of them, through
#: idx_taskrun_state_age. That is work in flight, and never the history or the backlog.
IN_FLIGHT = {"expire": 3 * BATCH, "asked_before": 3 * BATCH}

#: Without statistics that know of any, what is overdue is sorted instead of being read in order.
OVERDUE = {"past_deadline": BATCH, "published_before": BATCH}

#: PostgreSQL 15 alone, in a plan for all parameters and with an outbox that was empty when it was last analyzed, sorts
#: what is due in the queue instead of reading it in order. It does so until the next analyze, within a minute or two.
DUE = {"take": BATCH, "take beside a pause": BATCH, "take of what is paused": BATCH}

#: What takes up to a limit: the table whose rows it locks, and the call, which answers how many rows it took.
LIMITED: dict[str, tuple[str, Callable[[Connection, int], int]]] = {
    "take": ("outbox_message", lambda c, limit: transitions.take(c, "default", limit=limit, after=Mark()).read),
    "take beside a pause": ("outbox_message", lambda c, limit: take_beside(c, limit, "other")),
    "take of what is paused": ("outbox_message", lambda c, limit: take_beside(c, limit, "default")),
    "unhold": ("outbox_message", lambda c, limit: transitions.unhold(c, limit=limit)),
    "expire": ("task_run", lambda c, limit: len(transitions.expire(c, limit=limit).taken)),
}

#: What is planned, each with how much it is about.
CASES = [
    (call, size) for call in {**VERBS, **OTHERWISE, **READS} for size in (1, BATCH) if call not in OF_ONE or size == 1
]

#: A prepared statement is planned for its parameters, or once for all of them.
PARAMETERS = {"seen": "custom", "unseen": "generic"}

#: Ways of joining and sorting that a planner may be denied.
METHODS = ("material", "hashjoin", "hashagg", "sort", "mergejoin", "nestloop")


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


def take_beside(connection: Connection, limit: int, paused: str) -> int:
    """Take from one queue while one is paused; return how many dispatches were read."""
    transitions.pause(connection, queue(paused), DECISION)
    return transitions.take(connection, "default", limit=limit, after=Mark()).read


@pytest.fixture
def parameters(request: Any) -> str:
    """Whether the planner sees the parameters of a statement."""
    return str(request.param)


@pytest.fixture
def plans(situation: Situation, call: str, size: int, parameters: str) -> Iterator[list[Plan]]:
    """The plans of all statements that a call sends, with what each of them did; then undone."""
    connection, busy = situation.database.raw(), situation.busy.first(size)
    statements = sent_by(situation.database, lambda: {**VERBS, **OTHERWISE, **READS}[call](connection, busy))
    with situation.database.atomic() as transaction:
        run(connection, f"set local plan_cache_mode = force_{PARAMETERS[parameters]}_plan")
        yield [explain(connection, statement, options=b"analyze, ") for statement in statements]
        transaction.rollback()


@pytest.fixture
def unforeseen(database: Database) -> Database:
    """100 dispatches each that are due and held, and 100 leases that are over; statistics know of one task run."""
    connection = database.raw()
    workflow = factories.make_workflow({"only": Node()})
    database.perform(transitions.start_run, new_runs(workflow.id, 1))
    run(connection, "analyze")
    database.perform(transitions.start_run, new_runs(workflow.id, 299))
    dispatches, *_ = transitions.take(connection, "default", limit=100, after=Mark())
    database.perform(transitions.claim, dispatches, owner="lost", lease=-60)
    with pausing(connection, queue("default")):
        assert transitions.take(connection, "default", limit=100, after=Mark()).dispatches == []
    return database


def deny(connection: Connection, methods: Iterable[str]) -> None:
    """Deny the planner these methods until the transaction ends, and let it plan anew."""
    run(connection, "set local plan_cache_mode = force_custom_plan")
    for method in methods:
        run(connection, f"set local enable_{method} = off")


def unlocked(url: str, table: str) -> int:
    """Return how many rows of a table nobody has locked."""
    with closing(psycopg2.connect(url)) as connection:
        rows = fetch(connection, f"select id from flowforge.{table} for no key update skip locked", {})
        connection.rollback()  # before the server would by itself
        return len(rows)


def taken_and_locked(database: Database, url: str, verb: str, limit: int, denied: Iterable[str]) -> tuple[int, int]:
    """Return how many rows a verb took, and how many it had locked before it was undone."""
    table, call = LIMITED[verb]
    total = unlocked(url, table)
    with database.atomic() as transaction:
        deny(database.raw(), denied)
        taken = call(database.raw(), limit)
        locked = total - unlocked(url, table)
        transaction.rollback()
    return taken, locked


@pytest.mark.parametrize("parameters", PARAMETERS, indirect=True)
@pytest.mark.parametrize(("call", "size"), CASES)
def test_a_call_reads_no_more_than_its_batch(plans: list[Plan], call: str, size: int, situation: Situation) -> None:
    """B106: also when the statistics were taken while everything was ready, and 500,000 have finished since."""
    excused = DUE.get(call, 0) if situation.database.raw().server_version < 160_000 else 0
    for plan in plans:
        assert not tables_scanned_whole(plan) & BIG
        most = 4 * size + IN_FLIGHT.get(call, 0) + OVERDUE.get(call, 0) + excused
        assert {table: rows for table, rows in rows_read(plan).items() if table in BIG and rows > most} == {}

    assert sum(map(rows_done, plans)) >= size, f"{call} did not do its work"


def test_every_verb_is_planned() -> None:
    # No verbs; one of idempotency keys, which test_indexes plans; and one for a single run at a time, by hand.
    others = {"start_run_parameters", "plan", "forget", "hold", "move"}
    assert {name for name in transitions.__all__ if name.islower()} - others == set(VERBS)


@pytest.mark.parametrize("limit", [1, 5])
@pytest.mark.parametrize("verb", LIMITED)
def test_a_limit_holds_under_every_plan(unforeseen: Database, database_url: str, verb: str, limit: int) -> None:
    every_choice = [tuple(compress(METHODS, choice)) for choice in product((0, 1), repeat=len(METHODS))]

    answers = {taken_and_locked(unforeseen, database_url, verb, limit, denied) for denied in every_choice}

    assert {(limit, limit)} == answers
