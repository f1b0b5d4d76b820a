"""An idempotency key stands for one run, until it expires."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from flowforge import Run, Workflow, models
from flowforge.client import Engine
from flowforge.errors import IdempotencyConflict
from flowforge.states import RunState
from tests.integration.sales import DAY, define, end, rows, written
from tests.support import racing

THREADS = 50


def test_the_same_key_and_parameters_are_the_same_run(engine: Engine, sales: Workflow[...]) -> None:
    """B086."""
    view = sales.options(idempotency_key="daily-sales/2026-11-29")

    first = view.start(day=DAY)
    end(engine.database, first)

    assert first == view.start(region="eu", day=DAY) == view.start("2026-11-29")
    assert models.WorkflowRun.select().count() == 1


def test_a_key_stands_for_its_run_whatever_version_the_code_has(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.options(idempotency_key="key").start(day=DAY)

    assert define("daily-sales", "later").options(idempotency_key="key").start(day=DAY) == run
    assert rows(engine.database)["workflow_run"] == 1


@pytest.mark.parametrize(("name", "region"), [("daily-sales", "us"), ("weekly-sales", "eu")])
def test_the_same_key_for_something_else_is_a_conflict(
    engine: Engine, sales: Workflow[...], name: str, region: str
) -> None:
    """B081, B086: what is asked for is not dropped in silence because another run has the key."""
    run = sales.options(idempotency_key="key").start(day=DAY)
    before = rows(engine.database)

    with pytest.raises(IdempotencyConflict, match="'key' already stands for run") as caught:
        define(name).options(idempotency_key="key").start(day=DAY, region=region)

    assert (caught.value.key, caught.value.run_id) == ("key", run.id)
    assert written(engine.database, before) == set()


def test_a_key_is_its_organizations_own(sales: Workflow[...]) -> None:
    """B086."""
    other = models.Organization.create(slug="other", name="Other")

    ours = sales.options(idempotency_key="key").start(day=DAY)
    theirs = sales.options(idempotency_key="key", organization=other.id).start(day=DAY)

    assert ours.id != theirs.id
    assert theirs.state == RunState.PENDING


def test_of_fifty_starts_with_one_key_at_once_one_makes_a_run(engine: Engine, sales: Workflow[...]) -> None:
    """B085."""
    view, barrier = sales.options(idempotency_key="key"), Barrier(THREADS)

    def start(_: int) -> Run:
        with engine.database.connection_context():
            barrier.wait(30)
            return view.start(day=DAY)

    with ThreadPoolExecutor(THREADS) as pool:
        runs = set(pool.map(start, range(THREADS)))

    assert len(runs) == models.WorkflowRun.select().count() == models.OutboxMessage.select().count() == 1


def test_a_start_waits_for_one_with_its_key_that_is_not_committed(sales: Workflow[...], database_url: str) -> None:
    """B085."""
    sales.start(day=DAY)

    def start(connection: Any) -> Run:
        return sales.options(connection=connection, idempotency_key="key").start(day=DAY)

    with racing(database_url, start, start) as (winner, loser):
        pass

    assert winner.answer == loser.answer
    assert models.WorkflowRun.select().count() == 2


def test_a_key_is_free_again_when_it_has_expired(engine: Engine, sales: Workflow[...]) -> None:
    """B086."""
    view = sales.options(idempotency_key="key")
    first = view.start(day=DAY)
    engine.database.execute_sql(
        "create or replace function flowforge.clock() returns timestamptz language sql volatile"
        " as $$ select clock_timestamp() + interval '25 hours' $$"
    )

    second = view.start(day=DAY, region="us")

    assert second != first
    assert view.start(day=DAY, region="us") == second
