"""A start is one transaction, the caller's or its own: rolled back means no run, and equal keys mean one run."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from threading import Barrier
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import psycopg2.extras
import pytest
from peewee import DatabaseProxy, PostgresqlDatabase, SqliteDatabase

import flowforge
from flowforge import Run, Workflow, deploy, models, transitions
from flowforge.client import Engine, start_by_name
from flowforge.errors import (
    FlowForgeError,
    IdempotencyConflict,
    NotFinished,
    OptionError,
    ParameterError,
    RunNotCommitted,
    TaskFailed,
    UnknownWorkflow,
    UnstorableValue,
    WaitTimeout,
)
from flowforge.states import RunState, TaskState
from tests import factories
from tests.support import racing

DAY = date(2026, 11, 29)

#: Written once for each version, and harmless: a definition stays when the start that stored it is rolled back.
DEFINITION = {"workflow", "task", "task_dependency"}


@dataclass(frozen=True)
class Sales:
    day: date
    region: str = "eu"


def extract(day: date) -> list[int]: ...


def transform(extract: list[int]) -> dict[str, int]: ...


def define(name: str = "daily-sales") -> Workflow[...]:
    """Return a workflow of two tasks."""
    sales = Workflow(name, Sales)
    sales.task(extract)
    sales.task(transform)
    return sales


@pytest.fixture
def sales(engine: Engine) -> Workflow[...]:  # noqa: ARG001 - configured
    """A workflow that is not stored yet."""
    return define()


@pytest.fixture
def connection(database_url: str) -> Iterator[Any]:
    """The caller's own psycopg2 connection."""
    with closing(psycopg2.connect(database_url)) as connection:
        yield connection


@pytest.fixture
def peewee(database_url: str) -> Iterator[PostgresqlDatabase]:
    """The caller's own Peewee database."""
    database = PostgresqlDatabase(database_url)
    yield database
    database.close()


def rows(engine: Engine) -> dict[str, int]:
    """Return the number of rows in every table of FlowForge's schema that has any."""
    query = "select table_name from information_schema.tables where table_schema = 'flowforge'"
    tables = [name for (name,) in engine.database.execute_sql(query)]
    counts = {name: engine.database.execute_sql(f"select count(*) from flowforge.{name}").fetchone()[0] for name in tables}
    return {name: count for name, count in counts.items() if count}


def written(engine: Engine, before: dict[str, int]) -> set[str]:
    """Return the tables that have more rows than before, those of the definition apart."""
    return {table for table, count in rows(engine).items() if count != before.get(table, 0)} - DEFINITION


def end(engine: Engine, run: Run, state: TaskState = TaskState.SUCCEEDED, **values: Any) -> None:
    """Claim and end the task runs of a run, one after another, as a worker would."""
    ready = (models.TaskRun.workflow_run == run.id) & (models.TaskRun.state == "ready")
    while row := models.TaskRun.get_or_none(ready):
        (claimed,) = factories.claim(engine.database, row)
        engine.database.perform(transitions.finish, [factories.outcome(claimed, state, **values)])


A_RUN = {"workflow_run", "task_run", "outbox_message", "workflow_run_event", "task_run_event"}


# In which transaction


def test_a_start_is_committed_when_it_returns(engine: Engine, sales: Workflow[...]) -> None:
    before = rows(engine)

    run = sales.start(day=DAY)

    assert run.state == RunState.PENDING
    assert written(engine, before) == A_RUN
    row = models.WorkflowRun.get_by_id(run.id)
    assert row.parameters == {"day": "2026-11-29", "region": "eu"}
    assert [task.state for task in row.task_runs.join(models.Task).order_by(models.Task.position)] == ["ready", "pending"]


@contextmanager
def in_psycopg2(url: str, **options: Any) -> Iterator[tuple[Any, Callable[[], None], Callable[[], None]]]:
    with closing(psycopg2.connect(url, **options)) as connection:
        yield connection, connection.commit, connection.rollback


@contextmanager
def in_peewee(database: Any, given: Any = None) -> Iterator[tuple[Any, Callable[[], None], Callable[[], None]]]:
    with database.manual_commit():
        database.begin()
        yield given or database, database.commit, database.rollback
    database.close()


def proxied(url: str) -> Any:
    """Return a proxy for a Peewee database, as applications keep one."""
    proxy = DatabaseProxy()
    proxy.initialize(PostgresqlDatabase(url))
    return proxy


CALLERS: dict[str, Callable[[str, Engine], Any]] = {
    "psycopg2": lambda url, _: in_psycopg2(url),
    "psycopg2 with rows as dicts": lambda url, _: in_psycopg2(url, cursor_factory=psycopg2.extras.RealDictCursor),
    "Peewee": lambda url, _: in_peewee(PostgresqlDatabase(url)),
    "Peewee proxy": lambda url, _: in_peewee(proxied(url)),
    "FlowForge's own": lambda _, engine: in_peewee(engine.database),
    "FlowForge's own, unsaid": lambda _, engine: in_peewee(engine.database, given=...),
}


@pytest.mark.parametrize("caller", CALLERS)
def test_a_run_exists_when_the_callers_transaction_commits(
    engine: Engine, sales: Workflow[...], database_url: str, caller: str
) -> None:
    """B025."""
    with CALLERS[caller](database_url, engine) as (connection, commit, _):
        options = {} if connection is ... else {"connection": connection}
        run = sales.options(**options, idempotency_key="key").start(day=DAY)
        commit()

    assert run.state == RunState.PENDING
    assert models.OutboxMessage.select().where(models.OutboxMessage.workflow_run == run.id).count() == 1


@pytest.mark.parametrize("caller", CALLERS)
def test_no_run_exists_when_the_callers_transaction_is_rolled_back(
    engine: Engine, sales: Workflow[...], database_url: str, caller: str
) -> None:
    """B025."""
    before = rows(engine)

    with CALLERS[caller](database_url, engine) as (connection, _, rollback):
        options = {} if connection is ... else {"connection": connection}
        run = sales.options(**options, idempotency_key="key").start(day=DAY)
        rollback()

    assert written(engine, before) == set()
    with pytest.raises(RunNotCommitted):
        _ = run.state
    assert sales.start(day=DAY).state == RunState.PENDING


def test_what_the_caller_wrote_and_the_run_are_committed_together(
    engine: Engine, sales: Workflow[...], connection: Any
) -> None:
    engine.database.execute_sql("create table public.orders (id integer)")

    with pytest.raises(psycopg2.errors.DivisionByZero), connection, connection.cursor() as cursor:
        cursor.execute("insert into public.orders values (1)")
        sales.options(connection=connection).start(day=DAY)
        cursor.execute("select 1 / 0")

    assert models.WorkflowRun.select().count() == 0
    assert engine.database.execute_sql("select count(*) from public.orders").fetchone() == (0,)


def test_a_connection_in_autocommit_gets_a_transaction_for_the_start(
    engine: Engine, sales: Workflow[...], connection: Any
) -> None:
    sales.start(day=DAY)
    before = rows(engine)
    connection.autocommit = True
    view = sales.options(connection=connection, idempotency_key="key")

    with pytest.raises(psycopg2.errors.UndefinedTable), broken(engine, "task_run"):
        view.start(day=DAY)
    assert written(engine, before) == set()

    assert view.start(day=DAY).state == RunState.PENDING


@contextmanager
def broken(engine: Engine, table: str) -> Iterator[None]:
    """Take a table away for the block."""
    engine.database.execute_sql(f"alter table flowforge.{table} rename to away")
    yield
    engine.database.execute_sql(f"alter table flowforge.away rename to {table}")


def test_a_snapshot_from_before_the_definition_is_told_so(sales: Workflow[...], connection: Any) -> None:
    connection.set_session(isolation_level="REPEATABLE READ")
    with connection.cursor() as cursor:
        cursor.execute("select 1")
    view = sales.options(connection=connection)

    with pytest.raises(FlowForgeError, match=r"'daily-sales' was stored after this transaction's snapshot was taken"):
        view.start(day=DAY)

    connection.rollback()
    run = view.start(day=DAY)
    connection.commit()
    assert run.state == RunState.PENDING


@pytest.mark.parametrize("given", [object(), "postgresql://", SqliteDatabase(":memory:")], ids=lambda it: type(it).__name__)
def test_another_kind_of_connection_is_refused_with_the_remedy(sales: Workflow[...], given: Any) -> None:
    with pytest.raises(TypeError, match="give a psycopg2 connection or a Peewee database on psycopg2"):
        sales.options(connection=given).start(day=DAY)

    assert models.WorkflowRun.select().count() == 0


# What is refused, before anything is written


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
    before = rows(engine)

    with pytest.raises(error):
        sales.options(idempotency_key="key").start(**given)

    assert rows(engine) == before


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", 101),
        ("priority", -101),
        ("idempotency_key", ""),
        ("idempotency_key", "k" * 256),
        ("idempotency_key", "a\x00b"),
    ],
)
def test_an_option_out_of_range_is_named(sales: Workflow[...], option: str, value: Any) -> None:
    """B086."""
    with pytest.raises(OptionError, match=rf"^{option}="):
        sales.options(**{option: value})


def test_a_workflow_without_tasks_is_refused(engine: Engine) -> None:
    before = rows(engine)

    with pytest.raises(flowforge.errors.DefinitionError, match="workflow 'bare' has no tasks"):
        Workflow("bare").start()

    assert rows(engine) == before


# Waiting and results


def test_waiting_inside_the_starting_transaction_is_refused_at_once(sales: Workflow[...], connection: Any) -> None:
    run = sales.options(connection=connection).start(day=DAY)

    for end_of_transaction in (connection.rollback, None):
        began = time.monotonic()
        with pytest.raises(RunNotCommitted, match="commit the transaction that started it") as caught:
            run.wait(timeout=30)

        assert time.monotonic() - began < 1
        assert caught.value.run_id == run.id
        if end_of_transaction:
            end_of_transaction()


def test_waiting_inside_a_transaction_on_flowforges_own_database_is_refused_at_once(
    engine: Engine, sales: Workflow[...]
) -> None:
    with engine.database.atomic():
        run = sales.options(connection=engine.database).start(day=DAY)

        began = time.monotonic()
        with pytest.raises(RunNotCommitted):
            run.wait(timeout=30)
        assert time.monotonic() - began < 1

    assert run.state == RunState.PENDING


def test_a_run_that_goes_on_longer_is_not_waited_for_for_ever(sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)

    with pytest.raises(WaitTimeout, match=r"is still pending after 0\.02 s") as caught:
        run.wait(timeout=0.02)

    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.run_id, caught.value.state) == (run.id, "pending")


def test_waiting_ends_with_the_run(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.wait, 30)
        end(engine, run)

        assert waiting.result(30) == RunState.SUCCEEDED


def test_a_result_is_read_by_its_tasks_annotation_once_it_has_ended(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    task = sales.tasks["extract"]

    with pytest.raises(NotFinished, match=r"task 'extract' of run .* is ready: wait for the run"):
        run.result(task)
    end(engine, run, result="[1, 2]")

    assert run.result(task) == [1, 2]


def test_a_result_of_a_failed_task_is_its_error(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    error = {"type": "ValueError", "message": "no orders", "traceback": "Traceback …"}
    end(engine, run, TaskState.FAILED, error=json.dumps(error))

    with pytest.raises(TaskFailed, match=r"task 'extract' of run .* failed: ValueError: no orders\nTraceback") as caught:
        run.result(sales.tasks["extract"])
    with pytest.raises(TaskFailed, match=r"task 'transform' of run .* skipped$"):
        run.result(sales.tasks["transform"])

    assert caught.value.error == error
    assert run.wait() == RunState.FAILED


def test_a_task_that_the_runs_version_lacks_has_no_result(sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    later = sales.task(extract, key="later")

    with pytest.raises(FlowForgeError, match="has no task 'later': its version is another than this code's"):
        run.result(later)


def test_a_run_of_another_organization_is_not_there(sales: Workflow[...]) -> None:
    """B088."""
    run = replace(sales.start(day=DAY), organization=uuid4())

    with pytest.raises(RunNotCommitted):
        run.wait()


# Idempotency


def test_the_same_key_and_parameters_are_the_same_run(engine: Engine, sales: Workflow[...]) -> None:
    view = sales.options(idempotency_key="daily-sales/2026-11-29")

    first, again = view.start(day=DAY), view.start(region="eu", day=DAY)
    end(engine, first)

    assert first == again == view.start("2026-11-29")
    assert models.WorkflowRun.select().count() == 1


def test_a_key_stands_for_its_run_in_every_version(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.options(idempotency_key="key").start(day=DAY)
    sales.task(extract, key="later")

    assert sales.options(idempotency_key="key").start(day=DAY) == run
    assert rows(engine)["workflow_run"] == 1


@pytest.mark.parametrize(("name", "given"), [("daily-sales", {"region": "us"}), ("other", {})], ids=["parameters", "workflow"])
def test_the_same_key_for_something_else_is_a_conflict(
    engine: Engine, sales: Workflow[...], name: str, given: dict[str, str]
) -> None:
    """B086."""
    run = sales.options(idempotency_key="key").start(day=DAY)
    before = rows(engine)

    with pytest.raises(IdempotencyConflict, match="'key' already stands for run") as caught:
        define(name).options(idempotency_key="key").start(day=DAY, **given)

    assert (caught.value.key, caught.value.run_id) == ("key", run.id)
    assert written(engine, before) == set()


def test_a_key_is_an_organizations_own(sales: Workflow[...]) -> None:
    """B086."""
    other = models.Organization.create(slug="other", name="Other")

    ours = sales.options(idempotency_key="key").start(day=DAY)
    theirs = sales.options(idempotency_key="key", organization=other.id).start(day=DAY)

    assert ours.id != theirs.id
    assert theirs.state == RunState.PENDING


def test_of_fifty_starts_with_one_key_at_once_one_makes_a_run(engine: Engine, sales: Workflow[...]) -> None:
    """B085."""
    view = sales.options(idempotency_key="key")

    runs = at_once(50, lambda _: view.start(day=DAY), engine)

    assert len(set(runs)) == 1
    assert models.WorkflowRun.select().count() == models.OutboxMessage.select().count() == 1


def at_once(number: int, call: Callable[[int], Any], engine: Engine) -> list[Any]:
    """Make the call in so many threads at once; return their answers."""
    barrier = Barrier(number)

    def turn(place: int) -> Any:
        with engine.database.connection_context():
            barrier.wait(30)
            return call(place)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(turn, range(number)))


def test_a_start_waits_for_another_with_its_key_that_is_not_committed(sales: Workflow[...], database_url: str) -> None:
    """B085: the loser arrives before the winner commits."""
    sales.start(day=DAY)

    def start(connection: Any) -> Run:
        return sales.options(connection=connection, idempotency_key="key").start(day=DAY)

    with racing(database_url, start, start) as (winner, loser):
        run = winner.answer

    assert loser.answer == run


def test_a_key_is_free_again_when_it_has_expired(engine: Engine, sales: Workflow[...]) -> None:
    """B086."""
    first = sales.options(idempotency_key="key").start(day=DAY)
    engine.database.execute_sql(
        "create or replace function flowforge.clock() returns timestamptz language sql volatile"
        " as $$ select clock_timestamp() + interval '25 hours' $$"
    )

    second = sales.options(idempotency_key="key").start(day=DAY, region="us")

    assert second != first
    assert sales.options(idempotency_key="key").start(day=DAY, region="us") == second


# Priority and wake-up


def test_the_priority_reaches_the_run_and_the_outbox(sales: Workflow[...]) -> None:
    run = sales.options(priority=-7).start(day=DAY)

    (message,) = models.OutboxMessage.select()
    assert (models.WorkflowRun.get_by_id(run.id).priority, message.priority) == (-7, -7)


def test_a_publisher_is_woken_now_or_soon(engine: Engine, sales: Workflow[...], connection: Any) -> None:
    assert engine.runway

    sales.start(day=DAY)
    sales.options(connection=connection).start(day=DAY)

    assert engine.runway.wait(1) == [b"now", b"soon"]


def test_a_start_needs_no_redis(sales: Workflow[...], engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    flowforge.configure(replace(engine.settings, redis_url="redis://127.0.0.1:1/0"))

    assert sales.start(day=DAY).state == RunState.PENDING
    assert caplog.messages[-1].startswith("runway.wake_failed")


# Versions


def versions() -> list[tuple[int, int]]:
    """Return the stored versions with the number of their tasks."""
    rows = models.Workflow.select().order_by(models.Workflow.version)
    return [(row.version, row.tasks.count()) for row in rows]


def version_of(run: Run) -> int:
    """Return the version that a run executes."""
    version: int = models.WorkflowRun.get_by_id(run.id).workflow.version
    return version


def test_the_same_structure_is_stored_once(sales: Workflow[...]) -> None:
    sales.start(day=DAY)
    define().start(day=DAY)

    assert versions() == [(1, 2)]


def test_a_second_structure_is_version_2_and_code_starts_its_own(sales: Workflow[...]) -> None:
    first = sales.start(day=DAY)
    changed = define()
    changed.task(extract, key="later")

    second, third = changed.start(day=DAY), define().start(day=DAY)

    assert [version_of(run) for run in (first, second, third)] == [1, 2, 1]
    assert versions() == [(1, 2), (2, 3)]


def test_a_definition_is_stored_as_it_is_written(engine: Engine) -> None:
    sales = define()
    retry = flowforge.Retry(attempts=5, lost=1, delay="500ms", factor=3, max_delay="1h")
    sales.task(transform, key="load", retry=retry, timeout="10m", queue="cpu", required=False)

    deploy(sales)

    row = models.Task.get(models.Task.key == "load")
    stored = flowforge.client.insights_of(row) if False else row
    assert (stored.position, stored.queue, stored.when, stored.required) == (3, "cpu", "all_succeeded", False)
    assert (stored.attempts, stored.lost, stored.retry_factor) == (5, 1, 3.0)
    seconds = [stored.retry_delay, stored.retry_max_delay, stored.timeout]
    assert [duration.total_seconds() for duration in seconds] == [0.5, 3600, 600]
    assert stored.inputs == {"extract": {"task": "extract"}}
    assert models.TaskDependency.select().where(models.TaskDependency.downstream == row.id).count() == 1


def test_one_new_structure_from_eight_threads_at_once_is_one_version(engine: Engine) -> None:
    runs = at_once(8, lambda _: define().start(day=DAY), engine)

    assert len(set(runs)) == 8
    assert versions() == [(1, 2)]


def test_eight_new_structures_from_eight_threads_at_once_are_eight_versions(engine: Engine) -> None:
    def start(place: int) -> Run:
        sales = define()
        sales.task(extract, key=f"later_{place}")
        return sales.start(day=DAY)

    at_once(8, start, engine)

    assert versions() == [(number, 3) for number in range(1, 9)]


def test_the_current_version_is_the_one_deployed_last(sales: Workflow[...]) -> None:
    changed = define()
    changed.task(extract, key="later")

    deployed = [deploy(definition).version for definition in (sales, changed, sales)]
    runs = []
    for definition in (sales, changed, sales):
        deploy(definition, repository="acme/etl", ref="main", commit="f" * 40)
        runs.append(start_by_name("daily-sales", {"day": "2026-11-29"}))

    assert deployed == [version_of(run) for run in runs] == [1, 2, 1]
    assert models.Deployment.select().count() == 6


def test_a_start_from_code_deploys_nothing(sales: Workflow[...]) -> None:
    deploy(sales)
    changed = define()
    changed.task(extract, key="later")
    changed.start(day=DAY)

    assert version_of(start_by_name("daily-sales", {"day": "2026-11-29"})) == 1


def test_a_start_by_name_has_the_same_options(sales: Workflow[...], connection: Any) -> None:
    deploy(sales)
    options = {"connection": connection, "idempotency_key": "key", "priority": 5}

    run = start_by_name("daily-sales", {"day": "2026-11-29", "region": "eu"}, **options)
    connection.commit()

    assert models.WorkflowRun.get_by_id(run.id).priority == 5
    assert sales.options(idempotency_key="key").start(day=DAY) == run


def test_a_name_that_was_not_deployed_is_unknown(sales: Workflow[...]) -> None:
    sales.start(day=DAY)
    deploy(define("weekly-sales"))

    with pytest.raises(UnknownWorkflow, match=r"no workflow 'daily-sales' \(did you mean 'weekly-sales'\?\)"):
        start_by_name("daily-sales", {"day": "2026-11-29"})


def test_parameters_given_by_name_are_storable_too(sales: Workflow[...], connection: Any) -> None:
    """B112."""
    deploy(sales)

    with pytest.raises(UnstorableValue, match="parameters of workflow 'daily-sales'"):
        start_by_name("daily-sales", {"day": float("nan")}, connection=connection)


def test_a_deployment_needs_no_user_name(sales: Workflow[...], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])

    deploy(sales)

    assert models.Deployment.get().deployed_by.startswith("cli:")


# Size


def test_a_workflow_of_five_thousand_tasks_starts(engine: Engine) -> None:
    wide = Workflow("wide", Sales)
    root = wide.task(extract)

    def count(orders: list[int], shard: int) -> int: ...

    shards = [wide.task(count, key=f"count_{n}", inputs={"orders": root, "shard": n}) for n in range(4_998)]

    @wide.task(inputs={"parts": shards})
    def merge(parts: list[int]) -> int: ...

    began = time.monotonic()
    first = wide.start(day=DAY)
    stored = time.monotonic()
    wide.start(day=DAY)

    print(f"first start {stored - began:.2f} s, second {time.monotonic() - stored:.2f} s")
    assert rows(engine)["task_run"] == 10_000
    assert models.OutboxMessage.select().where(models.OutboxMessage.workflow_run == first.id).count() == 1
    assert factories.task_run(first.id, "merge").upstream_remaining == 4_998
