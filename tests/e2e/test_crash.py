"""Workers that die, sleep too long, or are told to go; a Redis that forgets."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from flowforge import client
from flowforge.states import RunState
from tests.e2e import workflows
from tests.e2e.conftest import Fleet, events, owner_pid, the_task_run
from tests.support import wait_for

if TYPE_CHECKING:
    from flowforge.embedded.servers import PostgresServer


def test_a_killed_workers_task_runs_again_within_its_lease(fleet: Fleet) -> None:
    """B043: SIGKILL of a process that by the database holds a lease."""
    fleet.scheduler()
    fleet.worker()
    fleet.worker()
    run = workflows.slow.start(n=1)

    os.kill(owner_pid(run, "sleep"), signal.SIGKILL)
    killed_at = time.monotonic()
    wait_for(lambda: "expired" in events(run, "sleep"))

    assert time.monotonic() - killed_at < 2 + 2  # the lease, and the poll on a busy machine
    assert run.wait(timeout=20) is RunState.SUCCEEDED
    assert events(run, "sleep") == ["created", "claimed", "expired", "claimed", "succeeded"]
    assert the_task_run(run, "sleep").attempt == 2


def test_a_worker_that_wakes_too_late_is_refused(fleet: Fleet) -> None:
    """B051: SIGSTOP past the lease, then SIGCONT: the late completion is refused by its token and recorded."""
    fleet.scheduler()
    fleet.worker()
    fleet.worker()
    run = workflows.slow.start(n=1)

    zombie = owner_pid(run, "sleep")
    os.kill(zombie, signal.SIGSTOP)
    assert run.wait(timeout=30) is RunState.SUCCEEDED
    os.kill(zombie, signal.SIGCONT)

    wait_for(lambda: "refused" in events(run, "sleep"))
    assert events(run, "sleep") == ["created", "claimed", "expired", "claimed", "succeeded", "refused"]
    assert run.result(workflows.after_sleep) != zombie


def test_sigterm_lets_short_work_end_and_gives_long_work_back(fleet: Fleet) -> None:
    """B062: no attempt is charged, and the process is gone within the grace and five seconds."""
    fleet.scheduler()
    worker = fleet.worker(FLOWFORGE_GRACE="2")
    short, long = workflows.slow.start(n=1), workflows.slow.start(n=8)
    for run in (short, long):
        owner_pid(run, "sleep")

    worker.terminate()

    assert worker.wait(timeout=2 + 5) == 0
    assert events(short, "sleep") == ["created", "claimed", "succeeded"]
    assert events(long, "sleep") == ["created", "claimed", "handed_back"]
    assert (the_task_run(long, "sleep").state, the_task_run(long, "sleep").attempt) == ("ready", 1)


def test_sigterm_under_load_loses_nothing_and_charges_nothing(fleet: Fleet) -> None:
    """B062: all threads are busy, more is claimed already, and more than that waits."""
    fleet.scheduler()
    worker = fleet.worker(FLOWFORGE_GRACE="2", FLOWFORGE_THREADS="8")
    runs = workflows.slow.start_many(workflows.slow.prepare(n=1) for _ in range(40))
    wait_for(
        lambda: runs[0].state is RunState.SUCCEEDED or sum("succeeded" in events(run, "sleep") for run in runs) > 4
    )

    worker.terminate()

    assert worker.wait(timeout=2 + 5) == 0
    fleet.worker(FLOWFORGE_THREADS="8")
    assert {run.wait(timeout=60) for run in runs} == {RunState.SUCCEEDED}
    for history in [events(run, key) for run in runs for key in ("sleep", "after_sleep")]:
        assert history.count("claimed") == 1 + history.count("handed_back")
        assert not {"expired", "retried", "refused"} & set(history)
    assert {the_task_run(run, "sleep").attempt for run in runs} == {1}


def test_a_lost_task_that_was_on_its_last_start_fails_its_run(fleet: Fleet) -> None:
    """B044, B045: a body that kills its worker every time ends as worker_lost after its budget."""
    fleet.scheduler()
    workers = [fleet.worker() for _ in range(4)]
    run = workflows.slow.start(n=30)

    for number in range(3):
        wait_for(lambda number=number: events(run, "sleep").count("claimed") == number + 1)
        os.kill(owner_pid(run, "sleep"), signal.SIGKILL)

    assert run.wait(timeout=40) is RunState.FAILED
    assert the_task_run(run, "sleep").error["type"] == "worker_lost"
    assert the_task_run(run, "after_sleep").state == "skipped"
    assert sum(worker.poll() is None for worker in workers) == 1


def test_outcomes_wait_for_a_database_that_is_away(fleet: Fleet, postgres: PostgresServer) -> None:
    """B009, B057, B098: PostgreSQL is restarted while an attempt runs; nothing runs twice, nobody needs a restart."""
    fleet.scheduler()
    worker = fleet.worker(FLOWFORGE_LEASE="15")
    run = workflows.slow.start(n=1)
    owner_pid(run, "sleep")

    postgres.restart()
    client.configure(fleet.settings)

    assert wait_for(lambda: run.state.ended, seconds=30)
    assert run.state is RunState.SUCCEEDED
    assert events(run, "sleep") == ["created", "claimed", "succeeded"]
    assert worker.poll() is None
