"""`flowforge chaos` on servers of its own: a minute for every change, five minutes for the patient."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from flowforge import insights, models
from flowforge.chaos.trouble import SERVERS, WEIGHTS, plan
from tests.e2e.conftest import ROOT, Fleet
from tests.support import wait_for

if TYPE_CHECKING:
    from pathlib import Path

#: A seed with which everything goes wrong at least once within a minute.
SEED = 7


def chaos(directory: Path, *options: str) -> tuple[int, dict[str, object], str]:
    """Run it; return its exit code, its verdict and its log."""
    command = [sys.executable, "-m", "flowforge", "chaos", "--embedded", "--json", "--logs", str(directory), *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    return ran.returncode, json.loads(ran.stdout or "{}"), ran.stderr[-6000:]


def test_trouble_is_the_same_for_the_same_seed_and_of_every_kind_within_a_minute() -> None:
    troubles = plan(SEED, 60, servers=True)

    assert troubles == plan(SEED, 60, servers=True) != plan(SEED + 1, 60, servers=True)
    assert {trouble.kind for trouble in troubles} == WEIGHTS.keys() | SERVERS.keys()
    assert {trouble.kind for trouble in plan(SEED, 3600, servers=False)} == WEIGHTS.keys()


def test_who_is_told_to_end_leaves_no_process_no_pause_and_no_run(fleet: Fleet, tmp_path: Path) -> None:
    """As Ctrl-C does: on servers of yours, where there may be no worker of that queue but its own."""
    fleet.scheduler()
    environment = fleet.environment()
    command = [sys.executable, "-m", "flowforge"]
    subprocess.run([*command, "doctor", "--allow-chaos"], cwd=ROOT, env=environment, check=True)
    with (tmp_path / "said").open("wb") as said:
        causing = subprocess.Popen(
            [*command, "chaos", "--seconds", "300", "--logs", str(tmp_path)], cwd=ROOT, env=environment, stderr=said
        )
    wait_for(lambda: models.WorkflowRun.select().where(models.WorkflowRun.state == "succeeded").count() > 5)
    crew = psutil.Process(causing.pid).children(recursive=True)

    causing.terminate()

    assert causing.wait(timeout=60) != 0
    assert len(crew) >= 5
    assert [one.pid for one in crew if one.is_running()] == []
    assert insights.pauses(models.DEFAULT_ORGANIZATION) == []
    wait_for(
        lambda: not models.WorkflowRun.select().where(models.WorkflowRun.finished_at.is_null()).count(), seconds=40
    )


@pytest.mark.soak
@pytest.mark.parametrize(
    ("seconds", "task_runs"),
    [pytest.param(60, 3_000, id="short"), pytest.param(310, 20_000, id="long")],
)
def test_nothing_is_lost_doubled_or_stuck(tmp_path: Path, seconds: int, task_runs: int) -> None:
    """B013, B014, B027, B031, B032, B043, B048, B051, B057, B068, B074, B083, B084, B098: all of them at once."""
    code, verdict, log = chaos(tmp_path, "--seconds", str(seconds), "--task-runs", str(task_runs), "--seed", str(SEED))

    assert verdict["unexplained"] == [], log
    assert {rule: number for rule, number in verdict["wrong"].items() if number} == {}, log
    assert sum(n for what, n in verdict["counts"].items() if what.startswith("task runs ")) >= task_runs
    assert verdict["counts"]["task runs succeeded"] > 0.9 * task_runs
    assert code == 0
