"""
The rules in plain Python: the oracle of the stateful tests.

It keeps nothing but what happened (who was claimed, who ended how). Every state and counter is derived from that anew,
by looking at the upstreams themselves: no counter is ever raised or lowered here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from flowforge.states import TASK_TERMINAL, RunState, TaskState, When

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Event = tuple[str, str | None, str]


@dataclass(frozen=True)
class Rule:
    """A task: what it waits for, when it runs, and whether its failure fails the run."""

    upstream: Sequence[str] = ()
    when: When = When.ALL_SUCCEEDED
    required: bool = True


@dataclass
class ModelRun:
    """A run of tasks, in order of definition: upstreams first."""

    tasks: Mapping[str, Rule]
    running: set[str] = field(default_factory=set)
    endings: dict[str, TaskState] = field(default_factory=dict)

    def claim(self, keys: Iterable[str]) -> None:
        """Start task runs that are ready."""
        for key in keys:
            assert self.states()[key] == TaskState.READY, key
            self.running.add(key)

    def finish(self, endings: Mapping[str, TaskState]) -> None:
        """End task runs that are running."""
        self.running -= endings.keys()
        self.endings.update(endings)

    def states(self) -> dict[str, TaskState]:
        """Return the state of every task run."""
        states: dict[str, TaskState] = {}
        for key, rule in self.tasks.items():
            states[key] = self._state(key, rule, [states[upstream] for upstream in rule.upstream])
        return states

    def _state(self, key: str, rule: Rule, upstream: list[TaskState]) -> TaskState:
        if key in self.endings:
            return self.endings[key]
        if key in self.running:
            return TaskState.RUNNING
        if any(state not in TASK_TERMINAL for state in upstream):
            return TaskState.PENDING
        return TaskState.READY if _wanted(rule.when, upstream) else TaskState.SKIPPED

    def counters(self) -> dict[str, tuple[int, int, int]]:
        """Return how many upstreams of each task run are not terminal, failed, and ended in any way but succeeded."""
        states = self.states()
        return {key: _count([states[upstream] for upstream in rule.upstream]) for key, rule in self.tasks.items()}

    def run(self) -> tuple[RunState, int, int]:
        """Return the run's state, and how many task runs are not terminal, and are required and failed."""
        states = self.states()
        remaining = sum(state not in TASK_TERMINAL for state in states.values())
        failed = sum(state == TaskState.FAILED and self.tasks[key].required for key, state in states.items())
        if remaining:
            return RunState.RUNNING if self.running or self.endings else RunState.PENDING, remaining, failed
        return RunState.FAILED if failed else RunState.SUCCEEDED, remaining, failed

    def events(self) -> dict[str, list[Event]]:
        """Return (kind, from, to) of everything that happened to each task run."""
        return {key: _events(self._path(key, state)) for key, state in self.states().items()}

    def _path(self, key: str, state: TaskState) -> list[TaskState]:
        started = key in self.running or key in self.endings
        path = [TaskState.PENDING] if self.tasks[key].upstream else []
        path += [TaskState.READY] if started or state == TaskState.READY else []
        path += [TaskState.RUNNING] if started else []
        return path + ([state] if state in TASK_TERMINAL else [])

    def run_events(self) -> list[Event]:
        """Return (kind, from, to) of everything that happened to the run."""
        state, remaining, _ = self.run()
        begun = [] if state == RunState.PENDING else [("started", "pending", "running")]
        over = [] if remaining else [(state.value, "running", state.value)]
        return [("created", None, "pending"), *begun, *over]


def _wanted(when: When, upstream: list[TaskState]) -> bool:
    failed = TaskState.FAILED in upstream
    match when:
        case When.ALL_SUCCEEDED:
            return all(state == TaskState.SUCCEEDED for state in upstream)
        case When.NONE_FAILED:
            return not failed
        case When.ANY_FAILED:
            return failed or not upstream
        case When.ALL_DONE:
            return True


def _count(upstream: list[TaskState]) -> tuple[int, int, int]:
    unsucceeded = [state for state in upstream if state in TASK_TERMINAL and state != TaskState.SUCCEEDED]
    return sum(state not in TASK_TERMINAL for state in upstream), unsucceeded.count(TaskState.FAILED), len(unsucceeded)


def _events(path: list[TaskState]) -> list[Event]:
    told = {TaskState.READY: "readied", TaskState.RUNNING: "claimed"}
    steps = [(told.get(to, to.value), from_.value, to.value) for from_, to in pairwise(path)]
    return [("created", None, path[0].value), *steps]
