"""run_inline carries out a run's plan in this process: the engine's rules and values, and no servers."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from flowforge import Context, NonRetryable, Retry, Skip, Workflow
from flowforge.errors import NotFinished, ParameterError, TaskFailed
from flowforge.states import RunState, TaskState, When


@dataclass(frozen=True)
class Sales:
    day: date
    region: str = "eu"


@dataclass(frozen=True)
class Totals:
    amount: Decimal


@pytest.fixture
def sales() -> Workflow[...]:
    return Workflow("daily-sales", Sales)


DAY = date(2026, 11, 29)


def succeed() -> int:
    return 1


def fail() -> int:
    raise ValueError("no orders")


def skip() -> int:
    raise Skip("nothing to load")


OUTCOMES: dict[str, Callable[[], int]] = {"succeeded": succeed, "failed": fail, "skipped": skip}


def states(run: Any) -> dict[str, str]:
    """Return key -> state of a run's tasks."""
    return {key: task.state.value for key, task in run.tasks.items()}


def test_the_whole_plan_is_carried_out(sales: Workflow[...]) -> None:
    @sales.task
    def extract(day: date, region: str) -> list[str]:
        return [f"{region}-{day.day}", f"{region}-{day.month}"]

    def count(orders: list[str], shard: int) -> int:
        return len(orders[shard::2])

    shards = [sales.task(count, key=f"count_{n}", inputs={"orders": extract, "shard": n}) for n in range(2)]

    @sales.task(inputs={"parts": shards, "by_name": dict(zip("ab", shards, strict=True))})
    def merge(parts: list[int], by_name: dict[str, int]) -> Totals:
        return Totals(Decimal(sum(parts) + sum(by_name.values())))

    run = sales.run_inline(day=DAY)

    assert run.state == RunState.SUCCEEDED
    assert set(states(run).values()) == {"succeeded"}
    assert run.result(extract) == ["eu-29", "eu-11"]
    assert run.result(merge) == Totals(Decimal(4))


def test_a_result_is_read_by_the_consumers_annotation(sales: Workflow[...]) -> None:
    @sales.task
    def extract(day: date) -> dict[str, Any]:
        return {"amount": Decimal("9.90"), "day": day}

    @sales.task
    def load(extract: Totals) -> str:
        return repr(extract)

    run = sales.run_inline(day=DAY)

    assert run.result(load) == "Totals(amount=Decimal('9.90'))"
    assert run.result(extract) == {"amount": "9.90", "day": "2026-11-29"}


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("left", OUTCOMES)
@pytest.mark.parametrize("right", OUTCOMES)
def test_a_rule_decides_by_how_the_upstreams_ended(sales: Workflow[...], when: When, left: str, right: str) -> None:
    upstream = [sales.task(OUTCOMES[left], key="left"), sales.task(OUTCOMES[right], key="right")]
    sales.task(succeed, key="after", after=upstream, when=when)

    run = sales.run_inline(day=DAY)

    unsucceeded, failed = 2 - [left, right].count("succeeded"), [left, right].count("failed")
    expected = "succeeded" if when.met(failed=failed, unsucceeded=unsucceeded) else "skipped"
    assert states(run) == {"left": left, "right": right, "after": expected}


def test_a_clean_up_runs_and_does_not_turn_red_into_green(sales: Workflow[...]) -> None:
    sales.task(fail, key="extract")
    sales.task(succeed, key="load", after=sales.tasks["extract"])
    sales.task(succeed, key="clean_up", after=sales.tasks["load"], when="all_done")

    run = sales.run_inline(day=DAY)

    assert states(run) == {"extract": "failed", "load": "skipped", "clean_up": "succeeded"}
    assert run.state == RunState.FAILED


def test_a_run_succeeds_without_what_it_does_not_require(sales: Workflow[...]) -> None:
    sales.task(fail, key="extra", required=False)
    sales.task(skip, key="maybe")

    run = sales.run_inline(day=DAY)

    assert run.state == RunState.SUCCEEDED
    assert states(run) == {"extra": "failed", "maybe": "skipped"}


def test_a_default_stands_in_for_an_upstream_without_result(sales: Workflow[...]) -> None:
    sales.task(fail, key="left")
    sales.task(succeed, key="right")

    @sales.task(when="all_done")
    def report(left: int = -1, right: int = -2) -> list[int]:
        return [left, right]

    assert sales.run_inline(day=DAY).result(report) == [-1, 1]


def attempts_of(sales: Workflow[...], *outcomes: BaseException | int, retry: Retry) -> tuple[TaskState, int]:
    """Run one task whose attempts end so; return how it ended and after how many attempts."""
    remaining = iter(outcomes)

    @sales.task(retry=retry)
    def flaky() -> int:
        if isinstance(outcome := next(remaining), BaseException):
            raise outcome
        return outcome

    ended = sales.run_inline(day=DAY).tasks["flaky"]
    return ended.state, ended.attempts


def test_a_failure_is_final_unless_asked_otherwise(sales: Workflow[...]) -> None:
    assert attempts_of(sales, ValueError(), 1, retry=Retry()) == ("failed", 1)


def test_a_failure_is_tried_again_without_waiting(sales: Workflow[...]) -> None:
    """B079."""
    retry = Retry(attempts=3, delay="1h", max_delay="1d")

    assert attempts_of(sales, ValueError(), ValueError(), 1, retry=retry) == ("succeeded", 3)


@pytest.mark.parametrize("error", [NonRetryable("never"), Skip("nothing to load")], ids=repr)
def test_some_exceptions_are_final_under_any_policy(sales: Workflow[...], error: Exception) -> None:
    state = "skipped" if isinstance(error, Skip) else "failed"

    assert attempts_of(sales, error, 1, retry=Retry(attempts=3)) == (state, 1)


def test_a_result_that_cannot_be_stored_is_final(sales: Workflow[...]) -> None:
    """B112."""
    assert attempts_of(sales, float("nan"), 1, retry=Retry(attempts=3)) == ("failed", 1)  # type: ignore[arg-type]


def test_an_argument_that_does_not_fit_is_final(sales: Workflow[...]) -> None:
    @sales.task
    def extract(day: date) -> int:
        return day.day

    @sales.task(retry=Retry(attempts=3))
    def load(extract: Totals) -> None: ...

    ended = sales.run_inline(day=DAY).tasks["load"]

    assert (ended.state, ended.attempts) == ("failed", 1)
    assert ended.error
    assert ended.error["message"].startswith("argument 'extract' of task 'load' does not fit its annotation")


def test_a_coroutine_functions_result_is_what_is_awaited(sales: Workflow[...]) -> None:
    @sales.task
    async def fetch(day: date) -> int:
        return day.day

    assert sales.run_inline(day=DAY).result(fetch) == 29


def test_the_context_tells_of_the_attempt(sales: Workflow[...]) -> None:
    seen: list[tuple[int, str, bool]] = []

    @sales.task(retry=Retry(attempts=2))
    def load(context: Context) -> str:
        context.progress(1, 2, "half")
        context.guard(object())
        context.log.info("here")
        seen.append((context.attempt, context.idempotency_key, context.cancelled))
        if context.attempt == 1:
            raise ValueError
        return f"{context.workflow}/{context.key}"

    run = sales.run_inline(day=DAY)

    assert run.result(load) == "daily-sales/load"
    assert seen == [(1, f"{run.id}/load", False), (2, f"{run.id}/load", False)]


def test_a_result_that_is_not_there_says_why(sales: Workflow[...]) -> None:
    failing = sales.task(fail)

    with pytest.raises(TaskFailed, match=r"task 'fail' of run .* failed: ValueError: no orders") as caught:
        sales.run_inline(day=DAY).result(failing)

    assert not isinstance(caught.value, NotFinished)
    assert caught.value.error
    assert "in fail" in caught.value.error["traceback"]


def test_parameters_are_checked(sales: Workflow[...]) -> None:
    sales.task(succeed)

    with pytest.raises(ParameterError, match="has no parameter 'dya'"):
        sales.run_inline(dya=DAY)


def test_no_servers_and_no_settings_are_needed() -> None:
    program = """if True:
        import flowforge
        flow = flowforge.Workflow("bare")
        @flow.task
        def extract() -> int:
            return 29
        print(flow.run_inline().result(extract))
    """
    bare = {"PATH": os.defpath}

    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True)

    assert done.stdout == "29\n"
