"""Reads of what is defined and deployed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peewee import ValuesList, fn

from flowforge.models import Deployment, Task, TaskDependency, TaskRun, Workflow
from flowforge.states import TaskState, When
from flowforge.transitions import Target
from flowforge.workflow.arguments import data_upstream
from flowforge.workflow.stored import StoredTask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import timedelta
    from uuid import UUID


@dataclass(frozen=True)
class KnownTask:
    """A stored task, with the ids of those tasks of its version whose results it needs."""

    id: UUID
    stored: StoredTask
    data_upstream: Mapping[UUID, str]


@dataclass(frozen=True)
class Needed:
    """A stored task that `task_runs` unfinished task runs need."""

    workflow: str
    version: int
    key: str
    inputs: Mapping[str, Any]
    queue: str
    task_runs: int


def version_of(organization: UUID, name: str, digest: str) -> UUID | None:
    """Return the id of the stored version that has this structure."""
    query = Workflow.select(Workflow.id).where(
        (Workflow.organization == organization) & (Workflow.name == name) & (Workflow.digest == digest)
    )
    return query.scalar()  # type: ignore[no-any-return]


def current_version(organization: UUID, name: str) -> Workflow | None:
    """Return the version of a workflow that was deployed last."""
    query = (
        Workflow.select()
        .join(Deployment)
        .where((Workflow.organization == organization) & (Workflow.name == name))
        .order_by(Deployment.number.desc())
    )
    return query.first()  # type: ignore[no-any-return]


def deployed_names(organization: UUID) -> list[str]:
    """Return the names of workflows that were deployed, in order."""
    query: Any = Workflow.select(Workflow.name).join(Deployment).where(Workflow.organization == organization).distinct()
    return sorted(name for (name,) in query.tuples())


def known_tasks(organization: UUID, ids: Iterable[UUID]) -> list[KnownTask]:
    """Return stored tasks by id; they never change, so that they may be kept."""
    query = Task.select().join(Workflow).where((Workflow.organization == organization) & Task.id.in_(list(ids)))
    return [KnownTask(row.id, _stored(row), _ids_of(row, data_upstream(row.inputs))) for row in query]


def _ids_of(row: Any, keys: Sequence[str]) -> dict[UUID, str]:
    if not keys:
        return {}
    query = Task.select(Task.id, Task.key).where((Task.workflow == row.workflow_id) & Task.key.in_(keys))
    return {task.id: task.key for task in query}


def _stored(row: Task) -> StoredTask:
    return StoredTask(
        key=row.key,
        inputs=row.inputs,
        upstream=(),
        when=row.when,
        required=row.required,
        queue=row.queue,
        attempts=row.attempts,
        lost=row.lost,
        retry_delay=row.retry_delay.total_seconds(),
        retry_factor=row.retry_factor,
        retry_max_delay=row.retry_max_delay.total_seconds(),
        timeout=row.timeout.total_seconds(),
        start_by=_seconds(row.start_by),
        lease=_seconds(row.lease),
    )


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def upstream_results(pairs: Sequence[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], Any]:
    """Return (run, task) -> parsed result for those of the pairs that succeeded."""
    wanted = ValuesList(pairs, columns=("run", "task"), alias="wanted")
    query: Any = (
        TaskRun.select(TaskRun.workflow_run, TaskRun.task, TaskRun.result)
        .join(wanted, on=(TaskRun.workflow_run == wanted.c.run) & (TaskRun.task == wanted.c.task))
        .where(TaskRun.state == TaskState.SUCCEEDED.value)
    )
    return {(run, task): result for run, task, result in query.tuples()}


def version(organization: UUID, name: str, number: int | None) -> Workflow | None:
    """Return a version of a workflow by its number, or the current one for None."""
    if number is None:
        return current_version(organization, name)
    query = Workflow.select().where((Workflow.organization == organization) & (Workflow.name == name))
    return query.where(Workflow.version == number).first()  # type: ignore[no-any-return]


def targets(version_id: UUID) -> list[Target]:
    """Return the tasks of a version in order of definition, with the keys of their upstreams."""
    tasks = list(Task.select().where(Task.workflow == version_id).order_by(Task.position))
    keys = {task.id: task.key for task in tasks}
    upstream: dict[UUID, list[str]] = {task.id: [] for task in tasks}
    edges: Any = TaskDependency.select(TaskDependency.upstream, TaskDependency.downstream)
    for before, after in edges.where(TaskDependency.downstream.in_(list(keys))).tuples():
        upstream[after].append(keys[before])
    return [Target(task.id, task.key, upstream[task.id], When(task.when), task.required, task.queue) for task in tasks]


def unfinished_tasks() -> list[Needed]:
    """Return the stored tasks, of all organizations, that have task runs which have not ended."""
    query: Any = (
        Task.select(Workflow.name, Workflow.version, Task.key, Task.inputs, Task.queue, fn.count(TaskRun.id))
        .join(Workflow)
        .switch(Task)
        .join(TaskRun, on=(TaskRun.task == Task.id))
        .where(TaskRun.state.in_([TaskState.PENDING.value, TaskState.READY.value, TaskState.RUNNING.value]))
        .group_by(Workflow.name, Workflow.version, Task.key, Task.inputs, Task.queue)
        .order_by(Workflow.name, Workflow.version, Task.key)
    )
    return [Needed(*row) for row in query.tuples()]
