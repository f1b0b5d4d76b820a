"""
Durable workflows for Python teams with Postgres, Redis and a Procfile.

Write plain functions, start them in your own transaction, let Dramatiq workers run them under leases.
"""

from __future__ import annotations

from flowforge.client import Move, Prepared, Run, Workflow, configure, deploy, move, pause, resume
from flowforge.errors import (
    AttemptCancelled,
    AttemptTimeout,
    CannotCancel,
    CannotMove,
    CannotPause,
    CannotRerun,
    DatabaseUnreachable,
    DefinitionError,
    FlowForgeError,
    ForeignBroker,
    IdempotencyConflict,
    IncompatibleServer,
    LeaseLost,
    NonRetryable,
    NotFinished,
    OptionError,
    ParameterError,
    RowLocked,
    RunNotCommitted,
    SchemaMismatch,
    SettingsError,
    Skip,
    TaskFailed,
    UnknownWorkflow,
    UnreadableValue,
    UnstorableValue,
    UnsupportedPlatform,
    WaitTimeout,
)
from flowforge.insights import Event, TaskSummary
from flowforge.settings import Settings
from flowforge.workflow import Context, Retry, Task

__all__ = [
    "AttemptCancelled",
    "AttemptTimeout",
    "CannotCancel",
    "CannotMove",
    "CannotPause",
    "CannotRerun",
    "Context",
    "DatabaseUnreachable",
    "DefinitionError",
    "Event",
    "FlowForgeError",
    "ForeignBroker",
    "IdempotencyConflict",
    "IncompatibleServer",
    "LeaseLost",
    "Move",
    "NonRetryable",
    "NotFinished",
    "OptionError",
    "ParameterError",
    "Prepared",
    "Retry",
    "RowLocked",
    "Run",
    "RunNotCommitted",
    "SchemaMismatch",
    "Settings",
    "SettingsError",
    "Skip",
    "Task",
    "TaskFailed",
    "TaskSummary",
    "UnknownWorkflow",
    "UnreadableValue",
    "UnstorableValue",
    "UnsupportedPlatform",
    "WaitTimeout",
    "Workflow",
    "configure",
    "deploy",
    "move",
    "pause",
    "resume",
]
