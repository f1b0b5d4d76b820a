"""Real processes in which a thread dies or hangs: they end with a word and a code, and others do their work."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from flowforge.chaos.proxy import Proxy
from flowforge.states import RunState
from flowforge.watch import RET_DEAD
from tests.e2e import workflows
from tests.e2e.conftest import ROOT
from tests.e2e.nursery import Nursery, nursing
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge.embedded.servers import ValkeyServer
    from flowforge.settings import Settings

SICK = {"FLOWFORGE_MODULES": "tests.e2e.workflows,tests.e2e.sick"}


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Nursery]:
    """Processes of this test."""
    with nursing(settings, tmp_path) as nursery:
        yield nursery


def dead(words: str) -> list[str]:
    """Return the names of what a log says is dead."""
    return re.findall(r"CRITICAL flowforge\.watch loop\.dead loop=(\S+) silent_for=\d+", words)


def let_pass(seconds: float) -> None:
    """Let more time pass than a worker may go without a fetch, as `sick` sets it: what is not to happen has no sign."""
    until = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() > until)


@pytest.mark.parametrize(
    ("thread", "named"),
    [
        ("flowforge-committer", "flowforge-committer"),
        ("flowforge-keeper", "flowforge-keeper"),
        ("flowforge-patience", "flowforge-patience"),
        ("WorkerThread", r"dramatiq-worker-\d"),
        ("ConsumerThread", r"dramatiq-consumer-[\w.]+"),
    ],
)
def test_a_worker_with_a_dead_thread_ends(fleet: Nursery, thread: str, named: str) -> None:
    """B117: the process looks alive, and a part of its work is done by nobody."""
    worker = fleet.worker(**SICK, SICK=f"kill {thread}")

    assert worker.wait(timeout=20) == RET_DEAD
    (name,) = dead(fleet.log(worker))
    assert re.fullmatch(named, name)


def test_a_worker_whose_import_hangs_ends_and_tells_where(fleet: Nursery) -> None:
    """B055: it would look like one that is about to start."""
    main = (
        "import sys; from flowforge import watch; watch.HANG = 2.0; from flowforge.actors.__main__ import main; main()"
    )

    ended = subprocess.run(
        [sys.executable, "-c", main],
        env={**fleet.environment(), **SICK, "SICK": "hang import"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert ended.returncode == 1
    assert re.search(r'sick\.py", line \d+ in hang', ended.stderr)


def test_a_worker_whose_import_hangs_ends_when_told(fleet: Nursery, tmp_path: Path) -> None:
    """B055: at once, for it holds nothing."""
    worker = fleet.start("flowforge.actors", **SICK, SICK="hang import", SICK_HANGS=str(tmp_path / "hangs"))
    wait_for((tmp_path / "hangs").exists)

    worker.terminate()

    assert worker.wait(timeout=5) == -signal.SIGTERM


@pytest.mark.parametrize("illness", ["fail", "hang"])
def test_a_worker_that_does_not_fetch_while_redis_answers_ends(fleet: Nursery, illness: str) -> None:
    """B032: a consumer that did not get over a lost connection, or waits on it for ever."""
    worker = fleet.worker(**SICK, SICK=f"{illness} fetch")

    assert worker.wait(timeout=20) == RET_DEAD
    assert dead(fleet.log(worker)) == ["dramatiq-consumer-flowforge"]


def test_a_worker_that_cannot_fetch_because_redis_is_away_goes_on(fleet: Nursery, valkey: ValkeyServer) -> None:
    """B032: for longer than it may go without a fetch; and when Redis is back it works, without a restart."""
    with Proxy(("127.0.0.1", valkey.port)) as network:
        url = valkey.url.replace(str(valkey.port), str(network.port))
        worker = fleet.worker(**SICK, SICK="none none", REDIS_URL=url)
        network.target = ("127.0.0.1", 1)
        network.cut()
        let_pass(6)
        network.target = ("127.0.0.1", valkey.port)
        fleet.scheduler()

        assert workflows.many.start(n=1).wait(timeout=20) is RunState.SUCCEEDED
        assert (worker.poll(), dead(fleet.log(worker))) == (None, [])
    assert "ConsumerThread(flowforge) Consumer encountered a connection error" in fleet.log(worker)


def test_a_worker_whose_engine_did_not_start_does_not_stay(fleet: Nursery) -> None:
    """B117: Dramatiq logs that its middleware failed, goes on, and would take nothing in."""
    worker = fleet.worker(**SICK, SICK="fail boot")

    assert worker.wait(timeout=20) == RET_DEAD
    assert dead(fleet.log(worker)) == ["flowforge-committer"]


def test_dramatiqs_own_command_line_is_watched_too(fleet: Nursery, tmp_path: Path) -> None:
    """Its main thread is not ours, so that a thread watches."""
    command = [sys.executable, "-m", "dramatiq", "-p", "1", "-t", "2", "flowforge.actors"]
    sick, words = {"SICK": "kill flowforge-committer", "SICK_WHEN": str(tmp_path / "when")}, tmp_path / "0.log"
    with words.open("wb") as log:
        process = subprocess.Popen(command, env={**fleet.environment(), **SICK, **sick}, stderr=log, stdout=log)
    fleet.processes.append(process)
    wait_for(lambda: "ready for action" in words.read_text())  # before that, Dramatiq does not look at its workers
    (tmp_path / "when").touch()

    assert process.wait(timeout=20) == RET_DEAD
    assert "loop.dead loop=flowforge-committer" in words.read_text()


def test_the_supervisor_replaces_a_worker_whose_committer_died(fleet: Nursery, tmp_path: Path) -> None:
    """B117: the replacement finishes what the dead thread left."""
    fleet.scheduler()
    sick = {"SICK": "kill flowforge-committer", "SICK_ONCE": str(tmp_path / "once")}
    supervisor = fleet.start("flowforge", "worker", **SICK, **sick)
    run = workflows.numbers.start(n=4)

    assert run.wait(timeout=30) is RunState.SUCCEEDED
    words = fleet.log(supervisor)
    assert dead(words) == ["flowforge-committer"]
    assert re.search(r"program\.exited name=worker\.1 pid=\d+ code=70", words)
    supervisor.terminate()
    assert supervisor.wait(timeout=20) == 0


# The scheduler


@pytest.mark.parametrize(
    ("illness", "named"),
    [
        ("kill flowforge-publisher", "flowforge-publisher"),
        ("kill flowforge-patience", "flowforge-patience"),
        ("kill APScheduler", "apscheduler"),
        ("hang duty", "duty-hang"),
    ],
)
def test_a_scheduler_with_a_dead_thread_or_a_stuck_duty_ends(fleet: Nursery, illness: str, named: str) -> None:
    """B064, B117: a duty that never comes back would never have another turn, and the probe would be green."""
    scheduler = fleet.start("tests.e2e.sick", SICK=illness)

    assert scheduler.wait(timeout=20) == RET_DEAD
    assert dead(fleet.log(scheduler)) == [named]
