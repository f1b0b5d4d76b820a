"""A start is one transaction, the caller's or its own: rolled back means no run."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg2
import psycopg2.extras
import pytest
from peewee import DatabaseProxy, PostgresqlDatabase, SqliteDatabase

import flowforge
from flowforge import Workflow, models
from flowforge.client import Engine
from flowforge.errors import (
    DefinitionError,
    FlowForgeError,
    OptionError,
    ParameterError,
    RunNotCommitted,
    UnstorableValue,
)
from flowforge.states import RunState
from tests import factories
from tests.integration.sales import DAY, Sales, count, extract, rows, written

A_RUN = {"workflow_run", "task_run", "outbox_message", "workflow_run_event", "task_run_event"}

#: Options that name the caller's transaction, and its commit and rollback.
Caller = tuple[dict[str, Any], Callable[[], None], Callable[[], None]]


@contextmanager
def on_psycopg2(url: str, **options: Any) -> Iterator[Caller]:
    with closing(psycopg2.connect(url, **options)) as connection:
        yield {"connection": connection}, connection.commit, connection.rollback


@contextmanager
def on_peewee(database: Any, *, named: bool = True) -> Iterator[Caller]:
    with database.atomic() as transaction:
        yield {"connection": database} if named else {}, transaction.commit, transaction.rollback
    database.close()


def proxied(url: str) -> DatabaseProxy:
    """Return a database as Peewee applications often keep it."""
    proxy = DatabaseProxy()
    proxy.initialize(PostgresqlDatabase(url))
    return proxy


CALLERS: dict[str, Callable[[str, Engine], Any]] = {
    "psycopg2": lambda url, _: on_psycopg2(url),
    "psycopg2, rows as dicts": lambda url, _: on_psycopg2(url, cursor_factory=psycopg2.extras.RealDictCursor),
    "Peewee": lambda url, _: on_peewee(PostgresqlDatabase(url)),
    "Peewee, proxy": lambda url, _: on_peewee(proxied(url)),
    "FlowForge's database": lambda _, engine: on_peewee(engine.database),
    "FlowForge's database, not named": lambda _, engine: on_peewee(engine.database, named=False),
}


def test_a_start_is_committed_when_it_returns(engine: Engine, sales: Workflow[...]) -> None:
    before = rows(engine.database)

    run = sales.start(day=DAY)

    assert run.state == RunState.PENDING
    assert written(engine.database, before) == A_RUN
    assert models.WorkflowRun.get_by_id(run.id).parameters == {"day": "2026-11-29", "region": "eu"}
    assert [factories.task_run(run.id, key).state for key in sales.tasks] == ["ready", "pending"]


@pytest.mark.parametrize("caller", CALLERS)
def test_a_run_exists_once_the_callers_transaction_commits(
    engine: Engine, sales: Workflow[...], database_url: str, caller: str
) -> None:
    """B025."""
    with CALLERS[caller](database_url, engine) as (options, commit, _):
        run = sales.options(**options, idempotency_key="key").start(day=DAY)
        commit()

    assert run.state == RunState.PENDING
    assert models.OutboxMessage.get().workflow_run_id == run.id


@pytest.mark.parametrize("caller", CALLERS)
def test_no_run_exists_once_the_callers_transaction_is_rolled_back(
    engine: Engine, sales: Workflow[...], database_url: str, caller: str
) -> None:
    """B025."""
    before = rows(engine.database)

    with CALLERS[caller](database_url, engine) as (options, _, rollback):
        run = sales.options(**options, idempotency_key="key").start(day=DAY)
        rollback()

    assert written(engine.database, before) == set()
    with pytest.raises(RunNotCommitted):
        _ = run.state
    assert sales.start(day=DAY).state == RunState.PENDING


def test_the_callers_own_rows_and_the_run_are_committed_together(
    engine: Engine, sales: Workflow[...], connection: Any
) -> None:
    engine.database.execute_sql("create table public.orders (id integer)")

    def place_order(number: int) -> None:
        with connection, connection.cursor() as cursor:
            cursor.execute("insert into public.orders values (%s)", [number])
            sales.options(connection=connection).start(day=DAY)
            cursor.execute("select 1 / %s", [number])

    with pytest.raises(psycopg2.errors.DivisionByZero):
        place_order(0)
    assert (models.WorkflowRun.select().count(), count(engine.database, "public.orders")) == (0, 0)

    place_order(1)
    assert (models.WorkflowRun.select().count(), count(engine.database, "public.orders")) == (1, 1)


def test_a_connection_in_autocommit_gets_a_transaction_for_the_start(
    engine: Engine, sales: Workflow[...], connection: Any
) -> None:
    sales.start(day=DAY)
    before = rows(engine.database)
    connection.autocommit = True
    view = sales.options(connection=connection, idempotency_key="key")

    with without_table(engine, "outbox_message"), pytest.raises(psycopg2.errors.UndefinedTable):
        view.start(day=DAY)

    assert written(engine.database, before) == set()
    assert view.start(day=DAY).state == RunState.PENDING


@contextmanager
def without_table(engine: Engine, table: str) -> Iterator[None]:
    """Hide a table from statements for the block."""
    engine.database.execute_sql(f"alter table flowforge.{table} rename to hidden")
    yield
    engine.database.execute_sql(f"alter table flowforge.hidden rename to {table}")


def test_a_snapshot_from_before_the_definition_is_told(sales: Workflow[...], connection: Any) -> None:
    connection.set_session(isolation_level="REPEATABLE READ")
    connection.cursor().execute("select 1")
    view = sales.options(connection=connection, idempotency_key="once")

    with pytest.raises(FlowForgeError, match=r"'daily-sales' was stored after this transaction's snapshot was taken"):
        view.start(day=DAY)

    connection.commit()  # whoever goes on all the same has not reserved the key for nothing
    run = view.start(day=DAY)
    connection.commit()
    assert run.state == RunState.PENDING


@pytest.mark.parametrize(
    "given", [object(), "postgresql://", SqliteDatabase(":memory:")], ids=["object", "URL", "SQLite"]
)
def test_another_kind_of_connection_is_refused_with_the_remedy(sales: Workflow[...], given: Any) -> None:
    with pytest.raises(TypeError, match="give a psycopg2 or psycopg connection, a SQLAlchemy Session"):
        sales.options(connection=given).start(day=DAY)

    assert models.WorkflowRun.select().count() == 0


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, ParameterError),
        ({"day": "soon"}, ParameterError),
        ({"day": DAY, "regoin": "eu"}, ParameterError),
        ({"day": DAY, "region": "e\x00u"}, UnstorableValue),
    ],
    ids=["missing", "wrong", "unknown", "NUL"],
)
def test_wrong_parameters_write_nothing(
    engine: Engine, sales: Workflow[...], given: dict[str, Any], error: type[Exception]
) -> None:
    """B111."""
    before = rows(engine.database)

    with pytest.raises(error):
        sales.options(idempotency_key="key").start(**given)

    assert rows(engine.database) == before


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", 101),
        ("priority", -101),
        ("idempotency_key", ""),
        ("idempotency_key", "k" * 256),
        ("idempotency_key", "a\x00b"),
        ("deadline", 0),
        ("deadline", -1),
        ("deadline", "soon"),
        ("deadline", "367d"),
        ("deadline", float("nan")),
    ],
)
def test_an_option_out_of_range_is_named(sales: Workflow[...], option: str, value: Any) -> None:
    """B086, B091."""
    with pytest.raises(OptionError, match=rf"^{option}="):
        sales.options(**{option: value})


def test_a_workflow_without_tasks_does_not_start(engine: Engine) -> None:
    before = rows(engine.database)

    with pytest.raises(DefinitionError, match="workflow 'bare' has no tasks"):
        Workflow("bare").start()

    assert rows(engine.database) == before


def test_the_priority_reaches_the_run_and_the_outbox(sales: Workflow[...]) -> None:
    run = sales.options(priority=-7).start(day=DAY)

    assert models.WorkflowRun.get_by_id(run.id).priority == models.OutboxMessage.get().priority == -7


@pytest.mark.parametrize(
    ("own", "given", "seconds"), [(None, None, None), ("1h", None, 3600), (None, "90s", 90), ("1h", 90, 90)]
)
def test_a_runs_deadline_is_that_of_the_start_or_the_workflows(
    engine: Engine,  # noqa: ARG001 - configured
    own: str | None,
    given: float | str | None,
    seconds: float | None,
) -> None:
    sales = Workflow("daily-sales", Sales, deadline=own)
    sales.task(extract)

    run = sales.options(deadline=given).start(day=DAY)

    row = models.WorkflowRun.get_by_id(run.id)
    assert (row.deadline and (row.deadline - row.created_at).total_seconds()) == seconds


def test_limits_in_time_are_stored_with_the_version(engine: Engine) -> None:  # noqa: ARG001 - configured
    sales = Workflow("daily-sales", Sales, deadline="2h")
    sales.task(extract, timeout="10m", start_by="1.5s", lease="1m")

    run = sales.start(day=DAY)

    task = models.Task.get()
    limits = [task.timeout, task.start_by, task.lease, task.workflow.deadline]
    assert [limit.total_seconds() for limit in limits] == [600, 1.5, 60, 7200]
    owed = models.OutboxMessage.get(models.OutboxMessage.workflow_run == run.id)
    assert (owed.start_by - owed.created_at).total_seconds() == 1.5


def test_a_publisher_is_woken_now_or_soon(engine: Engine, sales: Workflow[...], connection: Any) -> None:
    assert engine.runway

    sales.start(day=DAY)
    sales.options(connection=connection).start(day=DAY)

    assert engine.runway.wait(1) == [b"now", b"soon"]


def test_a_start_needs_no_redis(engine: Engine, sales: Workflow[...], caplog: pytest.LogCaptureFixture) -> None:
    flowforge.configure(replace(engine.settings, redis_url="redis://127.0.0.1:1/0"))

    assert sales.start(day=DAY).state == RunState.PENDING
    assert caplog.messages[-1].startswith("runway.wake_failed")


@pytest.mark.usefixtures("engine")
def test_a_workflow_of_five_thousand_tasks_starts_in_seconds() -> None:
    def part(orders: list[int], number: int) -> int: ...

    def merge(parts: list[int]) -> int: ...

    wide = Workflow("wide", Sales)
    root = wide.task(extract)
    parts = [wide.task(part, key=f"part_{n}", inputs={"orders": root, "number": n}) for n in range(4_998)]
    wide.task(merge, inputs={"parts": parts})

    began = time.monotonic()
    run = wide.start(day=DAY)

    assert time.monotonic() - began < 20
    assert (models.TaskRun.select().count(), models.OutboxMessage.select().count()) == (5_000, 1)
    assert factories.task_run(run.id, "merge").upstream_remaining == 4_998
