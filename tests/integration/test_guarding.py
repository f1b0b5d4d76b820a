"""The guard in a user's own transaction, with the real libraries: while that is open nobody takes the task run."""

# Annotations are read at run time here, as in every module that defines tasks.
import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg2
import pytest
from psycopg2.errors import LockNotAvailable, SerializationFailure

from flowforge import Context, LeaseLost, OptionError, Run, Settings, Workflow, client, transitions
from flowforge.client import Engine
from flowforge.db import Database
from flowforge.states import TaskState
from flowforge.testing import Clock, Worker
from flowforge.transitions import Claim
from tests import factories
from tests.integration.callers import ASYNC_CALLERS, ASYNC_IN_AUTOCOMMIT, CALLERS, IN_AUTOCOMMIT, RolledBack, on_asyncpg
from tests.integration.verbs import situation
from tests.support import wait_for

pytest_plugins = ["flowforge.testing"]

OVER = -1.0  # a lease that is over: whoever may will take it


@pytest.fixture
def database(engine: Engine) -> Database:
    """The engine's own database: on it everybody else comes for the task run."""
    return engine.database


@pytest.fixture
def owned(database: Database) -> Claim:
    """A task run that is owned, by a lease that is over."""
    (claim,) = factories.claim(database, factories.start_single(database), lease=OVER)
    return claim


def is_kept(database: Database, owned: Claim) -> bool:
    """Let everybody else come for the task run; return whether it is kept from all of them."""
    renewed = database.perform(transitions.renew, factories.renewals([(owned.id, owned.token)], lease=OVER))
    expired = database.perform(transitions.expire, limit=10).taken
    if (list(renewed.values()), expired) != (["busy"], []):
        return False
    with pytest.raises(LockNotAvailable):
        database.perform(transitions.finish, [factories.outcome(owned)], patience=0.02)
    with pytest.raises(LockNotAvailable):
        database.perform(transitions.cancel, owned.run_id, situation.DECISION, patience=0.02)
    return True


def is_taken(database: Database, owned: Claim) -> bool:
    """Return whether expiry takes the task run now."""
    return [late.id for late in database.perform(transitions.expire, limit=10).taken] == [owned.id]


# Owned


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("caller", CALLERS)
def test_a_guard_lasts_until_its_transaction_ends(
    database: Database, database_url: str, owned: Claim, caller: str, end: str
) -> None:
    """B047, B051."""

    def write() -> None:
        with CALLERS[caller](database_url) as connection:
            client.guard(connection, owned.id, owned.token)
            client.guard(connection, owned.id, owned.token)
            assert is_kept(database, owned)
            if end == "rollback":
                raise RolledBack

    if end == "rollback":
        with pytest.raises(RolledBack):
            write()
    else:
        write()

    assert is_taken(database, owned)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("caller", ASYNC_CALLERS)
def test_an_async_guard_lasts_until_its_transaction_ends(
    database: Database, database_url: str, owned: Claim, caller: str, end: str
) -> None:
    """B047, B051."""

    async def write() -> None:
        async with ASYNC_CALLERS[caller](database_url) as connection:
            await client.guard_async(connection, owned.id, owned.token)
            await client.guard_async(connection, owned.id, owned.token)
            assert is_kept(database, owned)
            if end == "rollback":
                raise RolledBack

    if end == "rollback":
        with pytest.raises(RolledBack):
            asyncio.run(write())
    else:
        asyncio.run(write())

    assert is_taken(database, owned)


# Lost


@pytest.mark.parametrize("caller", CALLERS)
def test_who_owns_it_no_longer_is_told(database: Database, database_url: str, owned: Claim, caller: str) -> None:
    """B051."""
    database.perform(transitions.expire, limit=10)

    with CALLERS[caller](database_url) as connection, pytest.raises(LeaseLost) as lost:
        client.guard(connection, owned.id, owned.token)

    assert (lost.value.task_run_id, lost.value.token) == (owned.id, owned.token)
    assert str(lost.value) == f"task run {owned.id} is no longer owned at token {owned.token}"


@pytest.mark.parametrize("caller", ASYNC_CALLERS)
def test_who_owns_it_no_longer_is_told_in_async_code(
    database: Database, database_url: str, owned: Claim, caller: str
) -> None:
    """B051."""
    database.perform(transitions.expire, limit=10)

    async def write() -> None:
        async with ASYNC_CALLERS[caller](database_url) as connection:
            with pytest.raises(LeaseLost, match=f"task run {owned.id} is no longer owned at token {owned.token}"):
                await client.guard_async(connection, owned.id, owned.token)

    asyncio.run(write())


@pytest.mark.parametrize("off", [-1, 1], ids=["stale", "future"])
def test_another_token_guards_and_locks_nothing(database: Database, connection: Any, owned: Claim, off: int) -> None:
    with pytest.raises(LeaseLost):
        client.guard(connection, owned.id, owned.token + off)

    assert is_taken(database, owned)


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_what_does_not_run_is_not_guarded(database: Database, connection: Any, state: TaskState) -> None:
    row = situation.in_state(database, state)

    with pytest.raises(LeaseLost):
        client.guard(connection, row.id, row.fencing_token)


def test_what_is_not_there_is_not_guarded(connection: Any, engine: Engine) -> None:  # noqa: ARG001 - configured
    with pytest.raises(LeaseLost):
        client.guard(connection, uuid4(), 1)


def test_an_old_snapshot_guards_nothing(database: Database, connection: Any, owned: Claim) -> None:
    """B058: it still shows its owner what was true before another took it."""
    connection.set_session(isolation_level="REPEATABLE READ")
    with connection.cursor() as cursor:
        cursor.execute("select state from flowforge.task_run")
    database.perform(transitions.expire, limit=10)

    with pytest.raises(SerializationFailure):
        client.guard(connection, owned.id, owned.token)


# In autocommit


@pytest.mark.parametrize("caller", IN_AUTOCOMMIT)
def test_a_guard_without_a_transaction_is_refused_with_the_remedy(database_url: str, owned: Claim, caller: str) -> None:
    with (
        IN_AUTOCOMMIT[caller](database_url) as connection,
        pytest.raises(OptionError, match="it is in autocommit: begin a transaction, guard, write, commit") as refused,
    ):
        client.guard(connection, owned.id, owned.token)

    assert refused.value.name == "connection"


@pytest.mark.parametrize("caller", ASYNC_IN_AUTOCOMMIT)
def test_an_async_guard_without_a_transaction_is_refused_with_the_remedy(
    database_url: str, owned: Claim, caller: str
) -> None:
    async def write() -> None:
        async with ASYNC_IN_AUTOCOMMIT[caller](database_url) as connection:
            with pytest.raises(OptionError, match="it is in autocommit: begin a transaction, guard, write, commit"):
                await client.guard_async(connection, owned.id, owned.token)

    asyncio.run(write())


# In SQL


def guard_in_sql(connection: Any, id_: Any, token: int) -> None:
    """Guard as those do who write no Python."""
    with connection.cursor() as cursor:
        cursor.execute("select flowforge.guard(%s, %s)", (str(id_), token))


def test_a_guard_in_sql_lasts_as_long(database: Database, connection: Any, owned: Claim) -> None:
    guard_in_sql(connection, owned.id, owned.token)
    assert is_kept(database, owned)

    connection.commit()

    assert is_taken(database, owned)


@pytest.mark.parametrize("off", [-1, 1], ids=["stale", "future"])
def test_a_guard_in_sql_at_another_token_is_refused_with_a_hint(
    database: Database, connection: Any, owned: Claim, off: int
) -> None:
    """A serialization failure, because what is to be done is the same: roll back."""
    with pytest.raises(SerializationFailure) as refused:
        guard_in_sql(connection, owned.id, owned.token + off)

    assert refused.value.pgcode == "40001"
    assert refused.value.diag.message_primary == f"task run {owned.id} is no longer owned at token {owned.token + off}"
    assert refused.value.diag.message_hint == "roll back, and write nothing: another worker owns it"
    assert is_taken(database, owned)


@pytest.mark.parametrize("state", [state for state in TaskState if state != TaskState.RUNNING])
def test_what_does_not_run_is_not_guarded_in_sql(database: Database, connection: Any, state: TaskState) -> None:
    row = situation.in_state(database, state)

    with pytest.raises(SerializationFailure, match="is no longer owned at token"):
        guard_in_sql(connection, row.id, row.fencing_token)


# For longer than a lease


def test_a_guard_of_three_leases_costs_nobody_a_lease(database: Database, connection: Any) -> None:
    """Its own task run is not renewed and not taken, and its neighbours in the same process are renewed as ever."""
    clock, rows = Clock(database, lambda: None), [factories.start_single(database) for _ in range(3)]
    guarded, *neighbours = factories.claim(database, *rows, lease=15)
    client.guard(connection, guarded.id, guarded.token)

    for _ in range(5):
        clock.move(timedelta(seconds=10))  # takes what is over
        answers = database.perform(
            transitions.renew, factories.renewals([(c.id, c.token) for c in (guarded, *neighbours)], lease=15)
        )
        assert list(answers.values()) == ["busy", "renewed", "renewed"]

    connection.commit()
    assert [factories.event_kinds(row) for row in rows] == [["created", "claimed"]] * 3
    database.perform(transitions.finish, [factories.outcome(claim) for claim in (guarded, *neighbours)])
    assert {factories.reload(row).state for row in rows} == {"succeeded"}


# In a worker

LEASE = 0.9


@pytest.fixture
def flowforge_settings() -> Settings:
    """Settings of a worker whose leases are short."""
    return Settings(threads=4, grace=5, lease=LEASE)


@pytest.fixture
def url(flowforge_database: str) -> str:
    """The URL of a database with a table of the user's own."""
    with closing(psycopg2.connect(flowforge_database)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("create table public.effect (key text, attempt integer)")
    return flowforge_database


def effects(url: str) -> list[tuple[str, int]]:
    """Return what the users' tasks have written."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("select key, attempt from public.effect order by key, attempt")
        return list(cursor.fetchall())


def kinds(run: Run, key: str) -> list[str]:
    """Return the kinds of what happened to a task."""
    return [event.kind for event in run.events() if event.task == key]


def test_the_contexts_guard_held_for_three_leases_costs_nobody_a_lease(flowforge_worker: Worker, url: str) -> None:
    """B046: the keeper of this process renews the neighbours, and no scheduler takes the guarded ones."""
    flow, over = Workflow[[]]("guards"), threading.Event()

    @flow.task
    def guards(context: Context) -> None:
        with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
            context.guard(connection)
            cursor.execute("insert into public.effect values (%s, %s)", (context.key, context.attempt))
            over.wait(3 * LEASE)

    @flow.task
    async def guards_async(context: Context) -> None:
        async with on_asyncpg(url) as connection:
            await context.guard_async(connection)
            await connection.execute("insert into public.effect values ($1, $2)", context.key, context.attempt)
            await asyncio.sleep(3 * LEASE)

    @flow.task
    def neighbour(context: Context) -> bool:
        over.wait(3 * LEASE)
        return context.cancelled

    flowforge_worker.serve(flow)
    run = flow.start()

    assert run.wait(timeout=30) == "succeeded"
    assert effects(url) == [("guards", 1), ("guards_async", 1)]
    for key in flow.tasks:
        assert kinds(run, key) == ["created", "claimed", "succeeded"]
    assert run.result(neighbour) is False


def test_a_coroutine_that_blocks_its_event_loop_for_three_leases_keeps_its_own(flowforge_worker: Worker) -> None:
    """B050: whatever renews it runs on no event loop of the user's."""
    flow = Workflow[[]]("blocks")

    @flow.task
    async def block() -> None:
        time.sleep(3 * LEASE)  # noqa: ASYNC251 - on purpose

    flowforge_worker.serve(flow)
    run = flow.start()

    assert run.wait(timeout=30) == "succeeded"
    assert kinds(run, "block") == ["created", "claimed", "succeeded"]


@contextmanager
def noting(told: list[LeaseLost]) -> Iterator[None]:
    """Note that the block learns that the task run is another's."""
    try:
        yield
    except LeaseLost as error:
        told.append(error)
        raise


def late(url: str, go_on: threading.Event, told: list[LeaseLost], *, is_async: bool) -> Workflow[[]]:
    """Return a workflow whose first attempt is late, and learns that when it has written already."""
    flow = Workflow[[]]("late")

    def write(context: Context) -> None:
        if context.attempt == 1:
            go_on.wait(20)
        with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("insert into public.effect values (%s, %s)", (context.key, context.attempt))
            with noting(told):
                context.guard(connection)

    async def write_async(context: Context) -> None:
        if context.attempt == 1:
            await asyncio.to_thread(go_on.wait, 20)
        async with on_asyncpg(url) as connection:
            await connection.execute("insert into public.effect values ($1, $2)", context.key, context.attempt)
            with noting(told):
                await context.guard_async(connection)

    flow.task(write_async if is_async else write, key="write", interrupt="never")
    return flow


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_worker_that_wakes_too_late_writes_nothing(
    flowforge_worker: Worker, flowforge_clock: Clock, url: str, *, is_async: bool
) -> None:
    """B051."""
    go_on, told = threading.Event(), list[LeaseLost]()
    flow = late(url, go_on, told, is_async=is_async)
    flowforge_worker.serve(flow)
    run = flow.start()
    wait_for(lambda: run.tasks()[0].state == "running")

    flowforge_clock.move(timedelta(minutes=1))
    assert run.wait(timeout=30) == "succeeded"
    go_on.set()
    wait_for(lambda: "refused" in kinds(run, "write"))

    assert effects(url) == [("write", 2)]
    assert [error.token for error in told] == [1]
    assert kinds(run, "write") == ["created", "claimed", "expired", "claimed", "succeeded", "refused"]
