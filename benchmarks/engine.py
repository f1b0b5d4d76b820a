"""
The engine alone: publish + claim + finish, in batches of 16, from four processes; no broker and no worker.

Two figures in one run: on an empty database, and on one with a million finished task runs and fresh statistics.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from benchmarks.deployment import single, temporary_database
from flowforge import client, db, transitions
from flowforge.states import TaskState
from flowforge.transitions import Mark, NewRun, Outcome

if TYPE_CHECKING:
    from flowforge.settings import Settings

CONNECTIONS = 4
BATCH = 16
RUNS = 16_000
PAST = 1_000_000
ROUNDS = 5


def main(*, past: int = PAST, runs: int = RUNS, rounds: int = ROUNDS) -> dict[str, float]:
    """Print and return task runs a second: the median of some rounds, empty and with a past."""
    with temporary_database() as settings:
        empty = _measure(settings, runs, rounds)
        print(f"empty database: {empty:,.0f} task runs/s")
        _fill(settings, past)
        full = _measure(settings, runs, rounds)
        print(f"{past:,} finished task runs, fresh statistics: {full:,.0f} task runs/s ({full / empty:.2f} x)")
    return {"empty": empty, "past": full}


def _measure(settings: Settings, runs: int, rounds: int) -> float:
    return statistics.median(_round(settings, runs) for _ in range(rounds))


def _round(settings: Settings, runs: int) -> float:
    """Start runs, then let the processes take them all at once; return task runs a second."""
    database = client.configure(settings).database
    version = client.ensure_stored(single, client.starting.DEFAULT_ORGANIZATION)
    for _ in range(runs // 1000):
        database.perform(transitions.start_run, [NewRun(uuid4(), version, "{}") for _ in range(1000)])
    database.close()
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(CONNECTIONS + 1)
    processes = [context.Process(target=_work, args=(settings, gate)) for _ in range(CONNECTIONS)]
    for process in processes:
        process.start()
    gate.wait()
    began = time.perf_counter()
    gate.wait()
    elapsed = time.perf_counter() - began
    for process in processes:
        process.join()
    return runs / elapsed


def _work(settings: Settings, gate: multiprocessing.synchronize.Barrier) -> None:
    """Publish, claim and finish batches until nothing is left."""
    database = db.connect(settings)
    database.raw()
    gate.wait()
    mark = Mark()
    while True:
        dispatches, mark, _ = database.perform(transitions.take, "default", limit=BATCH, after=mark)
        if not dispatches:
            break
        claims = database.perform(transitions.claim, dispatches, owner="bench", lease=60)
        outcomes = [Outcome(c.id, c.run_id, c.token, TaskState.SUCCEEDED, result='{"rows": 1}') for c in claims]
        database.perform(transitions.finish, outcomes)
    gate.wait()


def _fill(settings: Settings, runs: int) -> None:
    database = client.configure(settings).database
    with database.limited(math.inf), database.raw().cursor() as cursor:
        cursor.execute(Path(__file__).with_name("fill.sql").read_text(encoding="utf-8"), {"runs": runs})
        cursor.execute("vacuum (analyze)")
        cursor.execute("checkpoint")
    database.close()
