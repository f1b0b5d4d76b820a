"""A run is waited for after its commit, and for no longer than is asked; a result is read by its task's annotation."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from rich.console import Console

from flowforge import Workflow, insights
from flowforge.cli import output
from flowforge.client import Engine, Run
from flowforge.errors import (
    FlowForgeError,
    NotFinished,
    RunNotCommitted,
    SchemaMismatch,
    TaskFailed,
    UnreadableValue,
    WaitTimeout,
)
from flowforge.states import RunState, TaskState
from tests.integration.sales import DAY, end, extract


def assert_refused_at_once(run: Run) -> None:
    """Wait for a run that is not committed; nobody may sleep over that."""
    began = time.monotonic()
    with pytest.raises(RunNotCommitted, match="commit the transaction that started it before waiting") as caught:
        run.wait(timeout=30)

    assert time.monotonic() - began < 1
    assert caught.value.run_id == run.id


def test_waiting_is_refused_inside_the_starting_transaction_and_after_its_rollback(
    sales: Workflow[...], connection: Any
) -> None:
    run = sales.options(connection=connection).start(day=DAY)

    assert_refused_at_once(run)
    connection.rollback()
    assert_refused_at_once(run)


def test_waiting_is_refused_inside_a_transaction_on_flowforges_own_database(
    engine: Engine, sales: Workflow[...]
) -> None:
    with engine.database.atomic():
        run = sales.options(connection=engine.database).start(day=DAY)
        assert_refused_at_once(run)

    assert run.state == RunState.PENDING


def test_a_run_of_another_organization_is_not_there(sales: Workflow[...]) -> None:
    """B088."""
    assert_refused_at_once(replace(sales.start(day=DAY), organization=uuid4()))


def test_waiting_ends_after_the_time_that_is_given(sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)

    with pytest.raises(WaitTimeout, match=r"is still pending after 0\.02 s") as caught:
        run.wait(timeout=0.02)

    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.run_id, caught.value.state) == (run.id, "pending")


def test_waiting_ends_with_the_run(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.wait, 30)
        end(engine.database, run)

        assert waiting.result(30) == run.wait(timeout=0) == RunState.SUCCEEDED


def test_a_result_is_there_once_its_task_has_succeeded(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    task = sales.tasks["extract"]

    with pytest.raises(NotFinished, match=r"task 'extract' of run .* is ready: wait for the run"):
        run.result(task)
    end(engine.database, run, result="[1, 2]")

    assert run.result(task) == [1, 2]


def test_a_failed_task_has_an_error_for_a_result_and_a_skipped_one_none(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    error = {"type": "ValueError", "message": "no orders", "traceback": "Traceback …"}
    end(engine.database, run, TaskState.FAILED, error=json.dumps(error))

    with pytest.raises(TaskFailed, match=r"'extract' of run .* failed: ValueError: no orders\nTraceback") as failed:
        run.result(sales.tasks["extract"])
    with pytest.raises(TaskFailed, match=r"'transform' of run .* skipped$") as skipped:
        run.result(sales.tasks["transform"])

    assert (failed.value.error, skipped.value.error) == (error, None)
    assert run.wait() == RunState.FAILED


def test_a_task_that_the_runs_version_lacks_has_no_result(sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    later = sales.task(extract, key="later")

    with pytest.raises(FlowForgeError, match="has no task 'later': its version is another than this code's"):
        run.result(later)


def test_a_result_that_does_not_fit_this_codes_annotation_names_the_task(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    end(engine.database, run, result='"soon"')

    with pytest.raises(UnreadableValue, match="the result of task 'extract' does not fit its annotation"):
        run.result(sales.tasks["extract"])


def test_whoever_waits_in_vain_is_told_what_is_missing(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)

    with pytest.raises(WaitTimeout, match="task 'extract' is ready, and no worker has taken it: do a scheduler, and"):
        run.wait(timeout=0)
    engine.database.execute_sql("update flowforge.task_run set deferred_because = 'no such task' where state = 'ready'")
    with pytest.raises(WaitTimeout, match="task 'extract' waits, because no such task"):
        run.wait(timeout=0)


def test_a_database_without_tables_is_told_with_the_remedy(engine: Engine, sales: Workflow[...]) -> None:
    engine.database.execute_sql("drop schema flowforge cascade")

    with pytest.raises(SchemaMismatch, match="run `flowforge migrate`"):
        sales.start(day=DAY)


def test_a_failed_run_is_shown_with_the_end_of_its_traceback(engine: Engine, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    lines = "\n".join(f"line {n}" for n in range(40))
    error = {
        "type": "ValueError",
        "message": "no orders" + "!" * 150,
        "traceback": f"{lines}\nValueError: [red]no orders",
    }
    end(engine.database, run, TaskState.FAILED, error=json.dumps(error))
    summary = insights.run_summary(run.organization, run.id)
    assert summary

    wide = Console(width=400)
    with wide.capture() as shown:
        wide.print(output.run(summary, run.tasks(), {}))

    text = shown.get()
    assert "extract:\n" in text
    assert "line 39" in text
    assert "line 10" not in text
    assert "ValueError: [red]no orders" in text
    assert "!" * 150 in text
