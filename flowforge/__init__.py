"""
Durable workflows for Python teams with Postgres, Redis and a Procfile.

Write plain functions, start them in your own transaction, let Dramatiq workers run them under leases.
"""

from __future__ import annotations

from flowforge.client import Run, Workflow, configure, deploy
from flowforge.errors import (
    AttemptTimeout,
    DatabaseUnreachable,
    DefinitionError,
    FlowForgeError,
    ForeignBroker,
    IdempotencyConflict,
    IncompatibleServer,
    LeaseLost,
    NonRetryable,
    NotFinished,
    ParameterError,
    RunNotCommitted,
    SchemaMismatch,
    SettingsError,
    Skip,
    TaskFailed,
    UnknownWorkflow,
    UnstorableValue,
    WaitTimeout,
)
from flowforge.settings import Settings
from flowforge.workflow import Context, Retry, Task

__all__ = [
    "AttemptTimeout",
    "Context",
    "DatabaseUnreachable",
    "DefinitionError",
    "FlowForgeError",
    "ForeignBroker",
    "IdempotencyConflict",
    "IncompatibleServer",
    "LeaseLost",
    "NonRetryable",
    "NotFinished",
    "ParameterError",
    "Retry",
    "Run",
    "RunNotCommitted",
    "SchemaMismatch",
    "Settings",
    "SettingsError",
    "Skip",
    "Task",
    "TaskFailed",
    "UnknownWorkflow",
    "UnstorableValue",
    "WaitTimeout",
    "Workflow",
    "configure",
    "deploy",
]
