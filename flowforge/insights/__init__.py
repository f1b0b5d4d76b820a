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
from flowforge.insights.listings import QueueSummary, WorkflowSummary, list_queues, list_workflows
from flowforge.insights.pauses import PauseSummary, pauses, queue_names, workflow_names
from flowforge.insights.queues import (
    ASKED_FOR,
    age_of_last,
    asked_before,
    idle_queues,
    orders,
    past_deadline,
    published_before,
    refused,
    unstarted,
    waiting_queues,
)
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
    "PauseSummary",
    "QueueSummary",
    "RunSummary",
    "TaskSummary",
    "WorkflowSummary",
    "age_of_last",
    "asked_before",
    "broken_invariants",
    "current_version",
    "deployed_names",
    "find_runs",
    "idle_queues",
    "known_tasks",
    "list_queues",
    "list_runs",
    "list_workflows",
    "orders",
    "past_deadline",
    "pauses",
    "published_before",
    "queue_names",
    "refused",
    "run_events",
    "run_state",
    "run_summary",
    "targets",
    "task_outcome",
    "task_summaries",
    "unfinished_tasks",
    "unstarted",
    "upstream_results",
    "version",
    "version_of",
    "waiting_queues",
    "workflow_names",
]
