"""Peewee rows of every table in schema.sql. For reading and plain CRUD: states are changed by `transitions` alone."""

from __future__ import annotations

from flowforge.models.decision import AuditLog, Pause
from flowforge.models.definition import Deployment, Task, TaskDependency, Workflow
from flowforge.models.run import WorkflowRun, WorkflowRunEvent
from flowforge.models.task_run import OutboxMessage, TaskRun, TaskRunEvent
from flowforge.models.tenancy import DEFAULT_ORGANIZATION, IdempotencyKey, Organization

__all__ = [
    "DEFAULT_ORGANIZATION",
    "MODELS",
    "AuditLog",
    "Deployment",
    "IdempotencyKey",
    "Organization",
    "OutboxMessage",
    "Pause",
    "Task",
    "TaskDependency",
    "TaskRun",
    "TaskRunEvent",
    "Workflow",
    "WorkflowRun",
    "WorkflowRunEvent",
]

MODELS = (
    Organization,
    Workflow,
    Task,
    TaskDependency,
    Deployment,
    WorkflowRun,
    TaskRun,
    OutboxMessage,
    WorkflowRunEvent,
    TaskRunEvent,
    IdempotencyKey,
    Pause,
    AuditLog,
)
