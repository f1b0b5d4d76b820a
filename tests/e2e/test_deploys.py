"""Releases: a new one beside unfinished runs of the old one, and the way back."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from flowforge import client, insights
from flowforge.errors import CannotMove
from flowforge.models import DEFAULT_ORGANIZATION, TaskRun, WorkflowRun
from flowforge.states import RunState
from tests.support import wait_for

if TYPE_CHECKING:
    from tests.e2e.conftest import Fleet

RUNS = 100
V1, V2 = "tests.e2e.orders.v1", "tests.e2e.orders.v2"


@pytest.fixture
def release(fleet: Fleet) -> Release:
    """The command line, by the release whose modules are named."""
    return Release(fleet)


class Release:
    """Calls `flowforge` with the code of a release."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __call__(self, modules: str, *arguments: str, expect: int = 0) -> str:
        """Return what it prints."""
        environment = {**self._fleet.environment(), "FLOWFORGE_MODULES": modules, "COLUMNS": "200"}
        command = [sys.executable, "-m", "flowforge", *arguments]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert answer.returncode == expect, answer.stderr
        return answer.stdout


def moves(run: client.Run, version: int) -> bool:
    """Move a run, unless a task is in the way that is running at this moment."""
    try:
        return bool(client.move(run, version=version))
    except CannotMove:
        return False


def deferred() -> dict[str, int]:
    """Return reason -> number of task runs that wait because of it."""
    counts: dict[str, int] = {}
    for row in TaskRun.select(TaskRun.deferred_because).where(TaskRun.deferred_because.is_null(is_null=False)):
        counts[row.deferred_because] = counts.get(row.deferred_because, 0) + 1
    return counts


def test_a_hundred_runs_of_the_old_release_are_finished_by_the_new_one(  # noqa: PLR0915 - one story
    fleet: Fleet, release: Release
) -> None:
    """B128, B129, B136: what fits ends by the old graph, the rest is named, moved, and ends by the new one."""
    release(V1, "deploy")
    fleet.scheduler()
    runs = [client.start_by_name("orders", {}) for _ in range(RUNS)]
    lacking = json.loads(release(V2, "check", "--json", expect=1))
    assert {(one["version"], one["task"], one["task_runs"]) for one in lacking} == {
        (1, "old_name", RUNS), (1, "load", RUNS), (1, "export", RUNS),
    }  # fmt: skip

    release(V2, "deploy")
    fleet.worker(FLOWFORGE_MODULES=V2)

    reasons = {
        "the code's workflow 'orders' has no task 'old_name'": RUNS,
        "the code's workflow 'orders' has no task 'export'": RUNS,
    }
    wait_for(lambda: deferred() == reasons, seconds=60)
    assert {run.state for run in runs} == {RunState.RUNNING}
    assert "has no task 'old_name'" in release(V2, "runs", "show", str(runs[0].id))
    assert "takes no argument 'old_name'" in release(V2, "check", expect=1)

    ids = [str(run.id) for run in runs]
    told = release(V2, "runs", "move", *ids, "--to", "current")
    assert "orders v1 -> v2: would move" in told
    assert {"  check: new, ready", "  total: new, ready", "  old_name: not in the version, skipped"} < set(
        told.splitlines()
    )
    assert deferred() == reasons
    release(V2, "runs", "move", *ids, "--to", "current", "--yes")

    assert {run.wait(timeout=60) for run in runs} == {RunState.SUCCEEDED}
    states = {task.key: task.state for task in runs[0].tasks()}
    assert states == {
        "extract": "succeeded", "check": "succeeded", "clean": "succeeded", "total": "succeeded", "load": "succeeded",
        "old_name": "skipped", "export": "skipped",
    }  # fmt: skip
    assert [event.kind for event in runs[0].events() if event.task is None].count("moved") == 1
    assert release(V2, "check").strip() == "this code can finish every run"

    release(V1, "deploy")

    back = client.start_by_name("orders", {})
    assert WorkflowRun.get_by_id(back.id).workflow.version == 1
    summary = insights.run_summary(DEFAULT_ORGANIZATION, runs[0].id)
    assert summary is not None
    assert summary.version == 2
    wait_for(lambda: moves(back, version=2))
    assert back.wait(timeout=30) is RunState.SUCCEEDED


def test_runs_of_both_releases_end_by_their_own_graph_while_both_work(fleet: Fleet, release: Release) -> None:
    """B128: in a rolling deploy each run is finished by workers that have its tasks."""
    release(V1, "deploy")
    fleet.scheduler()
    fleet.worker(FLOWFORGE_MODULES=V1)
    fleet.worker(FLOWFORGE_MODULES=V2)
    old = [client.start_by_name("orders", {}) for _ in range(5)]
    release(V2, "deploy")
    new = [client.start_by_name("orders", {}) for _ in range(5)]

    assert {run.wait(timeout=90) for run in (*old, *new)} == {RunState.SUCCEEDED}

    assert [{task.key for task in run.tasks()} >= {"old_name", "export"} for run in (*old, *new)] == [True] * 5 + [
        False
    ] * 5
