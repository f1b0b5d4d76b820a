"""
Processes for tests that need many: forked from one that has imported everything, so that each starts at once.

They are hasty: what a scheduler does every few seconds it does ten times a second, and nothing waits for long.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flowforge import client, outbox
from flowforge.actors import intake
from flowforge.db import statements
from flowforge.scheduler.duties import JOBS
from tests.e2e.conftest import Fleet, insights_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from flowforge.settings import Settings

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["flowforge.actors.boot", "flowforge.scheduler.duties", "flowforge.embedded.servers"])
#: Seconds between turns of a duty, and until a deferred dispatch is offered again; and until one is taken for lost.
_SOON, _LOST_AFTER = 0.1, 0.5


class Forked:
    """A process, as subprocess has it."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: str) -> None:
        self.args = command
        self._process = _context.Process(target=_run, args=(command, dict(environment), log), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or less than none: the signal that ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code once it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


class Nursery(Fleet):
    """A fleet whose processes are forked, and hasty."""

    def environment(self) -> dict[str, str]:
        """Return what a process of this fleet is told."""
        own = {"FLOWFORGE_MODULES": "tests.e2e.fault_workflows", "FLOWFORGE_QUEUES": "default", "FLOWFORGE_LEASE": "1"}
        return {**super().environment(), **own, "FLOWFORGE_GRACE": "0.1", "FLOWFORGE_CANCEL_GRACE": "0.1"}

    def start(self, module: str, *arguments: str, **environment: str) -> Any:
        """Start a module as a process; its words go to a file."""
        command, environment = [module, *arguments], {**self.environment(), **environment}
        log = self._directory / f"{len(self.processes)}.log"
        log.touch()
        self.processes.append(Forked(command, environment, str(log)))  # type: ignore[arg-type]
        return self.processes[-1]


@contextmanager
def nursing(settings: Settings, directory: Path) -> Iterator[Nursery]:
    """Yield a nursery, none of whose processes outlives the block, and see that no invariant is broken after it."""
    nursery = Nursery(settings, directory)
    engine = client.configure(settings)
    try:
        yield nursery
    finally:
        nursery.stop()
        nursery.tell()
        engine.database.close()
    assert {rule: number for rule, number in insights_after(settings).items() if number} == {}


def _run(command: list[str], environment: Mapping[str, str], log: str) -> None:
    words = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(words, stream)
    os.environ.update(environment)
    _be_hasty()
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__")


def _be_hasty() -> None:
    outbox.LOST_AFTER, intake._DEFER = _LOST_AFTER, _SOON
    statements.IDLE_LIMIT = statements.IDLE_LIMIT.replace("30s", "1s")
    vars(sys.modules["flowforge.scheduler.build"])["JOBS"] = tuple(job._replace(every=_SOON) for job in JOBS)
