"""run_inline: the plan of a run carried out in this process, without servers, with the engine's rules and values."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID, uuid4

from flowforge.client.run import read_result
from flowforge.errors import NonRetryable, Skip, UnstorableValue
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RunState, TaskState
from flowforge.workflow import Context, values
from flowforge.workflow.arguments import arguments
from flowforge.workflow.failure import describe

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from flowforge.workflow import Definition, Task

R = TypeVar("R")


@dataclass
class InlineTask:
    """How a task ended; `result` is parsed JSON."""

    state: TaskState
    attempts: int = 0
    result: Any = None
    error: dict[str, str] | None = None


@dataclass
class InlineRun:
    """A run that was carried out in this process."""

    definition: Definition[Any]
    id: UUID = field(default_factory=uuid4)
    tasks: dict[str, InlineTask] = field(default_factory=dict)

    @property
    def state(self) -> RunState:
        """How the run ended: failed if a required task failed, else succeeded."""
        required = (task for key, task in self.tasks.items() if self.definition.tasks[key].required)
        return RunState.FAILED if any(task.state == TaskState.FAILED for task in required) else RunState.SUCCEEDED

    @overload
    def result(self, task: Task[..., Coroutine[Any, Any, R]]) -> R: ...

    @overload
    def result(self, task: Task[..., R]) -> R: ...

    def result(self, task: Task[..., Any]) -> Any:
        """Return what a task returned. Raises `TaskFailed` when it ended in any way but succeeded."""
        ended = self.tasks[task.key]
        return read_result(self.id, task, ended.state, ended.result, ended.error)


class _InlineHooks:
    """Nothing to renew, nobody to tell."""

    def cancelled(self, context: Context) -> bool:  # noqa: ARG002
        return False

    def progress(self, context: Context, done: float, total: float | None, note: str) -> None:
        """Progress is for those who watch."""

    def guard(self, context: Context, connection: Any) -> None:
        """Nobody else can own the task run."""


def run_inline(definition: Definition[Any], parameters: str) -> InlineRun:
    """Carry out every task once all its upstreams have ended, which the order of definition already says."""
    definition.structure()
    run = InlineRun(definition)
    for task in definition.tasks.values():
        run.tasks[task.key] = _end(run, task, json.loads(parameters))
    return run


def _end(run: InlineRun, task: Task[..., Any], parameters: Mapping[str, Any]) -> InlineTask:
    upstream = [run.tasks[key].state for key in task.upstream]
    failed = upstream.count(TaskState.FAILED)
    unsucceeded = len(upstream) - upstream.count(TaskState.SUCCEEDED)
    if not task.when.met(failed=failed, unsucceeded=unsucceeded):
        return InlineTask(TaskState.SKIPPED)
    for attempt in range(1, task.retry.attempts + 1):
        ended, final = _attempt(run, task, parameters, attempt)
        if final:
            break
    return ended


def _attempt(
    run: InlineRun, task: Task[..., Any], parameters: Mapping[str, Any], attempt: int
) -> tuple[InlineTask, bool]:
    """Return how one attempt ended, and whether that is final."""
    context = Context(run.id, uuid4(), DEFAULT_ORGANIZATION, task.workflow, task.key, attempt, attempt, _InlineHooks())
    results = {key: ended.result for key, ended in run.tasks.items() if ended.state == TaskState.SUCCEEDED}
    try:
        returned = task.function(**arguments(task, task.inputs, parameters, results, context))
        returned = asyncio.run(returned) if task.is_async else returned
        result = values.as_json(returned, f"the result of task {task.key!r}")
    except Skip as reason:
        return InlineTask(TaskState.SKIPPED, attempt, error=describe(reason)), True
    except Exception as error:  # noqa: BLE001 - the attempt's outcome, whatever the user's function raised
        final = isinstance(error, NonRetryable | UnstorableValue) or attempt == task.retry.attempts
        return InlineTask(TaskState.FAILED, attempt, error=describe(error)), final
    return InlineTask(TaskState.SUCCEEDED, attempt, result=result), True
