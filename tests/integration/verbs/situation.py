"""Task runs in every state, with neighbours; what is stored about them; and transactions held open."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg2
from peewee import SQL

from flowforge import insights, models, transitions
from flowforge.states import TASK_TERMINAL, Paused, TaskState
from tests import factories
from tests.factories import Node
from tests.support import Racer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from uuid import UUID

    from flowforge.db import Database

STATES = list(TaskState)
OUTCOMES = [state for state in TaskState if state in TASK_TERMINAL]

#: Somebody's decision, and how the events tell it.
DECISION = transitions.Decision("me", "wrong day")
TOLD = {"by": "me", "reason": "wrong day"}

_CHANGEABLE: tuple[Any, ...] = (
    models.WorkflowRun,
    models.TaskRun,
    models.OutboxMessage,
    models.WorkflowRunEvent,
    models.TaskRunEvent,
    models.Pause,
    models.AuditLog,
)


def in_state(database: Database, state: TaskState, **options: Any) -> Any:
    """Return the middle task run of a chain of three, brought to a state by the verbs."""
    chain = {"extract": Node(), "load": Node(["extract"], options), "report": Node(["load"])}
    run_id = factories.start(database, factories.make_workflow(chain))
    if state != TaskState.PENDING:
        complete(database, factories.task_run(run_id, "extract"))
    load = factories.task_run(run_id, "load")
    if state == TaskState.RUNNING:
        factories.claim(database, load)
    if state in TASK_TERMINAL:
        complete(database, load, state)
    return factories.reload(load)


def complete(database: Database, row: Any, state: TaskState = TaskState.SUCCEEDED) -> None:
    """Claim a ready task run and end it."""
    (claimed,) = factories.claim(database, row)
    database.perform(transitions.finish, [factories.outcome(claimed, state)])


def run_through(database: Database, tasks: Mapping[str, Node], **endings: TaskState) -> models.WorkflowRun:
    """Start a run and end its tasks, in the order of their definition, as told or else succeeded; return the run."""
    run_id = factories.start(database, factories.make_workflow(tasks))
    for key in tasks:
        row = factories.task_run(run_id, key)
        if row.state == TaskState.READY:
            complete(database, row, endings.get(key, TaskState.SUCCEEDED))
    return run(run_id)


def outcome(row: Any, state: TaskState = TaskState.SUCCEEDED, *, off: int = 0) -> transitions.Outcome:
    """Return an outcome for a task run at its present token, or `off` from it."""
    return transitions.Outcome(row.id, row.workflow_run_id, row.fencing_token + off, state)


def ask_to_cancel(row: models.TaskRun) -> None:
    """Mark a running task run as asked to stop."""
    asked = {models.TaskRun.cancel_requested_at: SQL("flowforge.clock()")}
    models.TaskRun.update(asked).where(models.TaskRun.id == row.id).execute()


def cancel(database: Database, run_id: UUID, *rows: models.TaskRun, now: bool = False) -> transitions.Cancelled:
    """Cancel a run, or only these of its task runs."""
    tasks = [row.id for row in rows] or None
    done = database.perform(transitions.cancel, run_id, DECISION, tasks=tasks, now=now)
    assert done is not None
    return done


def rerun(database: Database, run_id: UUID, *keys: str) -> transitions.Rerun:
    """Rerun a run from what failed or was cancelled, or from the task runs of some keys."""
    tasks = [factories.task_run(run_id, key).id for key in keys]
    done = database.perform(transitions.rerun, run_id, DECISION, tasks=tasks)
    assert done is not None
    return done


def subject(row: models.TaskRun, kind: Paused) -> transitions.Subject:
    """Return what a task run belongs to, of one kind."""
    names = {Paused.RUN: str(row.workflow_run_id), Paused.WORKFLOW: "sales", Paused.QUEUE: row.task.queue}
    return transitions.Subject(row.organization_id, kind, names[kind])


def pause(database: Database, row: models.TaskRun, kind: Paused) -> bool:
    """Pause what a task run belongs to."""
    return database.perform(transitions.pause, subject(row, kind), DECISION)


def resume(database: Database, row: models.TaskRun, kind: Paused) -> bool:
    """Resume what a task run belongs to."""
    return database.perform(transitions.resume, subject(row, kind), DECISION)


def take(database: Database, queue: str = "default") -> list[transitions.Dispatch]:
    """Take what is due of a queue, and commit."""
    with database.atomic():
        return transitions.take(database.raw(), queue, limit=100, after=transitions.Mark()).dispatches


def ids(dispatches: list[transitions.Dispatch]) -> set[UUID]:
    """Return whose dispatches these are."""
    return {dispatch.task_run_id for dispatch in dispatches}


def picture() -> dict[str, list[tuple[Any, ...]]]:
    """Return every row that a verb could change, by table."""
    return {model._meta.table_name: list(model.select().order_by(model.id).tuples()) for model in _CHANGEABLE}


def changed_since(before: dict[str, list[tuple[Any, ...]]]) -> set[str]:
    """Return the tables whose rows differ from the picture."""
    return {table for table, rows in picture().items() if rows != before[table]}


def states(run_id: UUID) -> dict[str, str]:
    """Return key -> state of a run's task runs, in order of definition."""
    rows = models.TaskRun.select().join(models.Task).where(models.TaskRun.workflow_run == run_id)
    return {row.task.key: row.state for row in rows.order_by(models.Task.position)}


def run(run_id: UUID) -> models.WorkflowRun:
    """Return a workflow run as it is now."""
    return models.WorkflowRun.get_by_id(run_id)


def owed(row: models.TaskRun) -> list[models.OutboxMessage]:
    """Return the dispatches owed for a task run."""
    return list(models.OutboxMessage.select().where(models.OutboxMessage.task_run == row.id))


def last_event(row: models.TaskRun) -> models.TaskRunEvent:
    """Return what happened last to a task run."""
    events = models.TaskRunEvent.select().where(models.TaskRunEvent.task_run == row.id)
    return events.order_by(models.TaskRunEvent.created_at.desc()).get()


def run_history(run_id: UUID) -> list[tuple[str, str | None, str | None]]:
    """Return (kind, from, to) of a run's events, in order."""
    events = models.WorkflowRunEvent.select().where(models.WorkflowRunEvent.workflow_run == run_id)
    return [(e.kind, e.from_state, e.to_state) for e in events.order_by(models.WorkflowRunEvent.created_at)]


def run_detail(run_id: UUID, kind: str) -> Any:
    """Return what the only event of a kind says of a run."""
    events = models.WorkflowRunEvent.select().where(models.WorkflowRunEvent.workflow_run == run_id)
    return events.where(models.WorkflowRunEvent.kind == kind).get().detail


def broken(database: Database) -> list[str]:
    """Return the invariants that do not hold."""
    return [rule for rule, rows in insights.broken_invariants(database.raw()).items() if rows]


def waiting(url: str) -> int:
    """Return how many connections to this database wait for a lock."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        return int(cursor.fetchone()[0])


@contextmanager
def held_open(url: str, call: Callable[[Any], Any]) -> Iterator[Racer]:
    """Make the call on a connection of its own, and keep its transaction open for the block, which must not wait."""
    racer = Racer(url, call)
    racer.start()
    racer.reach_commit()
    try:
        yield racer
        assert racer.is_alive(), "the block waited until this transaction gave up"
    finally:
        racer.commit()
