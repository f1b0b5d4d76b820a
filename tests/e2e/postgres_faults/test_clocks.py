"""Clocks that are wrong: of the machines of schedulers and workers, and of the database itself."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg2
import pytest

from flowforge.db import load_statements
from tests.e2e.conftest import ROOT, Fleet, events, owner_pid, the_task_run
from tests.e2e.postgres_faults.ledger import LEDGER, check, ledger
from tests.support import wait_for

if TYPE_CHECKING:
    from flowforge import Run
    from flowforge.settings import Settings
    from tests.e2e.postgres_faults.conftest import Load

#: Seconds: Fleet's lease, what a poll may take on a busy machine, and by how much the database's clock is set back.
LEASE, POLL, STEP = 2.0, 2.0, 3600
PATH = {"PYTHONPATH": f"{Path(__file__).parent / 'off_clock'}:{ROOT}"}


def off(seconds: int) -> dict[str, str]:
    """Return what a process is told whose machine's clock is off by so many seconds."""
    return {**PATH, "CLOCK_OFF": str(seconds)}


def start_and_stop(file: Path, *, spare: int = 0) -> Run:
    """Start a run and stop the worker, other than `spare`, that has its first task: as if its machine were lost."""
    run = ledger.start(str(file), seconds=1)
    if (pid := owner_pid(run, "first")) == spare:
        return start_and_stop(file, spare=spare)
    os.kill(pid, signal.SIGSTOP)
    return run


def check_that_a_lease_ends(file: Path) -> None:
    """Assert that a worker's lease is taken from it as soon as it is over."""
    run, began = start_and_stop(file), time.monotonic()
    wait_for(lambda: "expired" in events(run, "first"))
    assert time.monotonic() - began < LEASE + POLL
    check([run], file)


def test_machines_whose_clocks_are_ten_minutes_off_work_as_others(fleet: Fleet, load: Load, file: Path) -> None:
    """B060: a scheduler and a worker are ahead, and as many behind; a lease ends when it is over, and not before."""
    for seconds in (600, -600):
        fleet.start("flowforge.scheduler", **off(seconds))
        fleet.worker(**LEDGER, **off(seconds))
    load.start()
    load.grow()
    long = ledger.start(str(file), seconds=LEASE + 1)
    load.check()

    check([long], file)
    assert events(long, "first") == ["created", "claimed", "succeeded"]
    check_that_a_lease_ends(file)


@pytest.mark.parametrize("seconds", [-600, pytest.param(600, marks=pytest.mark.soak)])
def test_a_scheduler_goes_on_when_its_clock_steps(fleet: Fleet, file: Path, seconds: int) -> None:
    """B023: APScheduler sleeps by that clock."""
    scheduler = fleet.start("flowforge.scheduler", **off(seconds), CLOCK_STEPS="1")
    for _ in range(2):
        fleet.worker(**LEDGER)
    check([ledger.start(str(file))], file)

    scheduler.send_signal(signal.SIGUSR1)

    check_that_a_lease_ends(file)


def move(settings: Settings, seconds: int) -> None:
    """Set the database's clock off by so many seconds."""
    with closing(psycopg2.connect(settings.database_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(load_statements("flowforge.testing")["move"], {"microseconds": seconds * 1_000_000})


def test_what_begins_after_the_databases_clock_was_set_back_is_as_ever(
    fleet: Fleet, settings: Settings, load: Load, file: Path
) -> None:
    """What waits for a moment, of a start, a retry or a lost lease, waits until the clock has come to that again."""
    fleet.scheduler()
    for _ in range(3):
        fleet.worker(**LEDGER)
    load.start()
    load.grow()
    running = ledger.start(str(file), seconds=LEASE + 2)
    wait_for(lambda: the_task_run(running, "fails_once").state == "succeeded")
    stopped = start_and_stop(file, spare=owner_pid(running, "first"))

    move(settings, -STEP)
    load.grow()
    load.stop()

    check([running], file)
    assert events(running, "first") == ["created", "claimed", "succeeded"]
    check_that_a_lease_ends(file)
    assert "expired" not in events(stopped, "first")
    move(settings, 0)
    check([stopped], file)
    load.check()
