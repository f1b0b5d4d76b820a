"""A task: a plain function, where its arguments come from, and when it runs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from flowforge.states import When

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.workflow.retry import Retry

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

Interrupt = Literal["raise", "never"]


@dataclass(frozen=True, eq=False)
class Task(Generic[P, R_co]):
    """
    A step of a workflow. Calling it calls the plain function.

    `inputs` says for each argument where its value comes from, in the form that is stored with the version: one of
    `{"parameter": name}`, `{"task": key}`, `{"tasks": [keys] or {name: key}}`, `{"value": json}`, `{"context": true}`.
    """

    workflow: str
    key: str
    function: Callable[P, R_co]
    inputs: Mapping[str, dict[str, Any]]
    #: Keys of the tasks that it waits for, sorted.
    upstream: tuple[str, ...]
    retry: Retry
    #: Seconds that one attempt may take.
    timeout: float
    #: Seconds that it may wait for a worker once it is due, and that a worker owns it without a sign of life.
    start_by: float | None = None
    lease: float | None = None
    when: When = When.ALL_SUCCEEDED
    required: bool = True
    queue: str = "default"
    interrupt: Interrupt = "raise"
    #: Resolved annotations of the function's parameters and of its return.
    annotations: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function as it is: no engine, no servers."""
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether the function is `async def`."""
        return inspect.iscoroutinefunction(self.function)

    def cannot_take(self, inputs: Mapping[str, Any]) -> str | None:
        """Say why the function does not fit inputs that were stored with some version, or None if it does."""
        parameters = inspect.signature(self.function).parameters
        if extra := sorted(set(inputs) - set(parameters)):
            return f"the code's {self.key}() takes no argument {extra[0]!r}"
        needed = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
        if missing := sorted(needed - set(inputs)):
            return f"the code's {self.key}() needs an argument {missing[0]!r}"
        return None


def upstream_keys(source: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the tasks that a source of `Task.inputs` names."""
    if "task" in source:
        return (source["task"],)
    tasks = source.get("tasks", ())
    return tuple(tasks.values() if isinstance(tasks, dict) else tasks)
