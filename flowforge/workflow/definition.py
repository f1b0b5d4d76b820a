"""
A workflow's definition: its name, its parameters class, and its tasks in the order in which they were written.

A task can only refer to tasks above it, so a cycle cannot be written.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

import dramatiq

from flowforge.durations import positive
from flowforge.errors import DefinitionError
from flowforge.states import When
from flowforge.workflow import binding
from flowforge.workflow import parameters as given_parameters
from flowforge.workflow.options import TaskOptions
from flowforge.workflow.retry import Retry
from flowforge.workflow.stored import StoredTask
from flowforge.workflow.task import Task, upstream_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.durations import Duration
    from flowforge.workflow.options import HandlerKeywords, TaskKeywords

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Decorator(Protocol):
    """What `@workflow.task(…)` leaves to be applied to a function."""

    def __call__(self, function: Callable[Q, R], /) -> Task[Q, R]:
        """Make the function a task."""


class Definition(Generic[P]):
    """A workflow without the means to start it."""

    def __init__(
        self,
        name: str,
        parameters: type[Any] | None = None,
        *,
        description: str = "",
        deadline: Duration | None = None,
    ) -> None:
        """
        Define a workflow.

        `name` is 1-63 of `[a-z0-9._-]`, a letter or digit first; `parameters` is a dataclass or pydantic model. A run
        that is not over `deadline` after its start is cancelled.
        """
        if not _NAME.fullmatch(name):
            raise DefinitionError(
                f"workflow name {name!r}: use 1-63 of a-z, 0-9, '.', '_', '-', a letter or digit first"
            )
        self.name, self.description = name, description
        self.deadline = None if deadline is None else positive(deadline, f"workflow {name!r}: deadline")
        self.parameters: Any = parameters
        self.fields = binding.fields_of(parameters, name)
        self.tasks: dict[str, Task[..., Any]] = {}
        self._handlers: set[str] = set()  # tasks that handle the outcome of others, and not each other's
        self._digest = (-1, "")  # the number of tasks that it was made for, because tasks are only ever added

    def __repr__(self) -> str:
        """Show the name and the number of tasks."""
        return f"<{type(self).__name__} {self.name!r} with {len(self.tasks)} tasks>"

    @overload
    def task(self, function: Callable[Q, R], /, **options: Unpack[TaskKeywords]) -> Task[Q, R]: ...

    @overload
    def task(self, /, **options: Unpack[TaskKeywords]) -> Decorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """
        Make a function, coroutine function or Dramatiq actor a task of this workflow; usable as a decorator.

        `key` names it (default: the function's name). `inputs` says where arguments come from when their names do not:
        a task, a list or dict of tasks, or a JSON constant. `after` adds order without data. `when` is the rule that
        decides, once the last direct upstream has ended, whether it runs: `all_succeeded`, `none_failed`, `all_done` or
        `any_failed`. Without `required` the run can succeed without it. `timeout` bounds one attempt, `start_by` its
        wait for a worker once it is due; `lease` is how long a worker owns it without a sign of life, where that is not
        to be FLOWFORGE_LEASE. `interrupt` says whether an exception may be raised into an attempt that ran out of time
        or was cancelled (`raise`) or not (`never`).

        Raises `DefinitionError` that names task, option and remedy.
        """
        if function is None:
            return lambda function: self._define(function, TaskOptions.of(options, self.name))
        return self._define(function, TaskOptions.of(options, self.name))

    @overload
    def on_failure(self, function: Callable[Q, R], /) -> Task[Q, R]: ...

    @overload
    def on_failure(self, /, **options: Unpack[HandlerKeywords]) -> Decorator: ...

    def on_failure(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """
        Make a function a task that runs once all required tasks above it have ended and any of them failed.

        Usable as a decorator. It is a task like any other: durable, retried, seen in the run, which can succeed or fail
        without it. Where the run is cancelled it is cancelled as well.
        """
        return self._handler(function, When.ANY_FAILED, options)

    @overload
    def on_success(self, function: Callable[Q, R], /) -> Task[Q, R]: ...

    @overload
    def on_success(self, /, **options: Unpack[HandlerKeywords]) -> Decorator: ...

    def on_success(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a task like `on_failure`'s, which runs if no required task above it failed."""
        return self._handler(function, When.NONE_FAILED, options)

    def _handler(self, function: Callable[..., Any] | None, when: When, options: Mapping[str, Any]) -> Any:
        if function is None:
            return lambda function: self._handler(function, when, options)
        watched = [task for task in self.tasks.values() if task.required]  # those by which the run fails
        if not watched:
            raise DefinitionError(f"workflow {self.name!r}: write on_failure and on_success below the required tasks")
        rule = {"after": watched, "when": when, "required": False}
        if given := [name for name in rule if name in options]:
            raise DefinitionError(
                f"workflow {self.name!r}: on_failure and on_success decide {given[0]!r}: leave it out, or write a task"
            )
        task = self._add(function, TaskOptions.of({**options, **rule}, self.name))
        self._handlers.add(task.key)
        return task

    def _define(self, function: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
        if self._handlers:
            raise DefinitionError(
                f"workflow {self.name!r}: write {function!r} above on_failure and on_success, which wait for all"
            )
        return self._add(function, options)

    def _add(self, function: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
        function = self._plain(function)
        key = function.__name__ if options.key is None else options.key
        what = f"task {key!r} of workflow {self.name!r}"
        if key in self.tasks:
            raise DefinitionError(f"{what}: there is a task of that key already: give another with key=")
        scope = binding.Scope(self.name, self.tasks, self.fields)
        options.check(key, what)
        inputs, annotations = binding.bind(function, key, options.inputs or {}, options.rule(what), scope)
        upstream = {name for source in inputs.values() for name in upstream_keys(source)}
        upstream |= {binding.key_of(task, scope, f"{what}: after") for task in options.before(what)}
        if not upstream and options.rule(what) is When.ANY_FAILED:
            raise DefinitionError(f"{what}: when='any_failed' never comes true without a task that it waits for")
        self.tasks[key] = task = Task(
            workflow=self.name,
            key=key,
            function=function,
            inputs=inputs,
            upstream=tuple(sorted(upstream)),
            retry=options.retry or Retry(),
            timeout=options.limit("timeout", what),
            start_by=options.limit_or_none("start_by", what),
            lease=options.limit_or_none("lease", what),
            when=options.rule(what),
            required=options.required,
            queue=options.queue,
            interrupt=options.interrupt,
            annotations=annotations,
        )
        return task

    def _plain(self, function: Any) -> Callable[..., Any]:
        """Return the function as it was written; of an actor, without what runs it on Dramatiq's own event loop."""
        if isinstance(function, dramatiq.Actor):
            written = getattr(function.fn, "__wrapped__", None)
            return written if inspect.iscoroutinefunction(written) else function.fn
        if not inspect.isroutine(function):
            raise DefinitionError(f"workflow {self.name!r}: a task is a function or Dramatiq actor, not {function!r}")
        return function

    def structure(self) -> list[StoredTask]:
        """Return the tasks as they are stored, in order of definition. Raises `DefinitionError` if there is none."""
        if not self.tasks:
            raise DefinitionError(f"workflow {self.name!r} has no tasks: add one with @workflow.task")
        return [StoredTask.of(task) for task in self.tasks.values()]

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical structure: equal for two definitions that the engine treats alike."""
        if self._digest[0] != len(self.tasks):
            tasks = sorted((vars(task) for task in self.structure()), key=_by_key)
            structure = {"tasks": tasks, "deadline": self.deadline}
            digest = hashlib.sha256(json.dumps(structure, sort_keys=True).encode()).hexdigest()
            self._digest = (len(tasks), digest)
        return self._digest[1]

    def encode(self, *args: Any, **kwargs: Any) -> str:
        """
        Check a run's parameters against the parameters class; return them as JSON text.

        Raises `ParameterError` that names the field, the value and the remedy.
        """
        return given_parameters.encode(self.name, self.parameters, self.fields, args, kwargs)


def _by_key(task: Mapping[str, Any]) -> str:
    return str(task["key"])
