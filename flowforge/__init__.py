"""
Durable workflows for Python teams with Postgres, Redis and a Procfile.

Write plain functions, start them in your own transaction, let Dramatiq workers run them under leases.
"""

from __future__ import annotations

from flowforge.client import Run, Workflow, configure, deploy
from flowforge.errors import FlowForgeError, NonRetryable, Skip
from flowforge.settings import Settings
from flowforge.workflow import Context, Retry, Task

__all__ = [
    "Context",
    "FlowForgeError",
    "NonRetryable",
    "Retry",
    "Run",
    "Settings",
    "Skip",
    "Task",
    "Workflow",
    "configure",
    "deploy",
]
