"""Workers that are lost: by what a task does to them, under a supervisor, between a failure and its handler."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from flowforge import client
from flowforge.states import RunState
from tests.e2e import stopping_workflows as workflows
from tests.e2e.conftest import events, owner_pid, the_task_run
from tests.e2e.nursery import nursing
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge import Workflow
    from flowforge.settings import Settings
    from tests.e2e.nursery import Forked, Nursery

#: The lease is so long that no test waits for its end.
WORKER = {"FLOWFORGE_MODULES": "tests.e2e.stopping_workflows", "FLOWFORGE_LEASE": "600", "FLOWFORGE_THREADS": "2"}


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Nursery]:
    with nursing(settings, tmp_path) as nursery:
        yield nursery


def begun_pid(run: client.Run, key: str) -> int:
    """Wait until a task's code has begun, and told so; return its owner's process id."""
    pid, id_ = owner_pid(run, key), the_task_run(run, key).id
    wait_for(lambda: client.engine().runway.progress([id_]))
    return pid


@pytest.mark.parametrize(
    ("deadly", "ended_by", "starts"),
    [(workflows.deadly, signal.SIGKILL, 2), (workflows.faulty, signal.SIGSEGV, 1)],
    ids=["killed", "faulty"],
)
def test_a_task_that_ends_its_worker_charges_no_neighbour_that_had_not_begun(
    fleet: Nursery, tmp_path: Path, deadly: Workflow[[]], ended_by: signal.Signals, starts: int
) -> None:
    """B044, B045: it ends as worker_lost after its last start, and its run goes on to its handler."""
    file = tmp_path / "begun"
    fleet.scheduler()
    run, neighbours = deadly.start(), list[client.Run]()

    for _ in range(starts):
        worker = fleet.worker(**WORKER, BEGUN=str(file))
        neighbours += feed(worker)
        assert worker.poll() == -ended_by
    fleet.worker(**WORKER, BEGUN=str(file))

    assert run.wait(timeout=30) is RunState.FAILED
    assert events(run, "kill") == ["created", *["claimed", "expired"] * (starts - 1), "claimed", "failed"]
    assert the_task_run(run, "kill").error["type"] == "worker_lost"
    states = {task.key: task.state for task in run.tasks()}
    assert states == {"kill": "failed", "follow": "skipped", "mourn": "succeeded"}
    assert {one.wait(timeout=30) for one in neighbours} == {RunState.SUCCEEDED}
    begun, spared, charged = set(file.read_text().splitlines()), *ends_of(neighbours)
    assert spared
    assert not spared & begun
    assert len(charged - begun) <= starts  # one in the other thread may have been about to


def feed(worker: Forked) -> list[client.Run]:
    """Start short runs until a worker has ended, so that it has always more to do than threads."""
    runs = list[client.Run]()
    while worker.poll() is None:
        assert len(runs) < 4000
        runs += workflows.short.start_many([workflows.short.prepare()] * 50)
        wait_for(lambda: worker.poll() is not None or client.engine().runway.length("default") < 9)
    return runs


def ends_of(runs: list[client.Run]) -> tuple[set[str], set[str]]:
    """Return (run, token) of the short runs' attempts that were handed back, with nothing charged, and that expired."""
    ended: dict[str, set[str]] = {"handed_back": set(), "expired": set()}
    for run in runs:
        attempt = 1
        for event in run.events():
            if event.kind in ended:
                attempt += event.kind == "expired"
                assert event.fencing_token
                ended[event.kind].add(f"{run.id} {event.fencing_token - 1}")
            assert event.attempt in {attempt, None}
    return ended["handed_back"], ended["expired"]


def test_a_supervised_worker_that_is_killed_is_replaced_and_its_task_goes_on_in_seconds(fleet: Nursery) -> None:
    """B043: by default settings; whoever comes after it on its machine need not wait for the lease of 15 s."""
    fleet.scheduler()
    supervisor = fleet.start("flowforge", "worker", **{**WORKER, "FLOWFORGE_LEASE": "15"})
    run = workflows.interrupted.start()
    victim = begun_pid(run, "linger")

    killed_at = time.time()
    os.kill(victim, signal.SIGKILL)

    assert run.wait(timeout=20) is RunState.SUCCEEDED
    assert events(run, "linger") == ["created", "claimed", "expired", "claimed", "succeeded"]
    _, again = [event.at.timestamp() for event in run.events() if event.kind == "claimed"]
    assert again - killed_at < 9
    supervisor.terminate()
    assert supervisor.wait(timeout=20) == 0


def test_an_heir_takes_from_the_dead_and_not_from_the_frozen(fleet: Nursery) -> None:
    """B051: one that is frozen may go on, and keeps what it owns until its lease ends."""
    fleet.scheduler()
    frozen = fleet.worker(**WORKER)
    spared = workflows.polite.start()
    owner_pid(spared, "poll")
    frozen.send_signal(signal.SIGSTOP)
    dead = fleet.worker(**WORKER)
    lost = workflows.interrupted.start()
    assert begun_pid(lost, "linger") == dead.pid
    heir = fleet.worker(**WORKER)

    dead.kill()

    assert lost.wait(timeout=20) is RunState.SUCCEEDED
    assert events(lost, "linger") == ["created", "claimed", "expired", "claimed", "succeeded"]
    assert fleet.log(heir).count("worker.inherited") == 1
    assert events(spared, "poll") == ["created", "claimed"]
    frozen.send_signal(signal.SIGCONT)
    spared.cancel()
    assert spared.wait(timeout=20) is RunState.CANCELLED
    assert events(spared, "poll") == ["created", "claimed", "cancel_requested", "cancelled"]


@pytest.mark.parametrize("once", [workflows.hogging_once, workflows.matching_once], ids=["usleep", "regex"])
def test_code_that_keeps_the_interpreter_loses_its_lease_and_its_result_is_refused(
    fleet: Nursery, once: Workflow[[]]
) -> None:
    """B049: nothing of its process can renew it meanwhile, in which others go on elsewhere."""
    fleet.scheduler()
    hog = fleet.worker(**{**WORKER, "FLOWFORGE_LEASE": "1"})
    run = once.start()
    owner_pid(run, "keep")
    fleet.worker(**WORKER)
    neighbours = workflows.short.start_many([workflows.short.prepare()] * 20)

    assert run.wait(timeout=20) is RunState.SUCCEEDED
    assert {one.wait(timeout=20) for one in neighbours} == {RunState.SUCCEEDED}
    wait_for(lambda: "refused" in events(run, "keep"))
    became = events(run, "keep")
    became.remove("refused")  # whenever it came
    assert became == ["created", "claimed", "expired", "claimed", "succeeded"]
    assert run.result(once.tasks["keep"]) == 2
    assert hog.poll() is None


def test_a_process_whose_interpreter_is_kept_for_ever_is_replaced(fleet: Nursery) -> None:
    """B049, B064: no thread of it could say so, and its supervisor sees a process that runs."""
    fleet.scheduler()
    supervisor = fleet.start("flowforge", "worker", **{**WORKER, "FLOWFORGE_LEASE": "2", "HUNG": "3"})
    run = workflows.hanging_once.start()
    hung = owner_pid(run, "keep")

    assert run.wait(timeout=20) is RunState.SUCCEEDED  # in the process that came after it

    assert events(run, "keep") == ["created", "claimed", "expired", "claimed", "succeeded"]
    log = fleet.log(supervisor)
    assert f"program.exited name=worker.1 pid={hung} code=1" in log
    assert 'stopping_workflows.py", line' in log  # where it stood
    assert "in hog" in log
    supervisor.terminate()
    assert supervisor.wait(timeout=20) == 0


@pytest.mark.parametrize("at", ["finish.after_commit", "claim.after_commit:#2"], ids=["before", "in its hands"])
@pytest.mark.parametrize(
    ("watched", "handler", "state"),
    [(workflows.watched_failure, "alert", RunState.FAILED), (workflows.watched_success, "praise", RunState.SUCCEEDED)],
    ids=["failure", "success"],
)
def test_a_handler_runs_though_the_worker_dies_before_it(
    fleet: Nursery, watched: Workflow[[]], handler: str, state: RunState, at: str
) -> None:
    """Between the outcome and its handler, and with the handler claimed: it is a task, and not a thing in memory."""
    fleet.scheduler()
    doomed = fleet.worker(**WORKER, FLOWFORGE_CRASH_AT=at)

    run = watched.start()
    assert doomed.wait(timeout=20) == -signal.SIGKILL
    fleet.worker(**WORKER)

    assert run.wait(timeout=20) is state
    others = {"alert": "skipped", "praise": "skipped"}
    states = {task.key: task.state for task in run.tasks() if task.key in others}
    assert states == {**others, handler: "succeeded"}
    assert the_task_run(run, handler).attempt == 1
    assert events(run, handler).count("succeeded") == 1
