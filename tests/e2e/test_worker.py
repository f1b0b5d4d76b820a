"""Workflows through real scheduler and worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge import client, insights
from flowforge.errors import TaskFailed
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RunState, TaskState
from tests.e2e import workflows
from tests.e2e.conftest import Fleet, events, owner_pid, the_task_run
from tests.support import wait_for

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def running(fleet: Fleet) -> Fleet:
    fleet.scheduler()
    fleet.worker()
    return fleet


@pytest.mark.usefixtures("running")
def test_results_flow_through_sync_async_and_actor_tasks() -> None:
    run = workflows.numbers.start(n=4)

    assert run.wait(timeout=20) is RunState.SUCCEEDED
    assert run.result(workflows.total) == 12
    assert run.result(workflows.numbers.tasks["square"]) == 16
    assert events(run, "total") == [
        "created", "readied", "claimed", "retried", "claimed", "retried", "claimed", "succeeded",
    ]  # fmt: skip


@pytest.mark.usefixtures("running")
def test_every_way_to_end_is_recorded() -> None:
    """B061, B110, B111, B112."""
    run = workflows.outcomes.start()

    assert run.wait(timeout=20) is RunState.FAILED
    states = {task.key: task.state for task in insights.task_summaries(DEFAULT_ORGANIZATION, run.id)}
    assert states == {
        "skipped": TaskState.SKIPPED,
        "final": TaskState.FAILED,
        "optional": TaskState.FAILED,
        "unstorable": TaskState.FAILED,
        "unprintable": TaskState.FAILED,
        "clean_up": TaskState.SUCCEEDED,
        "never": TaskState.SKIPPED,
    }
    assert the_task_run(run, "final").attempt == 1
    assert the_task_run(run, "optional").error["type"] == "SystemExit"
    assert the_task_run(run, "unstorable").error["type"] == "UnstorableValue"
    assert "RuntimeError" in the_task_run(run, "unprintable").error["message"]
    with pytest.raises(TaskFailed, match="never again"):
        run.result(workflows.final)


def test_ordinary_actors_keep_dramatiqs_retries(running: Fleet, tmp_path: Path) -> None:
    import dramatiq  # noqa: PLC0415 - the broker of this test only

    from flowforge.broker import Broker, connect_redis  # noqa: PLC0415

    broker = Broker(connect_redis(running.settings), running.settings.namespace)
    file = tmp_path / "tries"

    broker.enqueue(
        dramatiq.Message(queue_name="ordinary", actor_name="ordinary", args=(str(file),), kwargs={}, options={})
    )

    wait_for(lambda: file.exists() and len(file.read_text().splitlines()) == 3)


@pytest.mark.usefixtures("running")
def test_an_attempt_ends_when_its_time_is_over() -> None:
    run = workflows.stubborn.start()

    assert run.wait(timeout=20) is RunState.FAILED
    for key in ("interruptible", "awaiting"):
        assert the_task_run(run, key).error["type"] == "AttemptTimeout"
        assert "0.3 s" in the_task_run(run, key).error["message"]


def test_a_task_stuck_in_c_fails_and_its_process_is_replaced(fleet: Fleet) -> None:
    """B052: the supervisor starts another process for the one whose thread is lost."""
    fleet.scheduler()
    worker = fleet.worker()
    run = workflows.stuck.start()

    assert run.wait(timeout=30) is RunState.FAILED
    assert the_task_run(run, "in_c").error["type"] == "AttemptTimeout"
    assert worker.wait(timeout=30) == 75


def test_a_process_whose_logging_hangs_after_an_interrupt_is_replaced(fleet: Fleet) -> None:
    """An exception raised into user code may leave locks held; the engine's own log does not share them."""
    fleet.scheduler()
    worker = fleet.worker()
    run = workflows.careless.start()

    assert run.wait(timeout=30) is RunState.FAILED
    assert worker.wait(timeout=30) == 75
    assert "a lock of logging is held" in fleet.log(worker)


def test_a_guard_left_open_delays_nobody_else(fleet: Fleet) -> None:
    """Its own task run stays held by the user's transaction; other outcomes are committed."""
    fleet.scheduler()
    worker = fleet.worker()
    leak = workflows.leaky.start()
    owner_pid(leak, "leaves_its_guard_open")
    runs = [workflows.many.start(n=number) for number in range(3)]

    assert [run.wait(timeout=10) for run in runs] == [RunState.SUCCEEDED] * 3
    assert leak.state is RunState.RUNNING
    worker.kill()  # which ends the user's transaction as well
    fleet.worker()
    wait_for(lambda: "expired" in events(leak, "leaves_its_guard_open"))


def test_what_a_worker_does_not_know_waits_for_one_that_does(fleet: Fleet) -> None:
    """B040: deferred with a reason, no attempt charged, until a worker comes that can."""
    fleet.scheduler()
    fleet.worker(FLOWFORGE_MODULES="tests.support")
    run = workflows.many.start(n=7)

    wait_for(lambda: the_task_run(run, "one").deferred_because)
    assert "many" in the_task_run(run, "one").deferred_because
    assert events(run, "one") == ["created", "deferred"]
    fleet.worker()

    assert run.wait(timeout=30) is RunState.SUCCEEDED
    assert the_task_run(run, "one").attempt == 1


def test_a_foreign_broker_is_refused_with_the_remedy(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "foreign.py").write_text(
        "import dramatiq\nfrom dramatiq.brokers.stub import StubBroker\ndramatiq.set_broker(StubBroker())\n"
    )

    worker = fleet.start("flowforge.actors", FLOWFORGE_MODULES="foreign", PYTHONPATH=str(tmp_path))

    assert worker.wait(timeout=20) == 2
    assert "remove its dramatiq.set_broker" in fleet.log(worker)


def test_a_run_started_in_an_open_transaction_is_found_after_its_commit(fleet: Fleet) -> None:
    """B025: nothing is dispatched before the commit."""
    fleet.scheduler()
    fleet.worker()
    database = client.engine().database
    with database.atomic():
        run = workflows.many.options(connection=database).start(n=1)

    assert run.wait(timeout=20) is RunState.SUCCEEDED


def test_dramatiqs_own_command_line_works_too(fleet: Fleet) -> None:
    fleet.scheduler()
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    command = [sys.executable, "-m", "dramatiq", "-p", "1", "-t", "2", "flowforge.actors"]
    process = subprocess.Popen(command, env=fleet.environment(), stderr=subprocess.DEVNULL)
    run = workflows.many.start(n=1)

    assert run.wait(timeout=30) is RunState.SUCCEEDED
    process.terminate()
    assert process.wait(timeout=30) == 0
