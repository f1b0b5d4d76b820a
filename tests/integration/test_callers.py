"""A start in the caller's transaction, with the real libraries: committed with it, or never there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from flowforge import IdempotencyConflict, models
from flowforge.states import RunState
from tests.integration.callers import ASYNC_CALLERS, CALLERS, RolledBack, on_async_psycopg, on_psycopg
from tests.integration.sales import DAY, rows, written

if TYPE_CHECKING:
    from flowforge import Run, Workflow
    from flowforge.client import Engine

A_RUN = {"workflow_run", "task_run", "outbox_message", "workflow_run_event", "task_run_event"}


@pytest.fixture
def stored(engine: Engine, sales: Workflow[...]) -> dict[str, int]:
    """The number of rows in each table, once the workflow is stored."""
    sales.start(day=DAY)
    return rows(engine.database)


@pytest.mark.parametrize("caller", CALLERS)
def test_a_run_exists_once_the_caller_commits(
    engine: Engine, stored: dict[str, int], sales: Workflow[...], database_url: str, caller: str
) -> None:
    with CALLERS[caller](database_url) as connection:
        run = sales.options(connection=connection, idempotency_key="key").start(day=DAY)
        again = sales.options(connection=connection, idempotency_key="key").start(day=DAY)
        assert written(engine.database, stored) == set()

    assert again == run
    assert run.state is RunState.PENDING
    assert written(engine.database, stored) == A_RUN | {"idempotency_key"}


@pytest.mark.parametrize("caller", CALLERS)
def test_nothing_exists_once_the_caller_rolls_back(
    engine: Engine, stored: dict[str, int], sales: Workflow[...], database_url: str, caller: str
) -> None:
    def start() -> None:
        with CALLERS[caller](database_url) as connection:
            sales.options(connection=connection, idempotency_key="key").start(day=DAY)
            sales.options(connection=connection).start_many(sales.prepare(day=DAY) for _ in range(3))
            raise RolledBack

    with pytest.raises(RolledBack):
        start()

    assert written(engine.database, stored) == set()


@pytest.mark.parametrize("caller", CALLERS)
def test_a_conflict_on_the_callers_connection_names_what_differs(
    stored: dict[str, int], sales: Workflow[...], database_url: str, caller: str
) -> None:
    """B086: also of a run that nobody else can see yet."""

    def start() -> None:
        with CALLERS[caller](database_url) as connection:
            sales.options(connection=connection, idempotency_key="key").start(day=DAY)
            sales.options(connection=connection, idempotency_key="key").start(day=DAY, region="us")

    with pytest.raises(IdempotencyConflict) as caught:
        start()

    assert caught.value.differs == ("parameter 'region'",)
    assert models.WorkflowRun.select().count() == stored["workflow_run"]


@pytest.mark.parametrize("caller", ASYNC_CALLERS)
def test_a_run_exists_once_the_async_caller_commits(
    engine: Engine, stored: dict[str, int], sales: Workflow[...], database_url: str, caller: str
) -> None:
    async def start() -> tuple[Run, Run, list[Run]]:
        async with ASYNC_CALLERS[caller](database_url) as connection:
            view = sales.options(connection=connection, idempotency_key="key")
            run, again = await view.start_async(day=DAY), await view.start_async(day=DAY)
            many = await sales.options(connection=connection).start_many_async([sales.prepare(day=DAY)])
            assert written(engine.database, stored) == set()
        return run, again, many

    run, again, many = asyncio.run(start())

    assert run == again
    assert {one.state for one in (run, *many)} == {RunState.PENDING}
    assert models.WorkflowRun.select().count() == stored["workflow_run"] + 2


@pytest.mark.parametrize("caller", ASYNC_CALLERS)
def test_nothing_exists_once_the_async_caller_rolls_back(
    engine: Engine, stored: dict[str, int], sales: Workflow[...], database_url: str, caller: str
) -> None:
    async def start() -> None:
        async with ASYNC_CALLERS[caller](database_url) as connection:
            await sales.options(connection=connection, idempotency_key="key").start_async(day=DAY)
            raise RolledBack

    with pytest.raises(RolledBack):
        asyncio.run(start())

    assert written(engine.database, stored) == set()


@pytest.mark.parametrize("caller", ASYNC_CALLERS)
def test_a_conflict_on_an_async_connection_names_what_differs(
    stored: dict[str, int], sales: Workflow[...], database_url: str, caller: str
) -> None:
    """B086."""

    async def start() -> None:
        async with ASYNC_CALLERS[caller](database_url) as connection:
            view = sales.options(connection=connection, idempotency_key="key")
            await view.start_async(day=DAY)
            await view.start_async(day=DAY, region="us")

    with pytest.raises(IdempotencyConflict, match="which differs in parameter 'region': choose another key"):
        asyncio.run(start())
    assert models.WorkflowRun.select().count() == stored["workflow_run"]


# What is refused


def test_a_connection_of_the_other_kind_is_refused_with_the_right_call(
    stored: dict[str, int], sales: Workflow[...], database_url: str
) -> None:
    async def wrongly() -> None:
        async with on_async_psycopg(database_url) as connection:
            sales.options(connection=connection).start(day=DAY)

    with pytest.raises(TypeError, match=r"use `await start_async\(…\)` with it"):
        asyncio.run(wrongly())
    with (
        on_psycopg(database_url) as connection,
        pytest.raises(TypeError, match="or call `start` with a connection that is not async"),
    ):
        asyncio.run(sales.options(connection=connection).start_async(day=DAY))
    assert models.WorkflowRun.select().count() == stored["workflow_run"]


def test_a_database_that_is_not_postgresql_is_refused(stored: dict[str, int], sales: Workflow[...]) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection, pytest.raises(TypeError, match=r"its paramstyle is 'qmark', and a start needs"):
        sales.options(connection=connection).start(day=DAY)
    engine.dispose()
    assert models.WorkflowRun.select().count() == stored["workflow_run"]


# Without a connection, from asynchronous code


def test_asynchronous_code_starts_and_waits_without_blocking_the_loop(sales: Workflow[...]) -> None:
    async def start() -> tuple[Run, int, list[str]]:
        ticks = asyncio.create_task(count_ticks())
        run = await sales.start_async(day=DAY)
        with pytest.raises(TimeoutError):
            await run.wait_async(timeout=0.3)
        kinds = [event.kind for event in await run.events_async()]
        assert [task.key for task in await run.tasks_async()] == ["extract", "transform"]
        ticks.cancel()
        return run, await ticks, kinds

    async def count_ticks() -> int:
        number = 0
        try:
            while True:
                await asyncio.sleep(0.01)
                number += 1
        except asyncio.CancelledError:
            return number

    run, ticks, kinds = asyncio.run(start())

    assert run.state is RunState.PENDING
    assert ticks > 10
    assert kinds == ["created", "created", "created"]
