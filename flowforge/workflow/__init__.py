"""What a user writes: workflows, tasks and their policies. Names, edges and checks; no I/O and no clock."""

from __future__ import annotations

from flowforge.workflow.context import Context, Hooks
from flowforge.workflow.definition import Definition
from flowforge.workflow.retry import Retry
from flowforge.workflow.stored import StoredTask
from flowforge.workflow.task import Task

__all__ = ["Context", "Definition", "Hooks", "Retry", "StoredTask", "Task"]
