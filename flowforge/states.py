"""Every state and every kind of event, in the words that the tables, the CLI and the metrics use."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """State of a workflow run."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the run is terminal."""
        return self in RUN_TERMINAL


class TaskState(StrEnum):
    """State of a task run."""

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class When(StrEnum):
    """The rule that decides, once the last direct upstream is terminal, whether a task runs or is skipped."""

    ALL_SUCCEEDED = "all_succeeded"
    NONE_FAILED = "none_failed"
    ALL_DONE = "all_done"
    ANY_FAILED = "any_failed"

    def met(self, *, failed: int, unsucceeded: int) -> bool:
        """Decide for the number of upstreams that failed, and that ended in any way but succeeded."""
        return {
            When.ALL_SUCCEEDED: unsucceeded == 0,
            When.NONE_FAILED: failed == 0,
            When.ALL_DONE: True,
            When.ANY_FAILED: failed > 0,
        }[self]


class RunEvent(StrEnum):
    """Kind of a workflow run's event."""

    CREATED = "created"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MOVED = "moved"
    CANCEL_REQUESTED = "cancel_requested"
    PAUSED = "paused"
    RESUMED = "resumed"
    RERUN = "rerun"


class TaskEvent(StrEnum):
    """Kind of a task run's event."""

    CREATED = "created"
    READIED = "readied"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    RETRIED = "retried"
    HANDED_BACK = "handed_back"
    DEFERRED = "deferred"
    EXPIRED = "expired"
    REFUSED = "refused"
    MOVED = "moved"
    CANCEL_REQUESTED = "cancel_requested"
    RERUN = "rerun"


class Paused(StrEnum):
    """What can be paused."""

    RUN = "run"
    WORKFLOW = "workflow"
    QUEUE = "queue"


class Overlap(StrEnum):
    """What becomes of a slot while a run that its trigger started goes on."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    CANCEL_RUNNING = "cancel_running"


RUN_TERMINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})
TASK_TERMINAL = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.SKIPPED})
