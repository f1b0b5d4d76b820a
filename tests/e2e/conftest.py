"""Real schedulers and workers as processes, on this test's database and namespace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowforge import client, insights
from flowforge.models import DEFAULT_ORGANIZATION, TaskRun
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.settings import Settings

ROOT = Path(__file__).parents[2]


class Fleet:
    """Processes that this test started."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings, self._directory = settings, directory
        self.processes: list[subprocess.Popen[bytes]] = []

    def scheduler(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start a scheduler."""
        return self.start("flowforge.scheduler", **environment)

    def worker(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it is ready."""
        process = self.start("flowforge.actors", **environment)
        wait_for(lambda: "worker.ready" in self.log(process) or process.poll() is not None)
        return process

    def start(self, module: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a module as a process; its words go to a file."""
        number = len(self.processes)
        with (self._directory / f"{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module], env={**self.environment(), **environment}, stderr=log, stdout=log
            )
        self.processes.append(process)
        return process

    def environment(self) -> dict[str, str]:
        """Return what a process of this fleet is told."""
        return {
            **os.environ,
            "DATABASE_URL": self.settings.database_url,
            "REDIS_URL": self.settings.redis_url,
            "FLOWFORGE_NAMESPACE": self.settings.namespace,
            "FLOWFORGE_MODULES": "tests.e2e.workflows",
            "FLOWFORGE_LEASE": "2",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self._directory),  # which takes the ledgers of its workers along
        }

    def log(self, process: subprocess.Popen[bytes]) -> str:
        """Return what a process has said."""
        return (self._directory / f"{self.processes.index(process)}.log").read_text(errors="replace")

    def tell(self) -> None:
        """Print what the processes have said: pytest shows it when the test has failed."""
        for number, process in enumerate(self.processes):
            sys.stdout.write(f"-- {number} {process.args} -> {process.returncode}\n{self.log(process)[-4000:]}\n")

    def stop(self) -> None:
        """Kill what still runs, by its id."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet, none of which outlives the test; the client is configured for the same database."""
    fleet = Fleet(settings, tmp_path)
    engine = client.configure(settings)
    yield fleet
    fleet.stop()
    fleet.tell()
    engine.database.close()
    broken = {rule: count for rule, count in insights_after(settings).items() if count}
    assert not broken


def insights_after(settings: Settings) -> dict[str, int]:
    """Count broken invariants, on a connection of its own."""
    engine = client.configure(settings)
    broken = insights.broken_invariants(engine.database.raw())
    engine.database.close()
    return broken


def the_task_run(run: client.Run, key: str) -> TaskRun:
    """Return a task run of a run, as it is now."""
    (summary,) = [task for task in insights.task_summaries(DEFAULT_ORGANIZATION, run.id) if task.key == key]
    return TaskRun.get_by_id(summary.id)


def owner_pid(run: client.Run, key: str) -> int:
    """Wait until a task run is owned; return its owner's process id."""
    wait_for(lambda: the_task_run(run, key).state == "running")
    return int(the_task_run(run, key).lease_owner.split(":")[1])


def events(run: client.Run, key: str) -> list[str]:
    """Return the kinds of a task run's events, in order."""
    return [event.kind for event in run.events() if event.task == key]
