"""Limits in time, with real processes: of an attempt, of the wait for a worker, of a run, of a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge import insights
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RunState
from tests.e2e import stopping_workflows as workflows
from tests.e2e.conftest import events, owner_pid, the_task_run
from tests.e2e.nursery import nursing
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from flowforge import client
    from flowforge.settings import Settings
    from tests.e2e.nursery import Nursery

WORKER = {"FLOWFORGE_MODULES": "tests.e2e.stopping_workflows"}


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Nursery]:
    with nursing(settings, tmp_path) as nursery:
        yield nursery


def moment(run: client.Run, kind: str, key: str | None = None) -> datetime:
    """Return when something of that kind happened first, by the database's clock."""
    return next(event.at for event in run.events() if (event.kind, event.task) == (kind, key))


# The wait for a worker


def test_what_no_worker_starts_in_time_fails(fleet: Nursery) -> None:
    """B125: with no worker, and with one for another queue only; what may wait loses none of its timeout."""
    fleet.scheduler()
    unserved, patient = workflows.unserved.start(), workflows.patient.start()
    (waiting,) = [queue for queue in insights.list_queues(DEFAULT_ORGANIZATION) if queue.name == "nobody"]
    state = unserved.state

    ends = [unserved.wait(timeout=20)]
    fleet.worker(**WORKER)
    later = workflows.unserved.start()
    ends += [later.wait(timeout=20), patient.wait(timeout=20)]

    assert (waiting.due, state) == (1, RunState.PENDING)
    assert waiting.oldest is not None
    assert (waiting.oldest - moment(unserved, "created")).total_seconds() == pytest.approx(0, abs=0.1)
    assert ends == [RunState.FAILED, RunState.FAILED, RunState.SUCCEEDED]
    for run in (unserved, later):
        assert events(run, "never") == ["created", "failed"]
        assert the_task_run(run, "never").error["type"] == "not_started"
        assert 1 <= (moment(run, "failed") - moment(run, "created")).total_seconds() < 3
    assert events(patient, "wait_long_for_a_worker") == ["created", "claimed", "succeeded"]


# A run


def test_a_run_that_is_late_is_cancelled_and_cleaned_up(fleet: Nursery) -> None:
    fleet.scheduler()
    fleet.worker(**WORKER, FLOWFORGE_CANCEL_GRACE="4")

    run = workflows.hurried.start()
    shorter = workflows.hurried.options(deadline="1s").start()
    unserved = workflows.unserved.options(deadline="500ms").start()

    assert [one.wait(timeout=20) for one in (run, shorter, unserved)] == [RunState.CANCELLED] * 3
    for one, deadline in ((run, 2), (shorter, 1), (unserved, 0.5)):
        (asked,) = [event for event in one.events() if event.kind == "cancel_requested" and event.task is None]
        assert asked.detail is not None
        assert asked.detail["by"] == "flowforge"
        assert "deadline" in asked.detail["reason"]
        assert deadline <= (asked.at - moment(one, "created")).total_seconds() < deadline + 1
    for one in (run, shorter):
        assert {task.key: task.state for task in one.tasks()} == {"dawdle": "cancelled", "tidy": "succeeded"}
    assert events(unserved, "never") == ["created", "cancelled"]


# An attempt


def test_an_attempt_that_is_late_is_tried_again(fleet: Nursery) -> None:
    fleet.scheduler()
    fleet.worker(**WORKER)

    run = workflows.late_once.start()

    assert run.wait(timeout=20) is RunState.SUCCEEDED
    assert run.result(workflows.late_once.tasks["dawdle_once"]) == 2
    assert events(run, "dawdle_once") == ["created", "claimed", "retried", "claimed", "succeeded"]
    (late,) = [event.detail for event in run.events() if event.kind == "retried"]
    assert late is not None
    assert late["type"] == "AttemptTimeout"


def test_a_worker_whose_threads_are_all_stuck_is_replaced(fleet: Nursery) -> None:
    """B052, B063: a lock, a socket, a sleep and a call into C; they are given up five seconds after their timeout."""
    fleet.scheduler()
    worker = fleet.worker(**WORKER, FLOWFORGE_THREADS="4", FLOWFORGE_LEASE="600")

    run = workflows.stuck.start()

    assert run.wait(timeout=20) is RunState.FAILED
    errors = {task.key: task.error and task.error["type"] for task in run.tasks()}
    assert errors == dict.fromkeys(("lock", "socket", "sleep", "in-c"), "AttemptTimeout")
    assert worker.wait(timeout=20) == 75
    fleet.worker(**WORKER)
    assert workflows.short.start().wait(timeout=20) is RunState.SUCCEEDED


def test_an_attempt_has_a_timeout_without_one() -> None:
    """B063: no attempt is renewed for ever."""
    assert workflows.polite.tasks["poll"].timeout == 3600


# A lease


def test_healthy_attempts_keep_their_lease(fleet: Nursery) -> None:
    """B046, B050: of five leases, and in event loops that user code blocks; each is renewed every third of it."""
    fleet.scheduler()
    fleet.worker(**WORKER, FLOWFORGE_LEASE="1")
    run = workflows.healthy.start()
    owner_pid(run, "five_leases")
    seen = set()

    def renewed_until_the_end() -> bool:
        row = the_task_run(run, "five_leases")
        seen.add(row.lease_expires_at)
        return row.lease_expires_at is None

    wait_for(renewed_until_the_end)

    assert run.wait(timeout=20) is RunState.SUCCEEDED
    for key in ("five_leases", "block_the_loop", "block_an_own_loop"):
        assert events(run, key) == ["created", "claimed", "succeeded"]
    assert 10 <= len(seen) - 1 <= 17


def test_a_task_with_a_longer_lease_may_hold_the_interpreter(fleet: Nursery) -> None:
    """B049: nothing can renew it meanwhile; its neighbour, of the fleet's lease, is started again."""
    fleet.scheduler()
    fleet.worker(**WORKER, FLOWFORGE_LEASE="1")
    neighbour = workflows.interrupted.start()
    owner_pid(neighbour, "linger")

    run = workflows.long_lease.start()

    assert run.wait(timeout=20) is RunState.SUCCEEDED
    assert events(run, "keep_for_three_seconds") == ["created", "claimed", "succeeded"]
    assert neighbour.wait(timeout=20) is RunState.SUCCEEDED
    wait_for(lambda: "refused" in events(neighbour, "linger"))  # its first attempt, which went on with the others
    became = [kind for kind in events(neighbour, "linger") if kind != "refused"]
    assert became == ["created", "claimed", "expired", "claimed", "succeeded"]


def test_a_task_with_a_shorter_lease_is_missed_sooner(fleet: Nursery, tmp_path: Path) -> None:
    """Its worker is killed, and the other one is, for all it can see, on another machine."""
    fleet.scheduler()
    worker = fleet.worker(**WORKER, FLOWFORGE_LEASE="600")
    run, neighbour = workflows.short_lease.start(), workflows.polite.start()
    owner_pid(run, "stay")
    owner_pid(neighbour, "poll")

    worker.kill()
    (tmp_path / "elsewhere").mkdir()
    fleet.worker(**WORKER, FLOWFORGE_LEASE="600", TMPDIR=str(tmp_path / "elsewhere"))

    assert run.wait(timeout=20) is RunState.SUCCEEDED
    assert events(run, "stay") == ["created", "claimed", "expired", "claimed", "succeeded"]
    assert events(neighbour, "poll") == ["created", "claimed"]
