"""run_inline carries out a run's plan in this process: the engine's rules, values and order, and no servers."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings

from flowforge import AttemptCancelled, Context, NonRetryable, Retry, Skip, Workflow
from flowforge.errors import NotFinished, ParameterError, TaskFailed, UnstorableValue
from flowforge.states import RunState, TaskState, When
from tests.model import Rule
from tests.plans import HOUR, End, Plan, Start, Step, check_order, define, plans


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


def stop() -> int:
    raise AttemptCancelled("enough")


OUTCOMES: dict[str, Callable[[], int]] = {"succeeded": succeed, "failed": fail, "skipped": skip, "cancelled": stop}


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


@pytest.mark.parametrize(
    ("tasks", "state"),
    [
        ({"stop": True}, RunState.CANCELLED),
        ({"stop": False}, RunState.SUCCEEDED),
        ({"stop": True, "fail": True}, RunState.FAILED),
        ({"stop": True, "fail": False}, RunState.CANCELLED),
        ({"stop": False, "fail": False}, RunState.SUCCEEDED),
    ],
    ids=str,
)
def test_a_run_is_cancelled_where_a_required_task_was_and_none_failed(
    sales: Workflow[...], tasks: dict[str, bool], state: RunState
) -> None:
    ways = {"stop": stop, "fail": fail}
    for key, required in tasks.items():
        sales.task(ways[key], key=key, required=required)
    sales.task(succeed)

    assert sales.run_inline(day=DAY).state == state


def test_a_cancelled_task_says_why_and_has_no_result(sales: Workflow[...]) -> None:
    task = sales.task(stop)

    run = sales.run_inline(day=DAY)

    assert [(event.kind.value, event.attempt) for event in run.events] == [("claimed", 1), ("cancelled", 1)]
    with pytest.raises(TaskFailed, match=r"task 'stop' of run .* cancelled: AttemptCancelled: enough"):
        run.result(task)


def handled(sales: Workflow[...]) -> Any:
    """Add a handler of each kind, and run; the one for failures shows what it was given."""

    @sales.on_failure
    def mourn(day: date, context: Context, extract: int = -1) -> str:
        return f"{context.key} {day} {extract}"

    sales.on_success(succeed, key="praise")
    return sales.run_inline(day=DAY)


@pytest.mark.parametrize("required", [True, False])
def test_the_handler_that_runs_is_that_of_the_runs_own_end(sales: Workflow[...], *, required: bool) -> None:
    sales.task(succeed, key="extract")
    sales.task(fail, key="load", required=required)
    sales.task(succeed, key="report", after=sales.tasks["load"])
    sales.task(succeed, key="apart")

    run = handled(sales)

    ends = {"extract": "succeeded", "load": "failed", "report": "skipped", "apart": "succeeded"}
    handler, other = ("mourn", "praise") if required else ("praise", "mourn")
    assert states(run) == {**ends, handler: "succeeded", other: "skipped"}
    assert list(states(run))[-1] == handler
    assert run.result(sales.tasks[handler]) == ("mourn 2026-11-29 1" if required else 1)
    assert run.state == (RunState.FAILED if required else RunState.SUCCEEDED)


@pytest.mark.parametrize("way", ["succeeded", "skipped", "cancelled"])
def test_on_success_runs_once_all_have_ended_and_none_failed(sales: Workflow[...], way: str) -> None:
    sales.task(OUTCOMES[way], key="extract")
    sales.task(succeed, key="load", after=sales.tasks["extract"])

    run = handled(sales)

    load = "succeeded" if way == "succeeded" else "skipped"
    assert states(run) == {"extract": way, "load": load, "mourn": "skipped", "praise": "succeeded"}
    assert run.state == (RunState.CANCELLED if way == "cancelled" else RunState.SUCCEEDED)


@pytest.mark.parametrize(("outcome", "kind"), [("failed", "on_failure"), ("succeeded", "on_success")])
def test_a_handler_that_fails_or_stops_changes_nothing(sales: Workflow[...], outcome: str, kind: str) -> None:
    sales.task(OUTCOMES[outcome], key="extract")
    getattr(sales, kind)(fail, key="failing")
    getattr(sales, kind)(stop, key="stopping")

    run = sales.run_inline(day=DAY)

    assert states(run) == {"extract": outcome, "failing": "failed", "stopping": "cancelled"}
    assert run.state == outcome


def test_a_handler_is_tried_again_by_its_own_policy(sales: Workflow[...]) -> None:
    sales.task(fail, key="extract")

    @sales.on_failure(retry=Retry(attempts=3))
    def mourn(context: Context) -> int:
        if context.attempt < 3:
            raise ValueError
        return context.attempt

    assert sales.run_inline(day=DAY).result(mourn) == 3


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


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), asyncio.CancelledError()], ids=repr)
def test_what_is_no_exception_is_a_failure_too(sales: Workflow[...], error: BaseException) -> None:
    """B061."""
    assert attempts_of(sales, error, 1, retry=Retry(attempts=2)) == ("succeeded", 2)


def test_ctrl_c_ends_the_run(sales: Workflow[...]) -> None:
    with pytest.raises(KeyboardInterrupt):
        attempts_of(sales, KeyboardInterrupt(), 1, retry=Retry(attempts=2))


FINAL = [(NonRetryable("never"), "failed"), (Skip("nothing to load"), "skipped"), (AttemptCancelled(), "cancelled")]


@pytest.mark.parametrize(("error", "state"), FINAL, ids=repr)
def test_some_exceptions_are_final_under_any_policy(sales: Workflow[...], error: Exception, state: str) -> None:
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


def test_it_works_where_an_event_loop_runs(sales: Workflow[...]) -> None:
    @sales.task
    async def fetch(day: date) -> int:
        await asyncio.sleep(0)
        return day.day

    @sales.task
    def ask(fetch: int) -> int:
        return asyncio.run(asyncio.sleep(0, fetch + 1))

    async def a_test() -> Any:
        return sales.run_inline(day=DAY)

    assert asyncio.run(a_test()).result(ask) == 30


def test_the_loop_goes_on_while_another_thread_runs_it(sales: Workflow[...]) -> None:
    """What a task asks of a server in the test's own loop is answered."""
    loop = asyncio.new_event_loop()

    @sales.task
    def ask() -> int:
        return asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 7), loop).result(timeout=10)

    assert loop.run_until_complete(asyncio.to_thread(sales.run_inline, day=DAY)).result(ask) == 7
    loop.close()


def test_tasks_run_in_the_callers_thread_and_context(sales: Workflow[...]) -> None:
    name = contextvars.ContextVar("name", default="")
    sales.task(lambda: [name.get(), threading.get_ident()], key="where")

    async def in_a_loop() -> Any:
        return sales.run_inline(day=DAY).tasks["where"].result

    name.set("mine")
    assert sales.run_inline(day=DAY).tasks["where"].result == ["mine", threading.get_ident()]
    assert asyncio.run(in_a_loop())[0] == "mine"


def test_the_context_tells_of_the_attempt(sales: Workflow[...]) -> None:
    seen: list[Context] = []

    @sales.task(retry=Retry(attempts=3))
    def load(context: Context) -> str:
        context.progress(1, 2, "half")
        context.guard(object())
        context.log.info("here")
        assert not context.cancelled
        seen.append(context)
        if context.attempt < 3:
            raise ValueError
        return f"{context.workflow}/{context.key}"

    run = sales.run_inline(day=DAY)

    assert run.result(load) == "daily-sales/load"
    assert [(context.attempt, context.token) for context in seen] == [(1, 1), (2, 3), (3, 5)]
    assert {(context.run_id, context.idempotency_key) for context in seen} == {(run.id, f"{run.id}/load")}
    assert len({context.task_run_id for context in seen}) == 1


def test_a_guard_of_asynchronous_code_guards_nothing_either(sales: Workflow[...]) -> None:
    @sales.task
    async def load(context: Context) -> str:
        await context.guard_async(object())
        return context.key

    assert sales.run_inline(day=DAY).result(load) == "load"


def test_each_attempt_reads_values_of_its_own(sales: Workflow[...]) -> None:
    @sales.task
    def extract() -> Any:
        return {"orders": [1]}

    def spoil(extract: Any, constant: Any) -> int:
        extract["orders"].append(2)
        constant.append(2)
        return len(extract["orders"]) + len(constant)

    tasks = [sales.task(spoil, key=key, inputs={"constant": [1]}) for key in ("first", "second")]

    run = sales.run_inline(day=DAY)

    assert [run.result(task) for task in tasks] == [4, 4]
    assert run.result(extract) == {"orders": [1]}


def test_values_come_back_as_postgresql_returns_them(sales: Workflow[...]) -> None:
    """Objects by the length of their keys, and numbers as `numeric` has them."""
    sales.task(lambda: {"b": 1e22, "aa": -0.0, "ä": 1e-7, "a": 1.0}, key="numbers")

    assert repr(sales.run_inline(day=DAY).tasks["numbers"].result) == (
        "{'a': 1.0, 'b': 10000000000000000000000, 'aa': 0.0, 'ä': 1e-07}"
    )


def test_what_is_too_large_is_refused_as_by_the_servers(sales: Workflow[...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["flowforge.client.engine"], "_engine", None)
    monkeypatch.setenv("FLOWFORGE_VALUE_LIMIT", "50")
    sales.task(lambda: "x" * 49, key="large")
    ended = sales.run_inline(day=DAY).tasks["large"]

    with pytest.raises(UnstorableValue, match="parameters of workflow 'daily-sales' has 60 bytes"):
        sales.run_inline(day=DAY, region="x" * 25)

    assert ended.error
    assert ended.error["type"] == "UnstorableValue"


def starts_of(plan: Plan) -> list[str]:
    """Carry a plan out; return the attempts in the order of their starts."""
    starts: list[Start] = []
    define("plan", plan, starts).run_inline()
    return [f"{key} {attempt}" for key, attempt in starts]


FAILS = (End.RAISE, End.RETURN)


def test_what_is_ready_goes_before_what_is_ready_later() -> None:
    plan = {"a": Step(Rule()), "after_a": Step(Rule(["a"])), "b": Step(Rule()), "after_b": Step(Rule(["b"]))}

    assert starts_of(plan) == ["a 1", "b 1", "after_a 1", "after_b 1"]


def test_what_waits_for_its_retry_holds_up_nothing() -> None:
    plan = {
        "a": Step(Rule(), FAILS, delay=2),
        "b": Step(Rule(), FAILS, delay=1),
        "c": Step(Rule(), FAILS),
        "after_c": Step(Rule(["c"])),
        "after_a": Step(Rule(["a"])),
    }

    assert starts_of(plan) == ["a 1", "b 1", "c 1", "c 2", "after_c 1", "b 2", "a 2", "after_a 1"]


def test_the_pauses_are_those_of_the_policy(sales: Workflow[...]) -> None:
    starts: list[str] = []

    def fail_as(name: str) -> None:
        starts.append(name)
        raise ValueError

    policies = {"even": Retry(attempts=4, delay=3, factor=1), "growing": Retry(attempts=4, delay=1, factor=3)}
    for name, retry in policies.items():
        sales.task(fail_as, key=name, inputs={"name": name}, retry=retry)

    sales.run_inline(day=DAY)

    # even: at 0, 3, 6, 9 seconds; growing: at 0, 1, 4, 13.
    assert starts == ["even", "growing", "growing", "even", "growing", "even", "even", "growing"]


def test_the_events_are_told_in_order() -> None:
    plan = {
        "a": Step(Rule(), FAILS, delay=HOUR),
        "b": Step(Rule(), [End.GIVE_UP]),
        "after_b": Step(Rule(["b"])),
        "after_that": Step(Rule(["after_b"])),
        "mourner": Step(Rule(["b"], When.ANY_FAILED), [End.SKIP]),
    }

    run = define("plan", plan, []).run_inline()

    assert [f"{event.task} {event.kind} {event.attempt}" for event in run.events] == [
        "a claimed 1",
        "a retried 2",
        "b claimed 1",
        "b failed 1",
        "mourner readied 1",
        "after_b skipped 1",
        "after_that skipped 1",
        "mourner claimed 1",
        "mourner skipped 1",
        "a claimed 2",
        "a succeeded 2",
    ]
    assert {key: task.attempts for key, task in run.tasks.items()} == {
        "b": 1,
        "after_b": 0,
        "after_that": 0,
        "mourner": 1,
        "a": 2,
    }


@settings(deadline=None, max_examples=200)
@given(plans(most=12))
def test_any_plan_ends_as_the_rules_say_and_starts_in_order(plan: Plan) -> None:
    starts: list[Start] = []

    run = define("plan", plan, starts).run_inline()

    model = check_order(plan, starts)
    assert {key: task.state for key, task in run.tasks.items()} == model.states()
    assert run.state == model.state()


def test_a_long_chain_and_a_wide_fan_take_no_stack_and_little_time(sales: Workflow[...]) -> None:
    wide = [sales.task(succeed, key=f"wide_{number}") for number in range(2000)]
    last = sales.task(fail, key="fail", after=wide)
    for number in range(2000):
        last = sales.task(succeed, key=f"skipped_{number}", after=last)

    run = sales.run_inline(day=DAY)

    assert [task.state.value for task in run.tasks.values()] == ["succeeded"] * 2000 + ["failed"] + ["skipped"] * 2000


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
