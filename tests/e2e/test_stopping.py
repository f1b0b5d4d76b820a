"""Cancelling, with real workers: code that heeds it, code that does not, and workers that are not there."""

from __future__ import annotations

import random
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from flowforge import client
from flowforge.errors import CannotCancel
from flowforge.models import OutboxMessage
from flowforge.states import RunState
from tests.e2e import stopping_workflows as workflows
from tests.e2e.conftest import events, owner_pid, the_task_run
from tests.e2e.nursery import nursing
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge.settings import Settings
    from tests.e2e.nursery import Nursery

GRACE = 4.0  # seconds
WORKER = {"FLOWFORGE_MODULES": "tests.e2e.stopping_workflows", "FLOWFORGE_LEASE": "600"}
DULL = {"FLOWFORGE_CANCEL_GRACE": str(GRACE)}
HASTY = {"FLOWFORGE_CANCEL_GRACE": "1"}


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Nursery]:
    with nursing(settings, tmp_path) as nursery:
        yield nursery


def seconds_to_stop(run: client.Run, key: str) -> float:
    """Return how long after the request a task run was over, by the database's clock."""
    at = {event.kind: event.at for event in run.events() if event.task == key}
    return (at["cancelled"] - at["cancel_requested"]).total_seconds()


# Code that runs


def test_running_code_is_told_within_two_seconds(fleet: Nursery) -> None:
    fleet.scheduler(**DULL)
    process = fleet.worker(**WORKER, **DULL)
    runs = [workflows.polite.start(), workflows.polite_async.start()]
    for run in runs:
        owner_pid(run, "poll")

    answers = [run.cancel(reason="enough", by="me") for run in runs]

    assert answers == [RunState.RUNNING] * 2
    for run in runs:
        assert run.wait(timeout=20) is RunState.CANCELLED
        assert seconds_to_stop(run, "poll") < 2
        assert events(run, "poll") == ["created", "claimed", "cancel_requested", "cancelled"]
        told = [event.detail for event in run.events() if event.kind == "cancel_requested"]
        assert told == [{"by": "me", "reason": "enough"}] * 2  # of the run, and of its task run
    assert process.poll() is None


def test_code_that_goes_on_is_interrupted_after_half_the_grace(fleet: Nursery) -> None:
    fleet.scheduler(**DULL)
    process = fleet.worker(**WORKER, **DULL)
    runs = [workflows.stubborn.start(), workflows.waiting.start()]
    for run in runs:
        owner_pid(run, "ignore")

    for run in runs:
        run.cancel()

    for run in runs:
        assert run.wait(timeout=20) is RunState.CANCELLED
        assert GRACE / 2 <= seconds_to_stop(run, "ignore") < GRACE
        assert the_task_run(run, "ignore").error["type"] == "AttemptCancelled"
    assert process.poll() is None  # it serves on


def test_code_that_hears_nothing_is_cut_off_and_its_process_replaced_while_others_go_on(fleet: Nursery) -> None:
    """B052: a thread in a call into C cannot be interrupted, nor can one that must not be."""
    fleet.scheduler(**HASTY)
    supervisor = fleet.start("flowforge", "worker", "--threads", "2", **WORKER, **HASTY, FLOWFORGE_GRACE="5")
    run, other = workflows.deaf.start(), workflows.steps.start()
    first = owner_pid(run, "sleep")
    owner_pid(other, "two")

    run.cancel()

    assert run.wait(timeout=20) is RunState.CANCELLED
    assert 1 <= seconds_to_stop(run, "sleep") < 4
    assert other.wait(timeout=20) is RunState.SUCCEEDED
    assert events(other, "two") == ["created", "readied", "claimed", "succeeded"]  # in the process that drains
    wait_for(lambda: re.search(rf"program\.exited name=worker\.1 pid={first} code=75", fleet.log(supervisor)))
    later = workflows.polite.start()
    assert owner_pid(later, "poll") != first
    later.cancel()
    assert later.wait(timeout=20) is RunState.CANCELLED
    supervisor.terminate()
    assert supervisor.wait(timeout=20) == 0


@pytest.mark.parametrize("how", ["hogging", "frozen"])
def test_a_process_in_which_nothing_runs_is_cut_off_from_and_its_late_completion_refused(
    fleet: Nursery, how: str
) -> None:
    """B049, B051, B052: nobody there can hear it; its lease would have gone on for minutes."""
    fleet.scheduler(**HASTY)
    process = fleet.worker(**WORKER, **HASTY)
    run = {"hogging": workflows.hogging, "frozen": workflows.polite}[how].start()
    (key,) = [task.key for task in run.tasks()]
    owner_pid(run, key)
    if how == "frozen":
        process.send_signal(signal.SIGSTOP)

    run.cancel()

    assert run.wait(timeout=20) is RunState.CANCELLED
    assert 1 <= seconds_to_stop(run, key) < 6  # its own grace, and what its scheduler allows it beyond that
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: "refused" in events(run, key))
    assert the_task_run(run, key).state == "cancelled"
    later = workflows.polite.start()
    owner_pid(later, "poll")  # it serves on
    assert process.poll() is None


def test_a_cancel_and_a_completion_at_once_agree_with_the_reply(fleet: Nursery) -> None:
    """B073: within five milliseconds of the commit, which is found by the answers; each is what becomes of the run."""
    fleet.scheduler(**DULL)
    fleet.worker(**WORKER, **DULL)
    dice, answers, late = random.Random(73), list[RunState](), 0.005
    for _ in range(60):
        returns = time.time() + 0.08
        run = workflows.timed.start(at=returns)
        wait_for(lambda run=run: run.state is not RunState.PENDING, every=0.005)
        time.sleep(max(0.0, returns + late + dice.uniform(-0.005, 0.005) - time.time()))
        answers.append(answer(run))

        assert run.wait(timeout=20) is answers[-1]
        assert the_task_run(run, "until").state == answers[-1]
        late += 0.002 if answers[-1] is RunState.CANCELLED else -0.002

    assert set(answers) == {RunState.CANCELLED, RunState.SUCCEEDED}


def answer(run: client.Run) -> RunState:
    """Cancel a run; return how it will end by what is answered."""
    try:
        run.cancel()
    except CannotCancel as refused:
        return RunState(str(refused.state))
    return RunState.CANCELLED


def test_nothing_follows_a_cancel_but_clean_ups_and_a_late_success_is_told(fleet: Nursery) -> None:
    """B074: the second of three ignores the cancel and ends well; the third never starts."""
    fleet.scheduler(**DULL)
    fleet.worker(**WORKER, **DULL)
    run = workflows.steps.start()
    owner_pid(run, "two")

    run.cancel()

    assert run.wait(timeout=20) is RunState.CANCELLED
    assert {task.key: task.state for task in run.tasks()} == {
        "one": "succeeded", "two": "cancelled", "three": "cancelled", "clean_up": "succeeded"
    }  # fmt: skip
    assert [event.detail for event in run.events() if (event.task, event.kind) == ("two", "cancelled")] == [
        {"outcome": "succeeded"}
    ]
    assert events(run, "three") == ["created", "cancelled"]
    assert OutboxMessage.select().count() == 0


# Where no code runs


def test_a_cancel_is_final_at_once_where_no_code_runs_and_survives_the_start_of_workers(fleet: Nursery) -> None:
    """B075: (a) before any worker, (b) in the wait for a retry, (d) with all workers down; B076: then one starts."""
    fleet.scheduler(**DULL)
    first = fleet.worker(**WORKER, **DULL)
    retrying, handed_back = workflows.retrying.start(), workflows.polite.start()
    wait_for(lambda: "retried" in events(retrying, "try_later"))
    owner_pid(handed_back, "poll")
    first.terminate()
    assert first.wait(timeout=20) == 0
    published = workflows.short.start()
    wait_for(lambda: client.engine().runway.length("default") == 2)
    runs = [retrying, handed_back, published]

    assert [run.cancel() for run in runs] == [RunState.CANCELLED] * 3

    before = [len(run.events()) for run in runs]
    fleet.worker(**WORKER, **DULL)
    later = workflows.short.start()
    assert later.wait(timeout=20) is RunState.SUCCEEDED
    assert [len(run.events()) for run in runs] == before
    assert events(handed_back, "poll") == ["created", "claimed", "handed_back", "cancelled"]
    assert OutboxMessage.select().count() == 0


def test_what_a_worker_has_fetched_already_is_not_started(fleet: Nursery, tmp_path: Path) -> None:
    """B076: the worker stands between the broker and its claim."""
    go = tmp_path / "go"
    fleet.scheduler(**DULL)
    fleet.worker(**WORKER, **DULL, FLOWFORGE_PAUSE_AT=f"consume.popped={go}")
    run = workflows.short.start()
    wait_for(go.with_name("go.reached").exists)

    cancelled = run.cancel()
    go.touch()
    later = workflows.short.start()

    assert cancelled is RunState.CANCELLED
    assert later.wait(timeout=20) is RunState.SUCCEEDED
    assert events(run, "quick") == ["created", "cancelled"]


def test_a_dead_workers_task_that_was_to_stop_ends_with_its_lease(fleet: Nursery) -> None:
    """B075: (c), the worker is killed, and nobody starts it again."""
    fleet.scheduler(**DULL)
    worker = fleet.worker(**{**WORKER, "FLOWFORGE_LEASE": "2"})
    run = workflows.polite.start()
    owner_pid(run, "poll")
    worker.send_signal(signal.SIGSTOP)  # or it would heed it before it dies

    run.cancel()
    worker.kill()

    assert run.wait(timeout=20) is RunState.CANCELLED
    assert seconds_to_stop(run, "poll") < GRACE
    assert the_task_run(run, "poll").attempt == 1
