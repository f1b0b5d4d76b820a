"""A run as its starter sees it."""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pydantic import PydanticUserError, ValidationError

from flowforge import insights
from flowforge.client import decisions
from flowforge.client.engine import engine
from flowforge.client.offload import offload
from flowforge.errors import FlowForgeError, NotFinished, RunNotCommitted, TaskFailed, UnreadableValue, WaitTimeout
from flowforge.states import RUN_TERMINAL, TASK_TERMINAL, Paused, RunState, TaskState
from flowforge.workflow import values

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
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
            pause = self._next_pause(began, pause, state, timeout)
            time.sleep(pause)
        return state

    async def wait_async(self, timeout: float | None = None) -> RunState:  # noqa: ASYNC109 - as in `wait`
        """Wait like `wait`, without blocking the event loop."""
        if engine().database.in_transaction():
            raise RunNotCommitted(self.id)
        began, pause = time.monotonic(), _FIRST_PAUSE
        while (state := await offload(getattr, self, "state")) not in RUN_TERMINAL:
            pause = await offload(self._next_pause, began, pause, state, timeout)
            await asyncio.sleep(pause)
        return RunState(state)

    def tasks(self) -> list[insights.TaskSummary]:
        """Return the run's task runs as they are now, in order of definition."""
        engine()
        return insights.task_summaries(self.organization, self.id)

    async def tasks_async(self) -> list[insights.TaskSummary]:
        """Return what `tasks` does, without blocking the event loop."""
        return await offload(self.tasks)

    def events(self) -> list[insights.Event]:
        """Return what has happened to the run and its task runs so far, oldest first."""
        engine()
        return insights.run_events(self.organization, self.id)

    async def events_async(self) -> list[insights.Event]:
        """Return what `events` does, without blocking the event loop."""
        return await offload(self.events)

    @overload
    def result(self, task: Task[..., Coroutine[Any, Any, R]]) -> R: ...

    @overload
    def result(self, task: Task[..., R]) -> R: ...

    def result(self, task: Task[..., Any]) -> Any:
        """
        Return what a task returned, read by its return annotation.

        Raises `NotFinished` before it has ended, `TaskFailed` when it ended in any way but succeeded, and
        `UnreadableValue` when what it returned does not fit the annotation of this code.
        """
        engine()
        row = insights.task_outcome(self.organization, self.id, task.key)
        if row is None:
            raise FlowForgeError(f"run {self.id} has no task {task.key!r}: its version is another than this code's")
        return read_result(self.id, task, row.state, row.result, row.error)

    @overload
    async def result_async(self, task: Task[..., Coroutine[Any, Any, R]]) -> R: ...

    @overload
    async def result_async(self, task: Task[..., R]) -> R: ...

    async def result_async(self, task: Task[..., Any]) -> Any:
        """Return what `result` does, without blocking the event loop."""
        return await offload(self.result, task)

    def cancel(self, *, reason: str = "", now: bool = False, by: str | None = None) -> RunState:
        """
        Cancel the run: what has not begun ends at once, running code is told within two seconds.

        Clean-ups (`when="all_done"`) still run, unless `now`. Code that goes on loses its token after
        FLOWFORGE_CANCEL_GRACE. Return the run's state: `cancelled`, or what it is until the last task has ended. Raises
        `CannotCancel` with the state that stands where the run has ended otherwise, and `RowLocked`.
        """
        return decisions.cancel(self, None, reason=reason, now=now, by=by)

    async def cancel_async(self, *, reason: str = "", now: bool = False, by: str | None = None) -> RunState:
        """Cancel the run like `cancel`, without blocking the event loop."""
        return await offload(functools.partial(self.cancel, reason=reason, now=now, by=by))

    def cancel_task(self, task: Task[..., Any] | str, *, reason: str = "", by: str | None = None) -> TaskState:
        """
        Cancel one task run, of a task or a key; what depends on it goes by its rule. Return its state.

        Raises `CannotCancel` with the state that stands where it has ended, and `RowLocked`.
        """
        return decisions.cancel_task(self, decisions.key_of(task), reason=reason, by=by)

    def rerun(
        self, *, tasks: Iterable[Task[..., Any] | str] = (), reason: str = "", by: str | None = None
    ) -> list[str]:
        """
        Carry out again what failed or was cancelled in this finished run, or these tasks, and all that depends on it.

        Return the keys of what is due again. Budgets are fresh, attempts and tokens go on. Raises `CannotRerun` that
        says what is in the way.
        """
        return decisions.rerun(self, [decisions.key_of(task) for task in tasks], reason=reason, by=by)

    def pause(self, *, reason: str = "", by: str | None = None) -> bool:
        """Dispatch nothing more of this run until `resume`; what runs goes on. False where it is paused already."""
        return decisions.pause(Paused.RUN, str(self.id), reason=reason, by=by, organization=self.organization)

    def resume(self, *, reason: str = "", by: str | None = None) -> bool:
        """Dispatch this run again. False where it was not paused."""
        return decisions.resume(Paused.RUN, str(self.id), reason=reason, by=by, organization=self.organization)

    def _stuck(self) -> str:
        """Return why nothing of the run is being carried out, as far as one sees."""
        summary = insights.run_summary(self.organization, self.id)
        paused = summary.paused if summary else []
        if paused:
            why = f" ({paused[0].reason})" if paused[0].reason else ""
            return f": its {paused[0].kind} was paused by {paused[0].paused_by}{why}"
        return _stuck(self.tasks())

    def _next_pause(self, began: float, pause: float, state: RunState, timeout: float | None) -> float:
        """Return the seconds until the next look. Raises `WaitTimeout` when the time is over."""
        if timeout is None:
            return min(pause * 1.5, _LONGEST_PAUSE)
        left = timeout - (time.monotonic() - began)
        if left <= 0:
            raise WaitTimeout(self.id, state, timeout, self._stuck())
        return min(pause * 1.5, _LONGEST_PAUSE, left)


def _stuck(tasks: list[insights.TaskSummary]) -> str:
    """Return which of its task runs is waited for, and for what, as far as one sees."""
    if any(task.state == TaskState.RUNNING for task in tasks):
        return ""
    for task in tasks:
        if task.deferred_because:
            return f": task {task.key!r} waits, because {task.deferred_because}"
    ready = [task.key for task in tasks if task.state == TaskState.READY and task.attempt == 1]
    return (
        f": task {ready[0]!r} is ready, and no worker has taken it: do a scheduler, and a worker of its queue, run?"
        if ready
        else ""
    )


def read_result(run_id: UUID, task: Task[..., Any], state: str, result: Any, error: dict[str, str] | None) -> Any:
    """Return a task's result as its annotation says, or raise what its state means."""
    if state not in TASK_TERMINAL:
        raise NotFinished(run_id, task.key, state)
    if state != TaskState.SUCCEEDED:
        raise TaskFailed(run_id, task.key, state, error)
    try:
        return values.decode(result, task.annotations.get("return", Any))
    except (ValidationError, PydanticUserError) as misfit:
        raise UnreadableValue(f"the result of task {task.key!r} does not fit its annotation: {misfit}") from misfit
