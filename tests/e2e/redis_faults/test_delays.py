"""What is due later waits in PostgreSQL: neither Redis nor a worker keeps it, nor anything for longer than it must."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psutil
import pytest

from flowforge import client
from flowforge.models import OutboxMessage, TaskRun
from flowforge.states import RunState
from flowforge.testing import Clock
from tests.e2e.conftest import Fleet, owner_pid
from tests.e2e.redis_faults import errands
from tests.e2e.redis_faults.accounts import ERRANDS, all_succeed, happened, sent, start
from tests.support import wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    import redis as redis_client

    from flowforge.chaos.proxy import Proxy


def waiting_for_their_retry() -> int:
    """Count the task runs that are due again later."""
    return int(TaskRun.select().join(OutboxMessage).where(TaskRun.attempt == 2, TaskRun.state == "ready").count())


def grown(process: subprocess.Popen[bytes]) -> Callable[[], float]:
    """Return what tells by how much a process's memory has grown, as a factor."""
    memory = psutil.Process(process.pid).memory_info
    before = memory().rss
    return lambda: memory().rss / before


@pytest.mark.parametrize("number", [1_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_retry_in_two_hours_is_sent_once_and_kept_by_nobody(
    distant: Fleet, network: Proxy, redis: redis_client.Redis, number: int
) -> None:
    """B035, B036: Redis ends idle connections after a second; the clock is moved by two hours."""
    redis.config_set("timeout", 1)
    heard = network.listen()
    distant.scheduler()
    worker = distant.worker(**ERRANDS)
    start(500, errands.patient)
    wait_for(lambda: waiting_for_their_retry() == 500)
    growth = grown(worker)
    for _ in range(500, number, 500):
        start(500, errands.patient)

    wait_for(lambda: waiting_for_their_retry() == number, seconds=20 + number / 100)
    assert growth() < 1.1
    assert redis.llen(f"{distant.settings.namespace}:dispatch:default") == 0
    first = sent(heard)
    wait_for(lambda: not [one for one in redis.client_list() if one["cmd"] == "ltrim"])  # our own connection is ended
    Clock(client.engine().database, lambda: client.engine().wake(b"now")).move(timedelta(hours=2))

    all_succeed(number, seconds=20 + number / 100, claimed=2)
    assert set(first.values()) == set(sent(heard).values()) == {1}
    assert len(sent(heard)) == 2 * number + happened("handed_back").total()


def test_no_task_waits_behind_a_slow_one_while_a_thread_is_free(fleet: Fleet) -> None:
    """B036: what a worker of one thread has no room for is taken by a worker that comes later."""
    fleet.scheduler()
    fleet.worker(FLOWFORGE_THREADS="1", **ERRANDS)
    slow = errands.errand.start(n=8)
    owner_pid(slow, "run")
    fast = start(10)

    fleet.worker(**ERRANDS)

    for run in fast:
        assert run.wait(timeout=2) is RunState.SUCCEEDED
    assert slow.state is RunState.RUNNING
