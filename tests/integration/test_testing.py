"""The fixtures for users' own tests: a worker in threads, and a clock that can be moved."""

# Annotations are read at run time here, as in every module that defines tasks.
import os
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dramatiq
import psycopg2
import pytest
from dramatiq.brokers.stub import StubBroker

from flowforge import Context, DefinitionError, Retry, Run, Settings, TaskFailed, WaitTimeout, Workflow
from flowforge.testing import Clock, Worker, databases
from tests.support import wait_for

pytest_plugins = ["flowforge.testing"]


@pytest.fixture
def flowforge_settings() -> Settings:
    """Settings of a worker that waits for nobody for long."""
    return Settings(threads=4, grace=1)


@dataclass(frozen=True)
class Sales:
    day: int


sales = Workflow("daily-sales", Sales)


@sales.task
def extract(day: int) -> list[int]:
    return [day, day]


@sales.task
async def load(extract: list[int]) -> int:
    return sum(extract)


def state_of(run: Run) -> str:
    """Return the state of a run's only task."""
    (task,) = run.tasks()
    return task.state


def kinds(run: Run) -> list[str]:
    """Return the kinds of what happened to a run's tasks."""
    return [event.kind for event in run.events() if event.task]


# The worker -----------------------------------------------------------------------------------------------------------


def test_start_wait_and_result_just_work(flowforge_worker: Worker) -> None:
    flowforge_worker.serve(sales)

    run = sales.start(day=21)

    assert run.wait(timeout=30) == "succeeded"
    assert run.result(load) == 42


def test_tasks_run_in_this_process(flowforge_worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    where = Workflow("where")
    where.task(lambda: [os.getpid(), os.environ.get("PATCHED")], key="here")
    flowforge_worker.serve(where)
    monkeypatch.setenv("PATCHED", "yes")

    run = where.start()
    run.wait(timeout=30)

    assert run.result(where.tasks["here"]) == [os.getpid(), "yes"]


def test_what_is_not_served_waits_and_says_why(flowforge_worker: Worker) -> None:
    other = Workflow("other")
    other.task(lambda: 1, key="only")
    flowforge_worker.serve(sales)

    run = other.start()

    wait_for(lambda: run.tasks()[0].deferred_because)
    with pytest.raises(WaitTimeout):
        run.wait(timeout=0)


def test_another_serve_is_a_deployment(flowforge_worker: Worker) -> None:
    old, new = Workflow("flow"), Workflow("flow")
    first = old.task(lambda: "old", key="first")
    last = old.task(lambda: "old", key="last", after=first, retry=Retry(attempts=1000, delay="10ms"))
    new.task(lambda: "new", key="last")
    started = threading.Event()
    going = old.task(lambda: started.wait(30), key="going")
    new.task(lambda: "new", key="going")
    flowforge_worker.serve(old)
    run = old.start()
    wait_for(lambda: [task.state for task in run.tasks()] == ["succeeded", "succeeded", "running"])

    started.set()
    flowforge_worker.serve(new)
    again = new.start()

    assert (run.wait(timeout=30), again.wait(timeout=30)) == ("succeeded", "succeeded")
    assert [run.result(going), again.result(last)] == [True, "new"]


def test_what_runs_on_is_handed_back_when_the_grace_is_over(flowforge_worker: Worker) -> None:
    flow, go_on = Workflow("flow"), threading.Event()
    flow.task(lambda: go_on.wait(30), key="slow")
    flowforge_worker.serve(flow)
    run = flow.start()
    wait_for(lambda: state_of(run) == "running")

    flowforge_worker.stop()

    assert state_of(run) == "ready"
    assert kinds(run)[-1] == "handed_back"
    go_on.set()


def test_a_stopped_worker_leaves_no_thread(flowforge_worker: Worker) -> None:
    before = set(threading.enumerate())
    flowforge_worker.serve(sales)
    sales.start(day=1).wait(timeout=30)
    assert set(threading.enumerate()) - before

    flowforge_worker.stop()

    wait_for(lambda: not set(threading.enumerate()) - before)


def test_it_can_be_stopped_twice_and_serve_again(flowforge_worker: Worker) -> None:
    flowforge_worker.stop()
    flowforge_worker.serve(sales)
    flowforge_worker.stop()
    flowforge_worker.stop()
    flowforge_worker.serve(sales)

    assert sales.start(day=1).wait(timeout=30) == "succeeded"


def test_two_workflows_of_one_name_are_refused_and_nothing_runs(flowforge_worker: Worker) -> None:
    before = set(threading.enumerate())

    with pytest.raises(DefinitionError, match="two workflows are named 'daily-sales'"):
        flowforge_worker.serve(sales, Workflow("daily-sales"))

    assert set(threading.enumerate()) == before


def test_the_users_broker_and_actors_are_left_alone(flowforge_worker: Worker) -> None:
    own = StubBroker()
    own.emit_after("process_boot")
    called: list[int] = []

    @dramatiq.actor(broker=own)
    def count(orders: int) -> int:
        called.append(orders)
        return orders + 1

    flow = Workflow("flow")
    flow.task(count, inputs={"orders": 1})
    before = dramatiq.get_broker()
    flowforge_worker.serve(flow)
    count.send(7)

    run = flow.start()
    run.wait(timeout=30)

    assert run.result(flow.tasks["count"]) == 2
    assert called == [1]
    assert dramatiq.get_broker() is before
    assert own.queues["default"].qsize() == 1
    own.close()


def test_a_thread_that_does_not_return_ends_its_attempt_and_not_the_tests(
    flowforge_worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowforge.actors.keeper._GRACE", 0.1)
    flow, go_on = Workflow("flow"), threading.Event()
    stuck = flow.task(lambda: go_on.wait(30), key="stuck", timeout="100ms", interrupt="never")
    flow.task(lambda: 1, key="after", after=stuck, when="all_done")
    flowforge_worker.serve(flow)

    run = flow.start()

    assert run.wait(timeout=30) == "failed"
    assert [task.state for task in run.tasks()] == ["failed", "succeeded"]
    with pytest.raises(TaskFailed, match="AttemptTimeout"):
        run.result(stuck)
    go_on.set()


# The clock -----------------------------------------------------------------------------------------------------------


def test_a_retry_that_is_due_in_an_hour_is_due_at_once(flowforge_worker: Worker, flowforge_clock: Clock) -> None:
    flow = Workflow("flow")

    @flow.task(retry=Retry(attempts=2, delay="1h", max_delay="1h"))
    def flaky(context: Context) -> int:
        if context.attempt == 1:
            raise ConnectionError
        return context.attempt

    flowforge_worker.serve(flow)
    run = flow.start()
    wait_for(lambda: kinds(run)[-1] == "retried")
    began = time.monotonic()

    flowforge_clock.move(timedelta(hours=1))

    assert run.wait(timeout=30) == "succeeded"
    assert run.result(flaky) == 2
    assert time.monotonic() - began < 10


def test_the_waits_of_a_run_are_passed_and_no_attempt_is_lost(flowforge_worker: Worker, flowforge_clock: Clock) -> None:
    flow = Workflow("flow")

    @flow.task(retry=Retry(attempts=4, delay="1d", factor=1, max_delay="1d"))
    def flaky(context: Context) -> int:
        if context.attempt < 4:
            raise ConnectionError
        return context.attempt

    flow.task(lambda: time.sleep(0.1), key="meanwhile")  # type: ignore[func-returns-value]
    flowforge_worker.serve(flow)
    before = flowforge_clock.now
    run = flow.start()

    assert flowforge_clock.wait(run, timeout=30) == "succeeded"

    assert timedelta(days=2) < flowforge_clock.now - before < timedelta(days=3, minutes=1)
    assert "expired" not in kinds(run)


def test_a_run_that_does_not_end_is_not_waited_for_longer(flowforge_clock: Clock) -> None:
    run = sales.start(day=1)

    with pytest.raises(WaitTimeout, match=r"is still pending after 0\.1 s"):
        flowforge_clock.wait(run, timeout=0.1)


def test_an_idempotency_key_ends(flowforge_clock: Clock) -> None:
    keyed = sales.options(idempotency_key="one")
    first = keyed.start(day=1)
    assert keyed.start(day=1) == first

    flowforge_clock.move(timedelta(days=1))

    assert keyed.start(day=1) != first


def test_a_lease_ends_and_its_owner_is_refused(flowforge_worker: Worker, flowforge_clock: Clock) -> None:
    flow, go_on = Workflow("flow"), threading.Event()

    @flow.task
    def slow(context: Context) -> int:
        if context.attempt == 1:
            go_on.wait(30)
        return context.attempt

    flowforge_worker.serve(flow)
    run = flow.start()
    wait_for(lambda: state_of(run) == "running")

    flowforge_clock.move(timedelta(minutes=1))

    assert run.wait(timeout=30) == "succeeded"
    assert run.result(slow) == 2
    go_on.set()
    wait_for(lambda: kinds(run)[-1] == "refused")
    assert "expired" in kinds(run)


def test_the_clock_goes_on_from_where_it_was_set(flowforge_clock: Clock) -> None:
    there = datetime(2031, 3, 30, 1, 59, 59, tzinfo=UTC)

    flowforge_clock.set(there)

    first = flowforge_clock.now
    assert there <= first < there + timedelta(seconds=10)
    wait_for(lambda: flowforge_clock.now > first)
    flowforge_clock.move(timedelta(days=1))
    assert timedelta(days=1) <= flowforge_clock.now - there < timedelta(days=1, seconds=10)


def test_a_day_has_24_hours_wherever_the_server_is(flowforge_database: str, flowforge_clock: Clock) -> None:
    name = psycopg2.extensions.parse_dsn(flowforge_database)["dbname"]
    databases.execute(flowforge_database, f"alter database {name} set timezone to 'Europe/Berlin'")
    flowforge_clock.set(datetime(2031, 3, 29, 12, tzinfo=UTC))  # the night on which clocks go forward there
    before = flowforge_clock.now

    flowforge_clock.move(timedelta(days=1))

    assert timedelta(days=1) <= flowforge_clock.now - before < timedelta(days=1, seconds=10)


def test_the_clock_goes_back_only_while_nothing_is_stored(flowforge_clock: Clock) -> None:
    there = datetime(2020, 2, 29, tzinfo=UTC)
    flowforge_clock.set(there)
    run = sales.start(day=1)
    assert run.events()[0].at < there + timedelta(minutes=1)

    with pytest.raises(ValueError, match="back it goes only before the first workflow is stored"):
        flowforge_clock.move(timedelta(seconds=-1))

    assert flowforge_clock.now >= there


def test_a_moment_without_an_offset_is_refused(flowforge_clock: Clock) -> None:
    with pytest.raises(ValueError, match=r"2030, 1, 1, 0, 0\): give it an offset"):
        flowforge_clock.set(datetime(2030, 1, 1))  # noqa: DTZ001
