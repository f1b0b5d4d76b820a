"""A Redis as managed ones are: it refuses what walks the whole database, and there are others in it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flowforge import client
from flowforge.broker import Broker, connect_redis
from tests.e2e.conftest import ROOT, Fleet, owner_pid, the_task_run
from tests.e2e.redis_faults import errands
from tests.e2e.redis_faults.accounts import ERRANDS, all_succeed, start
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis as redis_client

_REFUSED = ("keys", "scan", "flushall", "flushdb", "config", "debug", "monitor", "sort", "client|kill", "client|list")
_FOREIGN = 100_000
_SLOW = 50_000  # microseconds


@pytest.fixture
def frugal(fleet: Fleet, redis: redis_client.Redis) -> Iterator[Fleet]:
    """A fleet, and a client, whose user may do little, in a database with many keys of others."""
    for first in range(0, _FOREIGN, 10_000):
        redis.mset({f"foreign:{number}": "x" for number in range(first, first + 10_000)})
    commands = ["+@all", *(f"-{word}" for word in _REFUSED)]
    redis.acl_setuser("frugal", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"], commands=commands)
    redis.config_set("slowlog-log-slower-than", _SLOW)
    redis.slowlog_reset()
    url = fleet.settings.redis_url.replace("redis://", "redis://frugal:secret@")
    fleet.settings = replace(fleet.settings, redis_url=url)
    engine = client.configure(fleet.settings)
    yield fleet
    fleet.stop()
    engine.database.close()


def test_nothing_needs_a_command_that_is_refused_or_slow(
    frugal: Fleet, redis: redis_client.Redis, tmp_path: Path
) -> None:
    """B038: workers, scheduler, doctor, progress and users' own actors, beside 100,000 keys of others."""
    settings, file = frugal.settings, tmp_path / "ran"
    broker = Broker(connect_redis(settings), settings.namespace)
    frugal.scheduler()
    frugal.worker(**ERRANDS)
    slow = errands.errand.start(n=1)
    owner_pid(slow, "run")
    start(300)
    broker.enqueue(errands.own.message(str(file)))
    task_run, runway = the_task_run(slow, "run").id, broker.runway
    told = wait_for(lambda: runway.progress([task_run]))[task_run]
    doctor = [sys.executable, "-m", "flowforge", "doctor"]
    found = subprocess.run(doctor, cwd=ROOT, env=frugal.environment(), capture_output=True, text=True, check=False)

    all_succeed(301)
    wait_for(file.exists)
    assert (found.returncode, told.note) == (0, "seconds"), found.stdout
    assert "none late" in found.stdout
    assert (redis.execute_command("ACL", "LOG"), redis.slowlog_get()) == ([], [])
    broker.client.close()
