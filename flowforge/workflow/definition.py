"""
A workflow's definition: its name, its parameters class, and its tasks in the order in which they were written.

A task can only refer to tasks above it, so a cycle cannot be written.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import reprlib
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

import dramatiq
from pydantic import ValidationError

from flowforge.errors import DefinitionError, ParameterError, did_you_mean
from flowforge.states import When
from flowforge.workflow import binding, values
from flowforge.workflow.options import TaskOptions
from flowforge.workflow.retry import Retry
from flowforge.workflow.stored import StoredTask
from flowforge.workflow.task import Task, upstream_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flowforge.workflow.retry import Duration
    from flowforge.workflow.task import Interrupt

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

    def __init__(self, name: str, parameters: type[Any] | None = None, *, description: str = "") -> None:
        """
        Define a workflow.

        `name` is 1-63 of `[a-z0-9._-]`, a letter or digit first; `parameters` is a dataclass or pydantic model.
        """
        if not _NAME.fullmatch(name):
            raise DefinitionError(
                f"workflow name {name!r}: use 1-63 of a-z, 0-9, '.', '_', '-', a letter or digit first"
            )
        self.name, self.description = name, description
        self.parameters: Any = parameters
        self.fields = binding.fields_of(parameters, name)
        self.tasks: dict[str, Task[..., Any]] = {}
        self._digest = (-1, "")  # the number of tasks that it was made for, because tasks are only ever added

    def __repr__(self) -> str:
        """Show the name and the number of tasks."""
        return f"<{type(self).__name__} {self.name!r} with {len(self.tasks)} tasks>"

    @overload
    def task(
        self,
        function: Callable[Q, R],
        /,
        *,
        key: str | None = ...,
        inputs: Mapping[str, Any] | None = ...,
        after: Task[..., Any] | Sequence[Task[..., Any]] = ...,
        when: str = ...,
        required: bool = ...,
        retry: Retry = ...,
        timeout: Duration = ...,
        queue: str = ...,
        interrupt: Interrupt = ...,
    ) -> Task[Q, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        key: str | None = ...,
        inputs: Mapping[str, Any] | None = ...,
        after: Task[..., Any] | Sequence[Task[..., Any]] = ...,
        when: str = ...,
        required: bool = ...,
        retry: Retry = ...,
        timeout: Duration = ...,
        queue: str = ...,
        interrupt: Interrupt = ...,
    ) -> Decorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """
        Make a function, coroutine function or Dramatiq actor a task of this workflow; usable as a decorator.

        `key` names it (default: the function's name). `inputs` says where arguments come from when their names do not:
        a task, a list or dict of tasks, or a JSON constant. `after` adds order without data. `when` is the rule that
        decides, once the last direct upstream has ended, whether it runs: `all_succeeded`, `none_failed`, `all_done` or
        `any_failed`. Without `required` the run can succeed without it. `timeout` bounds one attempt; `interrupt` says
        whether an exception may be raised into an attempt that ran out of time (`raise`) or not (`never`).

        Raises `DefinitionError` that names task, option and remedy.
        """
        if function is None:
            return lambda function: self._add(function, TaskOptions.of(options, self.name))
        return self._add(function, TaskOptions.of(options, self.name))

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
            timeout=options.limit(what),
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
            digest = hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest()
            self._digest = (len(tasks), digest)
        return self._digest[1]

    def encode(self, *args: Any, **kwargs: Any) -> str:
        """
        Check a run's parameters against the parameters class; return them as JSON text.

        Raises `ParameterError` that names the field, the value and the remedy.
        """
        if self.parameters is None:
            return self._encode_nothing(args, kwargs)
        signature = inspect.signature(self.parameters)
        if unknown := [name for name in kwargs if name not in signature.parameters]:
            near = did_you_mean(unknown[0], signature.parameters)
            raise ParameterError(f"workflow {self.name!r} has no parameter {unknown[0]!r}{near}")
        try:
            checked = values.decode(signature.bind(*args, **kwargs).arguments, self.parameters)
        except TypeError as error:
            raise ParameterError(f"workflow {self.name!r}: {error}") from None
        except ValidationError as error:
            raise ParameterError(f"workflow {self.name!r}: {_first(error)}") from None
        by_field = {name: getattr(checked, name) for name in self.fields}
        return values.encode(by_field, f"parameters of workflow {self.name!r}")

    def _encode_nothing(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if args or kwargs:
            raise ParameterError(f"workflow {self.name!r} takes no parameters: give it a parameters class")
        return "{}"


def _by_key(task: Mapping[str, Any]) -> str:
    return str(task["key"])


def _first(error: ValidationError) -> str:
    """Say the first problem: where, what, and the value that was given."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    return f"parameter {field!r}: {problem['msg']} (got {reprlib.repr(problem['input'])})"
