"""A worker gets over whatever its tasks raise: it records it, goes on, and holds no lease any longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge import insights
from flowforge.models import DEFAULT_ORGANIZATION, TaskRun
from flowforge.states import RunState, TaskState
from tests.e2e import exotic_workflows as workflows
from tests.e2e.conftest import events, the_task_run

if TYPE_CHECKING:
    from tests.e2e.conftest import Fleet

MODULES = {"FLOWFORGE_MODULES": "tests.e2e.exotic_workflows", "FLOWFORGE_LEASE": "1"}
ASYNC = [key for key in workflows.exotic.tasks if key.endswith(".async")]


def test_a_worker_gets_over_every_exotic_exception(fleet: Fleet) -> None:
    """B061: each is recorded by its name; the process goes on, renews nothing that is over, and ends when told."""
    fleet.scheduler()
    worker = fleet.worker(**MODULES)
    run = workflows.exotic.start()

    assert run.wait(timeout=20) is RunState.FAILED
    found = {task.key: the_task_run(run, task.key) for task in insights.task_summaries(DEFAULT_ORGANIZATION, run.id)}
    assert found.pop("threads").state == TaskState.SUCCEEDED
    assert {key: row.state for key, row in found.items()} == dict.fromkeys(found, TaskState.FAILED)
    assert {key: row.error["type"] for key, row in found.items()} == {key: key.removesuffix(".async") for key in found}
    assert all(events(run, key) == ["created", "claimed", "failed"] for key in found)
    again = workflows.alive.start()
    assert again.wait(timeout=20) is RunState.SUCCEEDED
    assert again.result(workflows.who) == worker.pid
    assert [row.lease_owner for row in TaskRun.select()] == [None] * (len(found) + 2)
    worker.terminate()
    assert worker.wait(timeout=5) == 0  # no attempt runs, but threads are left that would keep it for ever
    assert "worker.threads_left" in fleet.log(worker)


def test_a_task_that_ends_its_process_has_lost_it(fleet: Fleet) -> None:
    """B061: `os._exit(0)`: exit code 0, and yet the attempt did not succeed; nobody renews its lease."""
    fleet.scheduler()
    worker = fleet.worker(**MODULES)
    run = workflows.final.start()
    assert worker.wait(timeout=10) == 0
    fleet.worker(**MODULES)

    assert run.wait(timeout=20) is RunState.FAILED
    assert the_task_run(run, "leave").error["type"] == "worker_lost"
