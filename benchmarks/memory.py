"""How much a worker that runs 100,000 tasks, and a scheduler that publishes them, grow meanwhile."""

from __future__ import annotations

import time

import psutil

from benchmarks.processes import deployment
from flowforge import NonRetryable, Workflow, client

TASKS, WARM, BATCH = 100_000, 10_000, 2_000
_FAILING = 10  # one of so many raises, with a local of a megabyte in its frame

quick, failing = Workflow("quick"), Workflow("failing")


@quick.task
def answer() -> list[int]:
    """Return a little."""
    return [1, 2, 3]


@failing.task
def fail() -> None:
    """Raise with much in the frame."""
    much = b"x" * 1_000_000
    raise NonRetryable(f"after {len(much)} bytes")


def main() -> dict[str, float]:
    """Print and return by how much each has grown: after all tasks, against the first tenth of them."""
    with deployment("benchmarks.memory") as (_, processes):
        named = {"scheduler": processes.start("flowforge.scheduler"), "worker": processes.start("flowforge.actors")}
        _run(WARM)
        before = {name: _rss(process.pid) for name, process in named.items()}
        _run(TASKS - WARM)
        grown = {name: _rss(process.pid) / before[name] - 1 for name, process in named.items()}
    for name, share in grown.items():
        print(f"{name}: {before[name] / 2**20:.0f} MiB after {WARM:,} tasks, {share:+.1%} after {TASKS:,}")
    return grown


def _run(tasks: int) -> None:
    """Start that many runs of one task, as many at once as the runway holds a few times over, and wait for them."""
    for _ in range(0, tasks, BATCH):
        few = BATCH // _FAILING
        runs = quick.start_many([*[quick.prepare()] * (BATCH - few), *[failing.prepare()] * few])
        runs[-1].wait(timeout=600)
    while client.engine().database.perform(_unfinished):
        time.sleep(0.1)


def _unfinished(connection: object) -> int:
    with connection.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute("select count(*) from flowforge.workflow_run where finished_at is null")
        return int(cursor.fetchone()[0])


def _rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)
