"""
A client process, for tests that kill it: `ACT` says what it does.

`start_100` starts a run in each of a hundred children, which are killed in the moment after the commit; `start_two`
starts two runs in one transaction.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from flowforge import client
from flowforge.settings import Settings, arm_faults
from tests.e2e.fault_workflows import single

RUNS = 100


def die(*_: object) -> NoReturn:
    """Die before anyone is told of the commit."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def start_100() -> None:
    """Start runs, and have each of those who do so killed."""
    for _ in range(RUNS):
        child = os.fork()
        if not child:
            client.Engine.wake = die  # type: ignore[method-assign]
            single.start()
        assert os.waitpid(child, 0)[1] == signal.SIGKILL


def start_two() -> None:
    """Start two runs."""
    view = single.options()
    view.start_many([view.prepare(), view.prepare()])


if __name__ == "__main__":
    arm_faults()
    client.configure(Settings.from_env())
    {"start_100": start_100, "start_two": start_two}[os.environ["ACT"]]()
