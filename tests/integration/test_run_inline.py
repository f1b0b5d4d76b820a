"""run_inline and a real worker: the same workflows end alike, and start in the same order wherever there is one."""

# Annotations are read at run time here, as in every module that defines tasks.
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowforge import AttemptCancelled, Context, NonRetryable, Retry, Run, Settings, Skip, Workflow, client, models
from flowforge.client import InlineRun, jsonb
from flowforge.db import Database
from flowforge.errors import UnstorableValue
from flowforge.states import When
from flowforge.testing import Clock, Worker
from flowforge.workflow import values
from tests.model import Rule
from tests.plans import HOUR, End, Plan, Start, Step, check_order, define, plans
from tests.support import wait_for

pytest_plugins = ["flowforge.testing"]


@pytest.fixture
def flowforge_settings() -> Settings:
    """Settings of a worker with one thread: only that has an order."""
    return Settings(threads=1, grace=5)


@pytest.fixture
def worker(flowforge_worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker whose pauses are as long as they may be, as those of run_inline are."""
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    return flowforge_worker


class Ended(NamedTuple):
    """How a task ended, and what happened to it."""

    state: str
    result: Any
    error: tuple[str, str] | None
    events: list[tuple[str, int]]


def settle(runs: Sequence[Run], clock: Clock, *, then: Callable[[], object] = lambda: None) -> None:
    """Until the runs have ended, move the clock to the next attempt that is due when nothing else happens."""

    def have_ended() -> bool:
        rows = [row for run in runs for row in run.tasks()]
        ahead = min((row.due_at for row in rows if row.due_at), default=clock.now) - clock.now
        if ahead > timedelta() and not any(row.state == "running" for row in rows):
            then()
            clock.move(ahead)
        return all(row.finished_at for row in rows)

    wait_for(have_ended, seconds=60, every=0.005)


def by_the_engine(run: Run) -> dict[str, Ended]:
    """Return how the tasks of a run have ended."""
    rows = models.TaskRun.select(models.TaskRun, models.Task).join(models.Task)
    events: dict[str, list[tuple[str, int]]] = {}
    for event in run.events():
        if event.task and event.kind == "handed_back":  # it waited for the thread too long, and was not started
            events[event.task].pop()
        elif event.task and event.kind != "created":
            events.setdefault(event.task, []).append((event.kind, event.attempt or 0))
    return {
        row.task.key: Ended(row.state, row.result, told(row.error), events[row.task.key])
        for row in rows.where(models.TaskRun.workflow_run == run.id)
    }


def by_inline(run: InlineRun) -> dict[str, Ended]:
    """Return how the tasks of a run that was carried out inline have ended."""
    return {
        key: Ended(
            task.state.value,
            task.result,
            told(task.error),
            [(event.kind.value, event.attempt) for event in run.events if event.task == key],
        )
        for key, task in run.tasks.items()
    }


def told(error: dict[str, str] | None) -> tuple[str, str] | None:
    """Return the type and the message of an error; its traceback names the lines that called."""
    return (error["type"], error["message"]) if error else None


# Values and failures of every kind ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sales:
    day: date
    region: str = "eu"
    share: float = 1e22


@dataclass(frozen=True)
class Totals:
    amount: Decimal


every_kind = Workflow("every-kind", Sales)


@every_kind.task
def extract(day: date, region: str, share: float) -> dict[str, Any]:
    return {"long": [day, share], "b": {"amount": Decimal("9.90")}, "aa": 1e22, "a": [-0.0, 1e-7, 1.0, region]}


@every_kind.task
async def load(extract: Any) -> list[Any]:
    return [list(extract), type(extract["aa"]).__name__, repr(extract["a"]), repr(extract["long"])]


@every_kind.task(inputs={"totals": extract}, retry=Retry(attempts=3, delay=0))
def misread(totals: Totals) -> None: ...


@every_kind.task(retry=Retry(attempts=3, delay=0), required=False)
def unstorable() -> Any:
    return {"moments": [datetime(2026, 11, 29)]}  # noqa: DTZ001 - without an offset it cannot be stored


@every_kind.task(retry=Retry(attempts=3, delay=0), required=False)
def too_large() -> str:
    return "x" * 2_000_000


@every_kind.task(retry=Retry(attempts=3, delay=0))
def third_time(context: Context) -> list[Any]:
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")
    return [context.workflow, context.key, context.token, context.idempotency_key.split("/")[1], context.slot]


@every_kind.task(retry=Retry(attempts=2, delay=0), required=False)
async def leaves() -> None:
    sys.exit("for good")


@every_kind.task(retry=Retry(attempts=3, delay=0))
def has_nothing_to_do() -> None:
    raise Skip("nothing to load")


@every_kind.task(retry=Retry(attempts=3, delay=0), required=False)
async def gives_up() -> None:
    raise NonRetryable("never")


@every_kind.task(retry=Retry(attempts=3, delay=0))
def stops() -> None:
    raise AttemptCancelled("enough")


@every_kind.task(when="all_done")
def stands_in(third_time: Any = "none", gives_up: Any = "none", has_nothing_to_do: Any = "none") -> list[Any]:
    return [third_time, gives_up, has_nothing_to_do]


@every_kind.task(when="none_failed")
def goes_on(stops: Any = "none") -> Any:
    return stops


@every_kind.task(after=gives_up, when="any_failed")
def mourns() -> str:
    return "alas"


@every_kind.task(after=gives_up)
def is_skipped() -> None: ...


@every_kind.task(inputs={"parts": {"b": third_time, "aa": extract}, "constant": {"b": 1, "aa": 1e22}})
def is_given_constants(parts: dict[str, Any], constant: Any) -> str:
    return repr([list(parts), constant])


@every_kind.task(inputs={"constant": [1]}, retry=Retry(attempts=2, delay=0))
def spoils_its_arguments(context: Context, constant: Any, extract: Any) -> list[int]:
    constant.append(2)
    extract["a"].clear()
    if context.attempt == 1:
        raise ValueError
    return [len(constant), len(extract["a"])]


@every_kind.task(after=spoils_its_arguments)
def finds_its_arguments(extract: Any) -> int:
    return len(extract["a"])


@every_kind.on_failure(retry=Retry(attempts=2, delay=0))
async def handles_failure(context: Context, load: Any = "none", gives_up: Any = "none") -> list[Any]:
    if context.attempt == 1:
        raise ValueError
    return [len(load), gives_up]


@every_kind.on_success
def handles_success() -> None: ...


def test_every_kind_of_ending_is_that_of_a_worker(worker: Worker, flowforge_clock: Clock) -> None:
    worker.serve(every_kind)
    run = every_kind.start(day=date(2026, 11, 29))
    settle([run], flowforge_clock)

    inline = every_kind.run_inline(day=date(2026, 11, 29))

    assert by_the_engine(run) == by_inline(inline)
    assert run.state == inline.state == "failed"
    assert inline.result(load)[:2] == [["a", "b", "aa", "long"], "int"]
    assert inline.result(handles_failure) == [4, "none"]


calm = Workflow("calm")


@calm.task
def rests() -> None:
    raise AttemptCancelled("enough")


@calm.task(required=False)
def rests_too() -> None:
    raise AttemptCancelled("enough")


@calm.on_success
def praises() -> str:
    return "well done"


@calm.on_failure
def is_not_needed() -> None: ...


def test_a_run_whose_task_stops_is_cancelled_as_by_a_worker(worker: Worker, flowforge_clock: Clock) -> None:
    worker.serve(calm)
    run = calm.start()
    settle([run], flowforge_clock)

    inline = calm.run_inline()

    assert by_the_engine(run) == by_inline(inline)
    assert run.state == inline.state == "cancelled"
    assert inline.result(praises) == "well done"


# Any value ------------------------------------------------------------------------------------------------------------

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
leaves_ = (
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
)
any_json = st.recursive(
    leaves_,
    lambda parts: (
        st.lists(parts, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), parts, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_json)
def test_any_json_comes_back_as_postgresql_returns_it(connection: Any, value: Any) -> None:
    try:
        text = values.encode(value, "value")
    except UnstorableValue:  # a key with NUL
        return
    with connection.cursor() as cursor:
        cursor.execute("select %s::jsonb::text", (text,))
        (returned,) = cursor.fetchone()

    assert repr(json.loads(returned)) == repr(json.loads(jsonb.returned(text)))


# Order ----------------------------------------------------------------------------------------------------------------


KEEP_DISPATCHES = """
    create table public.dispatch as select * from flowforge.outbox_message;
    create function public.keep() returns trigger language plpgsql
        as $$ begin insert into public.dispatch select new.*; return null; end $$;
    create trigger keep after insert on flowforge.outbox_message for each row execute function public.keep();
"""
DUES = """
    select t.key, d.attempt_snapshot, max(d.available_at)        -- the last, if it was handed back
      from public.dispatch d
      join flowforge.task_run r on r.id = d.task_run_id
      join flowforge.task t on t.id = r.task_id
     where d.workflow_run_id = %s
     group by t.key, d.attempt_snapshot
"""


@pytest.fixture
def database(flowforge_database: str) -> Database:  # noqa: ARG001 - configured
    """This test's database, which keeps every dispatch that was owed."""
    database = client.engine().database
    database.execute_sql(KEEP_DISPATCHES)
    return database


@settings(
    max_examples=3,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(many=st.lists(plans(), min_size=10, max_size=10))
def test_any_plan_ends_and_starts_as_on_a_worker(
    worker: Worker, flowforge_clock: Clock, database: Database, many: list[Plan]
) -> None:
    starts: list[list[Start]] = [[] for _ in many]
    workflows = [define(f"plan-{uuid4()}", plan, starts[n]) for n, plan in enumerate(many)]

    worker.stop()  # what is committed while a publisher looks may pass another by milliseconds
    runs = [workflow.start() for workflow in workflows]
    worker.serve(*workflows)
    settle(runs, flowforge_clock)

    for plan, workflow, run, started in zip(many, workflows, runs, starts, strict=True):
        dues = {(key, attempt): due for key, attempt, due in database.execute_sql(DUES, (run.id,))}
        assert [dues[start] for start in started] == sorted(dues.values())
        before = len(started)
        inline = workflow.run_inline()
        model = check_order(plan, started[before:])
        assert sorted(started[:before]) == sorted(started[before:])
        assert by_the_engine(run) == by_inline(inline)
        assert (run.state, {key: task.state for key, task in inline.tasks.items()}) == (model.state(), model.states())


FAILS = (End.RAISE, End.RETURN)
FAILS_TWICE = (End.RAISE, End.RAISE, End.RETURN)


def test_what_is_due_at_different_times_starts_in_the_same_order(worker: Worker, flowforge_clock: Clock) -> None:
    plan = {
        "in_five": Step(Rule(), FAILS, delay=5 * HOUR),
        "in_two": Step(Rule(), FAILS_TWICE, delay=2 * HOUR),
        "in_three": Step(Rule(), FAILS, delay=3 * HOUR),
        "now": Step(Rule()),
        "after_two": Step(Rule(["in_two"])),
        "after_three": Step(Rule(["in_three"], When.NONE_FAILED), FAILS, delay=0),
        "skipped": Step(Rule(["in_three"], When.ANY_FAILED)),
    }
    starts: list[Start] = []
    workflow = define("delays", plan, starts)
    worker.serve(workflow)

    marks: list[int] = []
    settle([workflow.start()], flowforge_clock, then=lambda: marks.append(len(starts)))
    by_moment = [sorted(starts[begin:end]) for begin, end in pairwise([0, *marks, len(starts)])]
    starts.clear()
    workflow.run_inline()

    assert by_moment == [
        [("in_five", 1), ("in_three", 1), ("in_two", 1), ("now", 1)],
        [("in_two", 2)],
        [("after_three", 1), ("after_three", 2), ("in_three", 2)],
        [("after_two", 1), ("in_two", 3)],
        [("in_five", 2)],
    ]
    assert starts == [
        *[("in_five", 1), ("in_two", 1), ("in_three", 1), ("now", 1)],
        ("in_two", 2),
        *[("in_three", 2), ("after_three", 1), ("after_three", 2)],
        *[("in_two", 3), ("after_two", 1)],
        ("in_five", 2),
    ]


def test_what_was_due_first_starts_first_however_many_are_taken_in_at_once(worker: Worker, database: Database) -> None:
    starts: list[Start] = []
    workflow = define("wide", {f"task_{number}": Step(Rule()) for number in range(200)}, starts)
    worker.serve(workflow)

    run = workflow.start()
    run.wait(timeout=60)

    dues = {(key, attempt): due for key, attempt, due in database.execute_sql(DUES, (run.id,))}
    assert [dues[start] for start in starts] == sorted(dues.values())
