"""All verbs at once on the same runs: no deadlock, and every counter is right afterwards."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any

from flowforge import insights, models, transitions
from flowforge.states import TASK_TERMINAL, Paused, RunEvent, RunState, TaskEvent, TaskState
from flowforge.transitions import Mark, Outcome, Release, Subject
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from uuid import UUID

    import pytest

    from flowforge.db import Database

RUNS, THREADS, SECONDS, ROUNDS, LAYERS, WIDTH = 30, 8, 4.0, 8, 8, 4
OUTCOMES = [TaskState.SUCCEEDED] * 6 + [TaskState.FAILED, TaskState.SKIPPED]
ENDED = [RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED]
#: What is told only if each verb was accepted, and not merely called.
TOLD: dict[Any, set[Any]] = {
    models.TaskRunEvent: set(TaskEvent) - {TaskEvent.CREATED},
    models.WorkflowRunEvent: set(RunEvent) - {RunEvent.CREATED, RunEvent.STARTED, RunEvent.SUCCEEDED, RunEvent.FAILED},
}


def test_all_verbs_at_once_never_deadlock_and_count_right(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """B084."""
    versions = [factories.make_workflow(layers()) for _ in range(2)]
    for _ in range(RUNS):
        factories.start(database, versions[0])

    calls, seeds = 0, iter(range(THREADS * ROUNDS))
    with caplog.at_level(logging.WARNING, "flowforge.db"), ThreadPoolExecutor(THREADS) as pool:
        while missing() and (round_ := list(islice(seeds, THREADS))):
            calls += sum(pool.map(lambda seed: storm(database, Random(seed)), round_))

    assert [record.getMessage() for record in caplog.records] == []
    assert calls > THREADS * 10
    assert wrong_counters() == []
    assert wrong_dispatches() == []
    assert situation.broken(database) == []
    assert missing() == set()


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
    verb = random.choice([*EARNEST * 2, *DECISIONS])
    state = TaskState.READY if verb in {claim, defer, give_up} else TaskState.RUNNING
    rows = list(models.TaskRun.select().where(models.TaskRun.state == state))
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
    database.perform(transitions.renew, factories.renewals([(row.id, row.fencing_token) for row in rows], lease=15))


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


def lose(database: Database, rows: list[Any], _: Random) -> None:
    """Lose two whose worker is said to be gone."""
    database.perform(transitions.lose, "worker-1", [(row.id, row.fencing_token) for row in rows[:2]])


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


def give_up(database: Database, rows: list[Any], _: Random) -> None:
    """Give up one that is ready."""
    database.perform(transitions.give_up, [ending(row, TaskState.FAILED) for row in rows[:1]])


def cut_off(database: Database, rows: list[Any], _: Random) -> None:
    """Cut off what was asked to stop."""
    asked = [row for row in rows if row.cancel_requested_at]
    database.perform(transitions.cut_off, [ending(row, TaskState.CANCELLED) for row in asked])


def ending(row: Any, state: TaskState) -> Outcome:
    """Return what ends a task run at its present token."""
    return Outcome(row.id, row.workflow_run_id, row.fencing_token, state)


def cancel(database: Database, _: list[Any], random: Random) -> None:
    """Cancel a run."""
    now = random.choice([True, False])
    database.perform(transitions.cancel, any_run(random), situation.DECISION, now=now)


def cancel_some(database: Database, rows: list[Any], _: Random) -> None:
    """Cancel two task runs, if they are of one run."""
    for row in rows[:1]:
        tasks = [one.id for one in rows if one.workflow_run_id == row.workflow_run_id][:2]
        database.perform(transitions.cancel, row.workflow_run_id, situation.DECISION, tasks=tasks)


def rerun(database: Database, _: list[Any], random: Random) -> None:
    """Rerun a run that has ended, from what failed or was cancelled."""
    database.perform(transitions.rerun, any_run(random, ENDED), situation.DECISION)


def move(database: Database, _: list[Any], random: Random) -> None:
    """Hold a run and move it to a version."""
    run_id, version = any_run(random), random.choice(list(models.Workflow.select()))
    with database.atomic():
        planned = transitions.plan(database.perform(transitions.hold, run_id), insights.targets(version.id))
        transitions.move(database.raw(), run_id, version.id, planned)


def pause(database: Database, _: list[Any], random: Random) -> None:
    """Pause the queue, the workflow or a run."""
    database.perform(transitions.pause, any_subject(random), situation.DECISION)


def resume(database: Database, _: list[Any], random: Random) -> None:
    """Resume half of what is paused, so that most of the time nothing is."""
    for row in models.Pause.select():
        subject = Subject(models.DEFAULT_ORGANIZATION, Paused(row.kind), row.subject)
        if random.choice([True, False]):
            database.perform(transitions.resume, subject, situation.DECISION)


def unhold(database: Database, _: list[Any], __: Random) -> None:
    """Let go what nothing pauses."""
    database.perform(transitions.unhold, limit=20)


def any_run(random: Random, states: list[RunState] | None = None) -> UUID:
    """Return the id of a run, in one of some states if there is any."""
    rows = list(models.WorkflowRun.select())
    return random.choice([row.id for row in rows if row.state in (states or rows)] or [row.id for row in rows])


def any_subject(random: Random) -> Subject:
    """Return what may be paused: mostly a run, because the others stop the whole storm."""
    run = (Paused.RUN, str(any_run(random)))
    kind, name = random.choice([(Paused.QUEUE, "default"), (Paused.WORKFLOW, "sales"), *[run] * 6])
    return Subject(models.DEFAULT_ORGANIZATION, kind, name)


EARNEST = [claim, claim, finish, finish, renew, retry, hand_back, lose, expire, defer, publish, resend, resume]
DECISIONS = [cancel, cancel_some, rerun, rerun, move, pause, unhold, cut_off, give_up]


def missing() -> set[Any]:
    """Return (table, kind) of the events that have not happened yet."""
    happened = {(model, row.kind) for model in TOLD for row in model.select(model.kind).distinct()}
    return {(model, kind) for model, kinds in TOLD.items() for kind in kinds} - happened


def wrong_counters() -> list[Any]:
    """Return the runs and task runs whose counters are not what counting says."""
    rows = {row.id: row for row in models.TaskRun.select()}
    waits = dict.fromkeys(rows, 0)
    for row in rows.values():
        for dependent in row.dependents:
            waits[dependent] += row.state not in TASK_TERMINAL
    counted_down = [row for row in rows.values() if row.state in {TaskState.PENDING, TaskState.READY}]
    wrong: list[Any] = [row for row in counted_down if row.upstream_remaining != waits[row.id]]
    for run in models.WorkflowRun.select():
        own = [row.state for row in rows.values() if row.workflow_run_id == run.id]
        remaining = sum(state not in TASK_TERMINAL for state in own)
        counted = remaining, own.count(TaskState.FAILED), own.count(TaskState.CANCELLED)
        wrong += [] if counted == (run.tasks_remaining, run.tasks_failed, run.tasks_cancelled) else [run]
    return wrong


def wrong_dispatches() -> list[Any]:
    """Return what is owed without being ready at that token, and what is ready without being owed."""
    ready = models.TaskRun.select().where(models.TaskRun.state == TaskState.READY)
    due = {(row.id, row.fencing_token) for row in ready}
    owed = [(message.task_run_id, message.fencing_token_snapshot) for message in models.OutboxMessage.select()]
    return list(due.symmetric_difference(owed))
