"""Every read: for the client, the workers, the command line and whatever shows. A tenant's takes the organization."""

from __future__ import annotations

from flowforge.insights.definitions import (
    KnownTask,
    Needed,
    current_version,
    deployed_names,
    known_tasks,
    targets,
    unfinished_tasks,
    upstream_results,
    version,
    version_of,
)
from flowforge.insights.history import Event, run_events
from flowforge.insights.invariants import broken_invariants
from flowforge.insights.queues import ASKED_FOR, published_before, waiting_queues
from flowforge.insights.runs import (
    RunSummary,
    TaskSummary,
    find_runs,
    list_runs,
    run_state,
    run_summary,
    task_outcome,
    task_summaries,
)

__all__ = [
    "ASKED_FOR",
    "Event",
    "KnownTask",
    "Needed",
    "RunSummary",
    "TaskSummary",
    "broken_invariants",
    "current_version",
    "deployed_names",
    "find_runs",
    "known_tasks",
    "list_runs",
    "published_before",
    "run_events",
    "run_state",
    "run_summary",
    "targets",
    "task_outcome",
    "task_summaries",
    "unfinished_tasks",
    "upstream_results",
    "version",
    "version_of",
    "waiting_queues",
]
