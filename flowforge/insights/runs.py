"""Reads of runs, task runs and their history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from peewee import JOIN, fn

from flowforge.insights.pauses import PauseSummary, pauses_of
from flowforge.models import OutboxMessage, Task, TaskRun, Workflow, WorkflowRun, WorkflowRunEvent
from flowforge.states import RunEvent

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime


@dataclass(frozen=True)
class RunSummary:
    """A run as a line of a list: `tasks` counts its task runs by state."""

    id: UUID
    workflow: str
    version: int
    state: str
    parameters: dict[str, Any]
    priority: int
    cancel_requested_at: datetime | None
    deadline: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    tasks: dict[str, int]
    #: What keeps it from being dispatched, with who paused it and why.
    paused: list[PauseSummary]
    #: Of a cancel that was asked for and is not done: `by` and `reason`.
    cancel: dict[str, str] | None


@dataclass(frozen=True)
class TaskSummary:
    """A task run as a line of its run; `due_at` is when a ready one may be dispatched."""

    id: UUID
    key: str
    state: str
    attempt: int
    fencing_token: int
    lease_owner: str | None
    lease_expires_at: datetime | None
    due_at: datetime | None
    deferred_because: str | None
    started_at: datetime | None
    finished_at: datetime | None
    error: dict[str, str] | None


def run_state(organization: UUID, run_id: UUID) -> str | None:
    """Return a run's state, or None if there is no such run."""
    return _runs(organization, WorkflowRun.state).where(WorkflowRun.id == run_id).scalar()  # type: ignore[no-any-return]


def find_runs(organization: UUID, prefix: str) -> list[UUID]:
    """Return the ids, at most ten, that begin with `prefix` (1 to 32 hexadecimal digits, dashes aside)."""
    digits = prefix.replace("-", "")
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    query = _runs(organization, WorkflowRun.id).where(WorkflowRun.id.between(first, last)).limit(10)
    return [row[0] for row in query.tuples()]


def run_summary(organization: UUID, run_id: UUID) -> RunSummary | None:
    """Return one run, or None if there is no such run."""
    return next(iter(_summaries(_detailed(organization).where(WorkflowRun.id == run_id))), None)


def list_runs(
    organization: UUID, *, workflow: str | None = None, state: str | None = None, limit: int = 20
) -> list[RunSummary]:
    """Return the latest runs first, of a workflow or in a state if one is named."""
    query = _detailed(organization).order_by(WorkflowRun.created_at.desc()).limit(limit)
    if state:
        query = query.where(WorkflowRun.state == state)
        return _summaries(query.where(Workflow.name == workflow) if workflow else query)
    return _summaries(query.where(WorkflowRun.id.in_(_recent(organization, workflow, limit))) if workflow else query)


def task_summaries(organization: UUID, run_id: UUID) -> list[TaskSummary]:
    """Return a run's task runs in order of definition."""
    query = (
        TaskRun.select(TaskRun, Task.key, OutboxMessage.available_at)
        .join(Task)
        .switch(TaskRun)
        .join(OutboxMessage, JOIN.LEFT_OUTER, on=(OutboxMessage.task_run == TaskRun.id), attr="owed")
        .where((TaskRun.organization_id == organization) & (TaskRun.workflow_run == run_id))
        .order_by(Task.position)
    )
    return [_task(row) for row in query]


def task_outcome(organization: UUID, run_id: UUID, key: str) -> TaskRun | None:
    """Return a task run with its result and error, or None if the run has no such task."""
    query = (
        TaskRun.select(TaskRun.state, TaskRun.result, TaskRun.error)
        .join(Task)
        .where((TaskRun.organization_id == organization) & (TaskRun.workflow_run == run_id) & (Task.key == key))
    )
    return query.first()  # type: ignore[no-any-return]


def _runs(organization: UUID, *columns: Any) -> Any:
    return WorkflowRun.select(*columns).where(WorkflowRun.organization == organization)


def _recent(organization: UUID, workflow: str, limit: int) -> list[UUID]:
    """Return the last runs of each of a workflow's versions, and of them the last: all of them are never sorted."""
    last: Any = (
        WorkflowRun.select(WorkflowRun.id, WorkflowRun.created_at)
        .where(WorkflowRun.workflow == Workflow.id)
        .order_by(WorkflowRun.created_at.desc())
        .limit(limit)
        .alias("last")
    )
    query: Any = (
        Workflow.select(last.c.id)
        .join(last, JOIN.LATERAL, on=True)
        .where((Workflow.organization == organization) & (Workflow.name == workflow))
        .order_by(last.c.created_at.desc())
        .limit(limit)
    )
    return [row[0] for row in query.tuples()]


def _detailed(organization: UUID) -> Any:
    return _runs(organization, WorkflowRun, Workflow.id, Workflow.name, Workflow.version).join(Workflow)


def _summaries(query: Any) -> list[RunSummary]:
    rows = list(query)
    counts = _task_counts(row.id for row in rows)
    paused, cancels = pauses_of(rows), _cancels_of(rows)
    return [
        RunSummary(
            id=row.id,
            workflow=row.workflow.name,
            version=row.workflow.version,
            state=row.state,
            parameters=row.parameters,
            priority=row.priority,
            cancel_requested_at=row.cancel_requested_at,
            deadline=row.deadline,
            created_at=row.created_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            tasks=counts.get(row.id, {}),
            paused=paused.get(row.id, []),
            cancel=cancels.get(row.id),
        )
        for row in rows
    ]


def _cancels_of(rows: Iterable[WorkflowRun]) -> dict[UUID, dict[str, str]]:
    """Return run -> who asked to cancel it and why, for those that go on all the same."""
    asked = [row.id for row in rows if row.cancel_requested_at and not row.finished_at]
    if not asked:
        return {}
    query: Any = WorkflowRunEvent.select(WorkflowRunEvent.workflow_run, WorkflowRunEvent.detail).where(
        WorkflowRunEvent.workflow_run.in_(asked) & (WorkflowRunEvent.kind == RunEvent.CANCEL_REQUESTED)
    )
    return dict(query.order_by(WorkflowRunEvent.number).tuples())


def _task_counts(run_ids: Iterable[UUID]) -> dict[UUID, dict[str, int]]:
    query: Any = (
        TaskRun.select(TaskRun.workflow_run, TaskRun.state, fn.count(TaskRun.id))
        .where(TaskRun.workflow_run.in_(list(run_ids)))
        .group_by(TaskRun.workflow_run, TaskRun.state)
    )
    counts: dict[UUID, dict[str, int]] = {}
    for run_id, state, number in query.tuples():
        counts.setdefault(run_id, {})[state] = number
    return counts


def _task(row: TaskRun) -> TaskSummary:
    owed = getattr(row, "owed", None)
    return TaskSummary(
        id=row.id,
        key=row.task.key,
        state=row.state,
        attempt=row.attempt,
        fencing_token=row.fencing_token,
        lease_owner=row.lease_owner,
        lease_expires_at=row.lease_expires_at,
        due_at=owed.available_at if owed else None,
        deferred_because=row.deferred_because,
        started_at=row.started_at,
        finished_at=row.finished_at,
        error=row.error,
    )
