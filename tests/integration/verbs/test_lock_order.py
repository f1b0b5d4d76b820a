"""All verbs at once on the same runs: no deadlock, and every counter is right afterwards."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any

from flowforge import models, transitions
from flowforge.states import TASK_TERMINAL, TaskState
from flowforge.transitions import Mark, Outcome, Release
from tests import factories
from tests.factories import Node

if TYPE_CHECKING:
    import pytest

    from flowforge.db import Database

RUNS, THREADS, SECONDS, LAYERS, WIDTH = 30, 8, 3.0, 8, 4
OUTCOMES = [TaskState.SUCCEEDED] * 6 + [TaskState.FAILED, TaskState.SKIPPED]


def test_all_verbs_at_once_never_deadlock_and_count_right(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """B084."""
    workflow = factories.make_workflow(layers())
    for _ in range(RUNS):
        factories.start(database, workflow)

    with caplog.at_level(logging.WARNING, "flowforge.db"), ThreadPoolExecutor(THREADS) as pool:
        calls = sum(pool.map(lambda seed: storm(database, Random(seed)), range(THREADS)))

    assert [record.getMessage() for record in caplog.records] == []
    assert calls > THREADS * 10
    assert wrong_counters() == []
    assert wrong_dispatches() == []


def layers() -> dict[str, Node]:
    """Return layers of tasks, each of which waits for the whole layer before."""
    options = {"attempts": 1000, "lost": 1000, "when": "all_done"}
    keys = [[f"{layer}_{place}" for place in range(WIDTH)] for layer in range(LAYERS)]
    upstream = dict(zip(range(1, LAYERS), keys, strict=False))
    return {key: Node(upstream.get(layer, []), options) for layer, row in enumerate(keys) for key in row}


def storm(database: Database, random: Random) -> int:
    """Call verbs on random task runs until the time is over; return how many calls that was."""
    calls, end = 0, monotonic() + SECONDS
    while monotonic() < end:
        call_one(database, random)
        calls += 1
    database.close()
    return calls


def call_one(database: Database, random: Random) -> None:
    """Call one verb, on a batch that others may hold, in an order that no other has."""
    verb = random.choice([claim, claim, finish, finish, renew, retry, hand_back, expire, defer, publish, resend])
    state = TaskState.READY if verb in {claim, defer} else TaskState.RUNNING
    rows = list(models.TaskRun.select().where(models.TaskRun.state == state)) if verb not in {publish, resend} else []
    verb(database, random.sample(rows, min(len(rows), 12)), random)


def claim(database: Database, rows: list[Any], random: Random) -> None:
    """Claim, with leases half of which are over at once."""
    lease = random.choice([-1, 15])
    database.perform(transitions.claim, [factories.dispatch(row) for row in rows], owner="worker-1", lease=lease)


def finish(database: Database, rows: list[Any], random: Random) -> None:
    """End three; the others are only locked, for their token is not known yet: so the runs last."""
    outcomes = [
        Outcome(row.id, row.workflow_run_id, row.fencing_token + (place > 2), random.choice(OUTCOMES))
        for place, row in enumerate(rows)
    ]
    database.perform(transitions.finish, outcomes)


def renew(database: Database, rows: list[Any], _: Random) -> None:
    """Renew."""
    database.perform(transitions.renew, [(row.id, row.fencing_token) for row in rows], lease=15)


def retry(database: Database, rows: list[Any], _: Random) -> None:
    """Fail, and be due again."""
    error = json.dumps({"type": "ValueError", "message": "no"})
    database.perform(transitions.retry, [Release(row.id, row.fencing_token, 0, error) for row in rows])


def hand_back(database: Database, rows: list[Any], _: Random) -> None:
    """Hand back."""
    database.perform(transitions.hand_back, [Release(row.id, row.fencing_token) for row in rows])


def expire(database: Database, _: list[Any], __: Random) -> None:
    """Expire."""
    database.perform(transitions.expire, limit=20)


def defer(database: Database, rows: list[Any], random: Random) -> None:
    """Defer, for one of two reasons."""
    reason = random.choice(["no such task", "no such workflow"])
    database.perform(transitions.defer, [(factories.dispatch(row), reason) for row in rows], delay=0)


def publish(database: Database, _: list[Any], __: Random) -> None:
    """Take and commit."""
    with database.atomic():
        transitions.take(database.raw(), "default", limit=20, after=Mark())


def resend(database: Database, _: list[Any], random: Random) -> None:
    """Make published messages due again."""
    found = list(models.OutboxMessage.select().where(models.OutboxMessage.published_at.is_null(False)))  # noqa: FBT003 - Peewee's
    chosen = random.sample(found, min(len(found), 20))
    database.perform(transitions.resend, [(message.id, message.published_at) for message in chosen])


def wrong_counters() -> list[Any]:
    """Return the runs and task runs whose counters are not what counting says."""
    rows = {row.id: row for row in models.TaskRun.select()}
    waits = dict.fromkeys(rows, 0)
    for row in rows.values():
        for dependent in row.dependents:
            waits[dependent] += row.state not in TASK_TERMINAL
    wrong: list[Any] = [row for row in rows.values() if row.upstream_remaining != waits[row.id]]
    for run in models.WorkflowRun.select():
        own = [row.state for row in rows.values() if row.workflow_run_id == run.id]
        counted = sum(state not in TASK_TERMINAL for state in own), own.count(TaskState.FAILED)
        wrong += [] if counted == (run.tasks_remaining, run.tasks_failed) else [run]
    return wrong


def wrong_dispatches() -> list[Any]:
    """Return what is owed without being ready at that token, and what is ready without being owed."""
    ready = models.TaskRun.select().where(models.TaskRun.state == TaskState.READY)
    due = {(row.id, row.fencing_token) for row in ready}
    owed = [(message.task_run_id, message.fencing_token_snapshot) for message in models.OutboxMessage.select()]
    return list(due.symmetric_difference(owed))
