"""
run_inline: the plan of a run carried out in this process, without servers, with the engine's rules, values and order.

One task runs at a time, as on a worker with one thread. Nobody waits: the pauses between attempts pass on a clock that
only they move. What is due first starts first, then what became ready first, then what was defined first. The engine
keeps to the first two, on one thread; what becomes ready at the same moment it starts in any order.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload
from uuid import UUID, uuid4

from flowforge.client import jsonb
from flowforge.client.engine import settings
from flowforge.client.run import read_result
from flowforge.errors import AttemptCancelled, NonRetryable, Skip, UnstorableValue
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RunState, TaskEvent, TaskState
from flowforge.workflow import Context, values
from flowforge.workflow.arguments import arguments
from flowforge.workflow.failure import describe

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from flowforge.workflow import Definition, Task

R = TypeVar("R")


class InlineEvent(NamedTuple):
    """A change of a task, in the words of `Run.events`: `attempt` is the one after the change."""

    kind: TaskEvent
    task: str
    attempt: int


@dataclass
class InlineTask:
    """How a task ended, and after how many attempts; `result` is parsed JSON."""

    state: TaskState
    attempts: int = 0
    result: Any = None
    error: dict[str, str] | None = None


@dataclass
class InlineRun:
    """A run that was carried out in this process: its tasks by key as they ended, and what happened, in order."""

    definition: Definition[Any]
    id: UUID = field(default_factory=uuid4)
    tasks: dict[str, InlineTask] = field(default_factory=dict)
    events: list[InlineEvent] = field(default_factory=list)

    @property
    def state(self) -> RunState:
        """How the run ended: failed if a required task failed, else cancelled if one was cancelled, else succeeded."""
        states = {task.state for key, task in self.tasks.items() if self.definition.tasks[key].required}
        if TaskState.FAILED in states:
            return RunState.FAILED
        return RunState.CANCELLED if TaskState.CANCELLED in states else RunState.SUCCEEDED

    @overload
    def result(self, task: Task[..., Coroutine[Any, Any, R]]) -> R: ...

    @overload
    def result(self, task: Task[..., R]) -> R: ...

    def result(self, task: Task[..., Any]) -> Any:
        """Return what a task returned. Raises `TaskFailed` when it ended in any way but succeeded."""
        ended = self.tasks[task.key]
        return read_result(self.id, task, ended.state, ended.result, ended.error)


def run_inline(definition: Definition[Any], parameters: str) -> InlineRun:
    """
    Carry out a run in the calling thread; where an event loop runs in that, in one beside it, and wait for it.

    What a task raises ends that task; only Ctrl-C ends the run. Raises `UnstorableValue` for too large parameters.
    """
    plan = _Plan(definition, parameters, settings().value_limit)
    if not _in_event_loop():
        return plan.carry_out()
    with ThreadPoolExecutor(1, thread_name_prefix="flowforge-inline") as thread:
        return thread.submit(contextvars.copy_context().run, plan.carry_out).result()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Plan:
    """A run that is being carried out."""

    def __init__(self, definition: Definition[Any], parameters: str, limit: int) -> None:
        values.check_size(parameters, limit, f"parameters of workflow {definition.name!r}")
        self.run, self._tasks, self._limit = InlineRun(definition), definition.tasks, limit
        self._stored = {task.key: task for task in definition.structure()}
        self._ids = {key: uuid4() for key in self._tasks}
        self._parameters = jsonb.returned(parameters)
        self._results: dict[str, str] = {}  # as JSON, so that each attempt reads values of its own
        #: Upstreams that have not ended.
        self._remaining = {key: len(task.upstream) for key, task in self._tasks.items()}
        self._dependents = _dependents(self._tasks)
        self._positions = {key: position for position, key in enumerate(self._tasks)}
        self._now, self._numbers = 0.0, itertools.count()
        self._due: list[tuple[float, int, str, int]] = []  # a heap: when, a growing number, the task, its attempt

    def carry_out(self) -> InlineRun:
        for key in [key for key, remaining in self._remaining.items() if not remaining]:
            self._owe(key, attempt=1)
        while self._due:
            self._now, _, key, attempt = heappop(self._due)
            self._tell(TaskEvent.CLAIMED, key, attempt)
            ended, final = self._attempt(self._tasks[key], attempt)
            if final:
                self._end({key: ended})
            else:
                self._tell(TaskEvent.RETRIED, key, attempt + 1)
                self._owe(key, attempt + 1, self._stored[key].pause(attempt))
        return self.run

    def _owe(self, key: str, attempt: int, delay: float = 0.0) -> None:
        heappush(self._due, (self._now + delay, next(self._numbers), key, attempt))

    def _tell(self, kind: TaskEvent, key: str, attempt: int = 1) -> None:
        self.run.events.append(InlineEvent(kind, key, attempt))

    def _end(self, ended: dict[str, InlineTask]) -> None:
        """End tasks, and at once decide what that decides: who is ready, who is skipped, and what those decide."""
        while ended:
            self.run.tasks |= ended
            for key, task in ended.items():
                self._tell(TaskEvent(task.state), key, task.attempts or 1)
            decided = {key: self._is_wanted(self._tasks[key]) for key in self._decided_by(ended)}
            for key in [key for key, wanted in decided.items() if wanted]:
                self._tell(TaskEvent.READIED, key)
                self._owe(key, attempt=1)
            ended = {key: InlineTask(TaskState.SKIPPED) for key, wanted in decided.items() if not wanted}

    def _decided_by(self, ended: Iterable[str]) -> list[str]:
        """Return the tasks, in order of definition, whose last upstream is among those that have just ended."""
        told = [dependent for key in ended for dependent in self._dependents[key]]
        for key in told:
            self._remaining[key] -= 1
        return sorted({key for key in told if not self._remaining[key]}, key=self._positions.__getitem__)

    def _is_wanted(self, task: Task[..., Any]) -> bool:
        states = [self.run.tasks[key].state for key in task.upstream]
        unsucceeded = len(states) - states.count(TaskState.SUCCEEDED)
        return task.when.met(failed=states.count(TaskState.FAILED), unsucceeded=unsucceeded)

    def _attempt(self, task: Task[..., Any], attempt: int) -> tuple[InlineTask, bool]:
        """Return how an attempt ended, and whether that is final."""
        what = f"the result of task {task.key!r}"
        try:
            text = values.encode(_call(task, self._arguments(task, attempt)), what)
            values.check_size(text, self._limit, what)
        except KeyboardInterrupt:
            raise
        except (AttemptCancelled, Skip) as reason:
            state = TaskState.SKIPPED if isinstance(reason, Skip) else TaskState.CANCELLED
            return InlineTask(state, attempt, error=describe(reason)), True
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like are outcomes too, as on a worker
            final = isinstance(error, NonRetryable | UnstorableValue) or attempt == task.retry.attempts
            return InlineTask(TaskState.FAILED, attempt, error=describe(error)), final
        self._results[task.key] = jsonb.returned(text)
        return InlineTask(TaskState.SUCCEEDED, attempt, result=json.loads(self._results[task.key])), True

    def _arguments(self, task: Task[..., Any], attempt: int) -> dict[str, Any]:
        inputs = json.loads(jsonb.returned(json.dumps(task.inputs)))
        ids = self.run.id, self._ids[task.key], DEFAULT_ORGANIZATION
        token = 2 * attempt - 1  # one more with each claim and each release
        context = Context(*ids, task.workflow, task.key, attempt, token, _InlineHooks())
        results = {key: json.loads(self._results[key]) for key in task.upstream if key in self._results}
        return arguments(task, inputs, json.loads(self._parameters), results, context)


class _InlineHooks:
    """Nothing to renew, nobody to tell."""

    def cancelled(self, context: Context) -> bool:  # noqa: ARG002
        return False

    def progress(self, context: Context, done: float, total: float | None, note: str) -> None:
        """Progress is for those who watch."""

    def guard(self, context: Context, connection: Any) -> None:
        """Nobody else can own the task run."""

    async def guard_async(self, context: Context, connection: Any) -> None:
        """Nobody else can own the task run."""


def _dependents(tasks: Mapping[str, Task[..., Any]]) -> dict[str, list[str]]:
    dependents: dict[str, list[str]] = {key: [] for key in tasks}
    for task in tasks.values():
        for upstream in task.upstream:
            dependents[upstream].append(task.key)
    return dependents


def _call(task: Task[..., Any], given: Mapping[str, Any]) -> Any:
    returned = task.function(**given)
    return asyncio.run(returned) if task.is_async else returned
