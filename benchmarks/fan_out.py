"""One run with 5,000 parallel tasks against runs with 50: the engine's cost for each task, start to last outcome."""

from __future__ import annotations

import statistics
import time

from benchmarks.deployment import temporary_database
from flowforge import client, transitions
from flowforge.client import Workflow
from flowforge.states import TaskState
from flowforge.transitions import Mark, Outcome

BATCH = 64
TASKS = 5_000
FEW = 50
ROUNDS = 5


def main(*, rounds: int = ROUNDS) -> dict[str, float]:
    """Print and return the ratio of costs for each task, the median of some interleaved rounds."""
    wide, narrow = _workflow("wide", TASKS), _workflow("narrow", FEW)
    ratios = []
    with temporary_database() as settings:
        client.configure(settings)
        for _ in range(rounds):
            many = _seconds_for_each(narrow, TASKS // FEW, FEW)
            one = _seconds_for_each(wide, 1, TASKS)
            ratios.append(one / many)
            print(f"1 x {TASKS:,}: {one * 1e6:.0f} us a task; {TASKS // FEW} x {FEW}: {many * 1e6:.0f} us a task")
    ratio = statistics.median(ratios)
    print(f"ratio: {ratio:.2f} (median of {rounds})")
    return {"ratio": ratio}


def _workflow(name: str, tasks: int) -> Workflow[[]]:
    workflow = Workflow(name)
    for number in range(tasks):
        workflow.task(_nothing, key=f"n{number}")
    return workflow


def _nothing() -> None:
    """Do nothing."""


def _seconds_for_each(workflow: Workflow[[]], runs: int, tasks: int) -> float:
    """Start runs, and publish, claim and finish all their tasks from one connection."""
    client.ensure_stored(workflow, client.starting.DEFAULT_ORGANIZATION)
    database = client.engine().database
    began = time.perf_counter()
    for _ in range(runs):
        workflow.start()
    mark = Mark()
    while True:
        dispatches, mark, _ = database.perform(transitions.take, "default", limit=BATCH, after=mark)
        if not dispatches:
            return (time.perf_counter() - began) / (runs * tasks)
        claims = database.perform(transitions.claim, dispatches, owner="bench", lease=60)
        database.perform(transitions.finish, [Outcome(c.id, c.run_id, c.token, TaskState.SUCCEEDED) for c in claims])
