"""A run as its starter sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from flowforge import insights
from flowforge.client.engine import engine
from flowforge.errors import FlowForgeError, NotFinished, RunNotCommitted, TaskFailed, WaitTimeout
from flowforge.states import RUN_TERMINAL, TASK_TERMINAL, RunState, TaskState
from flowforge.workflow import values

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from uuid import UUID

    from flowforge.workflow import Task

R = TypeVar("R")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between looks at the run


@dataclass(frozen=True)
class Run:
    """A started run, by its id."""

    id: UUID
    organization: UUID

    @property
    def state(self) -> RunState:
        """The run's state now. Raises `RunNotCommitted` while its transaction is open, or when it was rolled back."""
        engine().database.raw()
        state = insights.run_state(self.organization, self.id)
        if state is None:
            raise RunNotCommitted(self.id)
        return RunState(state)

    def wait(self, timeout: float | None = None) -> RunState:
        """
        Wait, for at most `timeout` seconds, until the run has ended; return how.

        Raises `WaitTimeout`, or `RunNotCommitted` at once in the transaction that started the run.
        """
        if engine().database.in_transaction():
            raise RunNotCommitted(self.id)
        began, pause = time.monotonic(), _FIRST_PAUSE
        while (state := self.state) not in RUN_TERMINAL:
            if timeout is not None and time.monotonic() - began >= timeout:
                raise WaitTimeout(self.id, state, timeout)
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return state

    @overload
    def result(self, task: Task[..., Coroutine[Any, Any, R]]) -> R: ...

    @overload
    def result(self, task: Task[..., R]) -> R: ...

    def result(self, task: Task[..., Any]) -> Any:
        """
        Return what a task returned, read by its return annotation.

        Raises `NotFinished` before it has ended, and `TaskFailed` when it ended in any way but succeeded.
        """
        engine()
        row = insights.task_outcome(self.organization, self.id, task.key)
        if row is None:
            raise FlowForgeError(f"run {self.id} has no task {task.key!r}: its version is another than this code's")
        return read_result(self.id, task, row.state, row.result, row.error)


def read_result(run_id: UUID, task: Task[..., Any], state: str, result: Any, error: dict[str, str] | None) -> Any:
    """Return a task's result as its annotation says, or raise what its state means."""
    if state not in TASK_TERMINAL:
        raise NotFinished(run_id, task.key, state)
    if state != TaskState.SUCCEEDED:
        raise TaskFailed(run_id, task.key, state, error)
    return values.decode(result, task.annotations.get("return", Any))
