"""Whatever the statistics say, a verb reads the rows that it is about, and no others."""

from __future__ import annotations

from contextlib import closing
from itertools import compress, product
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import psycopg2
import pytest

from flowforge import transitions
from flowforge.db import Database, fetch, proxy
from flowforge.states import TaskState
from flowforge.transitions import Mark, NewRun, Outcome, Release
from tests import factories
from tests.contract.conftest import another_database
from tests.contract.crowd import BATCH, QUEUE, Busy, add, fill_skewed, filling
from tests.contract.plans import Plan, explain, recorded, rows_read, run, sent_by, tables_scanned_whole
from tests.factories import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from uuid import UUID

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


def new_runs(workflow_id: UUID, size: int) -> list[NewRun]:
    """Return runs to start."""
    return [NewRun(uuid4(), workflow_id, "{}") for _ in range(size)]


#: Each verb at work on what is at work; `skip` follows upon failures.
VERBS: dict[str, Callable[[Connection, Busy], Any]] = {
    "start_run": lambda c, busy: transitions.start_run(c, new_runs(busy.workflow_id, len(busy.held))),
    "claim": lambda c, busy: transitions.claim(c, busy.published, owner="me", lease=15),
    "renew": lambda c, busy: transitions.renew(c, [(claim.id, claim.token) for claim in busy.held], lease=15),
    "finish": lambda c, busy: transitions.finish(c, outcomes(busy, TaskState.SUCCEEDED)),
    "skip": lambda c, busy: transitions.finish(c, outcomes(busy, TaskState.FAILED)),
    "retry": lambda c, busy: transitions.retry(c, [Release(claim.id, claim.token) for claim in busy.held]),
    "hand_back": lambda c, busy: transitions.hand_back(c, [Release(claim.id, claim.token) for claim in busy.held]),
    "defer": lambda c, busy: transitions.defer(c, [(dispatch, "no such task") for dispatch in busy.published], delay=5),
    "expire": lambda c, busy: transitions.expire(c, limit=len(busy.held)),
    "take": lambda c, busy: transitions.take(c, QUEUE, limit=len(busy.held), after=Mark()),
    "resend": lambda c, busy: transitions.resend(c, busy.messages),
    "guard": lambda c, busy: [transitions.guard(c, claim.id, claim.token) for claim in busy.held],
}

#: What a verb may read beyond its batch: statistics that know of no running task run make expire look at each of them,
#: through idx_taskrun_state_age. That is work in flight, and never the history or the backlog.
IN_FLIGHT = {"expire": 2 * BATCH}

#: PostgreSQL 15 alone, in a plan for all parameters and with an outbox that was empty when it was last analyzed, sorts
#: what is due in the queue instead of reading it in order. It does so until the next analyze, within a minute or two.
DUE = {"take": BATCH}

#: What takes up to a limit: the table whose rows it locks, and the call.
LIMITED: dict[str, tuple[str, Callable[[Connection, int], Any]]] = {
    "take": ("outbox_message", lambda c, limit: transitions.take(c, "default", limit=limit, after=Mark())[0]),
    "expire": ("task_run", lambda c, limit: transitions.expire(c, limit=limit)),
}

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


@pytest.fixture
def parameters(request: Any) -> str:
    """Whether the planner sees the parameters of a statement."""
    return str(request.param)


@pytest.fixture
def plans(situation: Situation, verb: str, size: int, parameters: str) -> Iterator[list[Plan]]:
    """The plans of all statements that a verb sends, with what each of them did; then undone."""
    connection, busy = situation.database.raw(), situation.busy.first(size)
    statements = sent_by(situation.database, lambda: VERBS[verb](connection, busy))
    with situation.database.atomic() as transaction:
        run(connection, f"set local plan_cache_mode = force_{PARAMETERS[parameters]}_plan")
        yield [explain(connection, statement, options=b"analyze, ") for statement in statements]
        transaction.rollback()


@pytest.fixture
def unforeseen(database: Database) -> Database:
    """A database of 100 due dispatches and 100 leases that are over, whose statistics are from when there was one."""
    workflow = factories.make_workflow({"only": Node()})
    database.perform(transitions.start_run, new_runs(workflow.id, 1))
    run(database.raw(), "analyze")
    database.perform(transitions.start_run, new_runs(workflow.id, 199))
    dispatches, _ = transitions.take(database.raw(), "default", limit=100, after=Mark())
    database.perform(transitions.claim, dispatches, owner="lost", lease=-60)
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
    table, take = LIMITED[verb]
    total = unlocked(url, table)
    with database.atomic() as transaction:
        deny(database.raw(), denied)
        taken = take(database.raw(), limit)
        locked = total - unlocked(url, table)
        transaction.rollback()
    return len(taken), locked


@pytest.mark.parametrize("parameters", PARAMETERS, indirect=True)
@pytest.mark.parametrize("size", [1, BATCH])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_no_more_than_its_batch(plans: list[Plan], verb: str, size: int, situation: Situation) -> None:
    """B106: also when the statistics were taken while everything was ready, and 500,000 have finished since."""
    excused = DUE.get(verb, 0) if situation.database.raw().server_version < 160_000 else 0
    for plan in plans:
        assert not tables_scanned_whole(plan) & BIG
        most = 4 * size + IN_FLIGHT.get(verb, 0) + excused
        assert {table: rows for table, rows in rows_read(plan).items() if table in BIG and rows > most} == {}

    assert sum(plan["Actual Rows"] for plan in plans) >= size, f"{verb} did not do its work"


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
