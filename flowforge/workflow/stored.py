"""A task as a version stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowforge.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.workflow.task import Task


@dataclass(frozen=True)
class StoredTask:
    """A task as a version stores it: everything the engine needs, and nothing of the code. Durations in seconds."""

    key: str
    inputs: Mapping[str, dict[str, Any]]
    upstream: tuple[str, ...]
    when: str
    required: bool
    queue: str
    attempts: int
    lost: int
    retry_delay: float
    retry_factor: float
    retry_max_delay: float
    timeout: float
    start_by: float | None
    lease: float | None

    @classmethod
    def of(cls, task: Task[..., Any]) -> StoredTask:
        """Return what is stored of a task in code."""
        retry = task.retry
        return cls(
            key=task.key,
            inputs=task.inputs,
            upstream=task.upstream,
            when=task.when.value,
            required=task.required,
            queue=task.queue,
            attempts=retry.attempts,
            lost=retry.lost,
            retry_delay=seconds(retry.delay, "delay"),
            retry_factor=float(retry.factor),
            retry_max_delay=seconds(retry.max_delay, "max_delay"),
            timeout=task.timeout,
            start_by=task.start_by,
            lease=task.lease,
        )

    def pause(self, failures: int) -> float:
        """
        Return the longest that the next attempt may have to wait after that many failures: exponential, and capped.

        A power too large for a float is the cap as well.
        """
        try:
            return min(self.retry_delay * self.retry_factor ** (failures - 1), self.retry_max_delay)
        except OverflowError:
            return self.retry_max_delay
