"""Rows for tests, made by the verbs themselves so that they respect every state."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from flowforge import models, transitions
from flowforge.states import TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.db import Database


@dataclass(frozen=True)
class Node:
    """A task of a test's workflow: its upstream keys and whatever differs from the defaults."""

    upstream: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def make_organization(slug: str = "other") -> UUID:
    """Store another tenant; return its id."""
    return UUID(str(models.Organization.create(slug=slug, name=slug).id))


def make_workflow(
    tasks: Mapping[str, Node], *, name: str = "sales", organization: UUID = models.DEFAULT_ORGANIZATION, **columns: Any
) -> models.Workflow:
    """Store a new version of a workflow; tasks in order, upstreams first."""
    version = models.Workflow.select().where(models.Workflow.name == name).count() + 1
    workflow = models.Workflow.create(
        organization=organization, name=name, version=version, digest=f"{version:064x}", **columns
    )
    rows: dict[str, models.Task] = {}
    for position, (key, node) in enumerate(tasks.items(), 1):
        defaults = {"retry_delay": timedelta(seconds=1), "retry_max_delay": timedelta(minutes=5)}
        options = {**defaults, "timeout": timedelta(hours=1), **node.options}
        rows[key] = models.Task.create(workflow=workflow, key=key, position=position, **options)
        for upstream in node.upstream:
            models.TaskDependency.create(upstream=rows[upstream], downstream=rows[key])
    return workflow


def start(database: Database, workflow: models.Workflow, *, priority: int = 0, deadline: float | None = None) -> UUID:
    """Start one run of a stored workflow; return its id."""
    run = transitions.NewRun(uuid4(), workflow.id, "{}", priority, deadline=deadline)
    assert database.perform(transitions.start_run, [run])
    return run.id


def start_single(database: Database, **options: Any) -> models.TaskRun:
    """Start a run of one task; return its task run, ready."""
    run_id = start(database, make_workflow({"only": Node(options=options)}))
    return models.TaskRun.get(models.TaskRun.workflow_run == run_id)


def task_run(run_id: UUID, key: str) -> models.TaskRun:
    """Return the task run of a key, as it is now."""
    query = models.TaskRun.select().join(models.Task)
    return query.where((models.TaskRun.workflow_run == run_id) & (models.Task.key == key)).get()


def dispatch(row: models.TaskRun) -> transitions.Dispatch:
    """Return the dispatch that the outbox owes for a task run at its present token."""
    workflow = row.task.workflow
    return transitions.Dispatch(
        row.id,
        row.fencing_token,
        row.workflow_run_id,
        row.organization_id,
        workflow.name,
        row.task.key,
        row.task_id,
        row.attempt,
    )


def claim(database: Database, *rows: models.TaskRun, owner: str = "worker-1", lease: float = 15) -> list[Any]:
    """Claim ready task runs."""
    return database.perform(transitions.claim, [dispatch(row) for row in rows], owner=owner, lease=lease)


def renewals(held: Sequence[tuple[UUID, int]], *, lease: float, span: float = 3600) -> list[transitions.Renewal]:
    """Return what renews these task runs, each at a token."""
    return [transitions.Renewal(id_, token, lease, span) for id_, token in held]


def outcome(claimed: transitions.Claim, state: TaskState = TaskState.SUCCEEDED, **values: Any) -> transitions.Outcome:
    """Return how a claimed attempt ended."""
    return transitions.Outcome(claimed.id, claimed.run_id, claimed.token, state, **values)


def reload(row: Any) -> Any:
    """Return the row as it is in the database now."""
    return type(row).get_by_id(row.id)


def event_kinds(row: models.TaskRun) -> list[str]:
    """Return the kinds of a task run's events, in order."""
    query = models.TaskRunEvent.select().where(models.TaskRunEvent.task_run == row.id)
    return [event.kind for event in query.order_by(models.TaskRunEvent.number)]
