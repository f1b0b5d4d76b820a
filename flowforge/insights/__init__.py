"""Every read: for the client, the workers, the command line and whatever shows. A tenant's takes the organization."""

from __future__ import annotations

from flowforge.insights.definitions import (
    KnownTask,
    current_version,
    deployed_names,
    known_tasks,
    upstream_results,
    version_of,
)
from flowforge.insights.invariants import broken_invariants
from flowforge.insights.queues import published_before, waiting_queues
from flowforge.insights.runs import (
    RunSummary,
    TaskSummary,
    find_runs,
    list_runs,
    run_state,
    run_summary,
    task_events,
    task_outcome,
    task_summaries,
)

__all__ = [
    "KnownTask",
    "RunSummary",
    "TaskSummary",
    "broken_invariants",
    "current_version",
    "deployed_names",
    "find_runs",
    "known_tasks",
    "list_runs",
    "published_before",
    "run_state",
    "run_summary",
    "task_events",
    "task_outcome",
    "task_summaries",
    "upstream_results",
    "version_of",
    "waiting_queues",
]
