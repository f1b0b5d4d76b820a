"""What happened to a run and its task runs, in order."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowforge.models import Task as TaskRow
from flowforge.models import TaskRun, TaskRunEvent, WorkflowRun, WorkflowRunEvent

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID


@dataclass(frozen=True)
class Event:
    """
    One change of a run (`task` is None), or of one of its task runs.

    `kind` is one of `flowforge.states.RunEvent` or `TaskEvent`; `attempt` and `fencing_token` are as after the change.
    """

    at: datetime
    kind: str
    task: str | None
    from_state: str | None
    to_state: str | None
    attempt: int | None
    fencing_token: int | None
    detail: dict[str, Any] | None


def run_events(organization: UUID, run_id: UUID) -> list[Event]:
    """Return the events of a run and of its task runs, oldest first; each in its order even if a clock went back."""
    return list(heapq.merge(_of_run(organization, run_id), _of_tasks(organization, run_id), key=lambda event: event.at))


def _of_run(organization: UUID, run_id: UUID) -> list[Event]:
    query = (
        WorkflowRunEvent.select()
        .join(WorkflowRun)
        .where((WorkflowRun.organization == organization) & (WorkflowRun.id == run_id))
        .order_by(WorkflowRunEvent.number)
    )
    return [_event(row, task=None, attempt=None, fencing_token=None) for row in query]


def _of_tasks(organization: UUID, run_id: UUID) -> list[Event]:
    query = (
        TaskRunEvent.select(TaskRunEvent, TaskRun, TaskRow.key)
        .join(TaskRun)
        .join(TaskRow)
        .where((TaskRun.organization_id == organization) & (TaskRun.workflow_run == run_id))
        .order_by(TaskRunEvent.number)
    )
    return [
        _event(row, task=row.task_run.task.key, attempt=row.attempt, fencing_token=row.fencing_token) for row in query
    ]


def _event(row: Any, **of_task: Any) -> Event:
    return Event(
        at=row.created_at,
        kind=row.kind,
        from_state=row.from_state,
        to_state=row.to_state,
        detail=row.detail,
        **of_task,
    )
