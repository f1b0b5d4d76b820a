"""The options of one task, checked where the task is defined."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from flowforge.durations import positive
from flowforge.errors import DefinitionError, did_you_mean
from flowforge.states import When
from flowforge.workflow.retry import Retry
from flowforge.workflow.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.durations import Duration
    from flowforge.workflow.task import Interrupt

_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_SHORTEST = 0.1  # seconds: a shorter one is over before anybody can look
_QUEUE = re.compile(r"[A-Za-z0-9_.:-]{1,63}")


class HandlerKeywords(TypedDict, total=False):
    """What `Definition.on_failure` and `on_success` can be told, for type checkers."""

    key: str | None
    inputs: Mapping[str, Any] | None
    retry: Retry
    timeout: Duration
    start_by: Duration | None
    lease: Duration | None
    queue: str
    interrupt: Interrupt


class TaskKeywords(HandlerKeywords, total=False):
    """What `Definition.task` can be told."""

    after: Task[..., Any] | Sequence[Task[..., Any]]
    when: str
    required: bool


@dataclass(frozen=True)
class TaskOptions:
    """What `Definition.task` was told beside the function, with the defaults."""

    key: str | None = None
    inputs: Mapping[str, Any] | None = None
    after: Task[..., Any] | Sequence[Task[..., Any]] = ()
    when: str = When.ALL_SUCCEEDED
    required: bool = True
    retry: Retry | None = None
    timeout: Duration = "1h"
    start_by: Duration | None = None
    lease: Duration | None = None
    queue: str = "default"
    interrupt: Interrupt = "raise"

    @classmethod
    def of(cls, given: Mapping[str, Any], workflow: str) -> TaskOptions:
        """Return the options that were given. Raises `DefinitionError` for a name that is none."""
        names = [field.name for field in fields(cls)]
        if unknown := [name for name in given if name not in names]:
            near = did_you_mean(unknown[0], names)
            raise DefinitionError(
                f"workflow {workflow!r}: a task has no option {unknown[0]!r}{near}: use {', '.join(names)}"
            )
        return cls(**given)

    def before(self, what: str) -> Sequence[Task[..., Any]]:
        """Return the tasks that `after` names. Raises `DefinitionError` for anything else."""
        if isinstance(self.after, Task):
            return [self.after]
        if isinstance(self.after, list | tuple) and all(isinstance(task, Task) for task in self.after):
            return self.after
        raise DefinitionError(f"{what}: after={self.after!r} must be a task, or a list of tasks: give those themselves")

    def check(self, key: str, what: str) -> None:
        """Raise `DefinitionError` for a key, queue or interrupt that cannot be."""
        if not _KEY.fullmatch(key):
            raise DefinitionError(f"{what}: key must be 1-200 of A-Z, a-z, 0-9, '_', '.', ':', '-': give one with key=")
        if not _QUEUE.fullmatch(self.queue):
            raise DefinitionError(f"{what}: queue={self.queue!r} must be 1-63 of A-Z, a-z, 0-9, '_', '.', ':', '-'")
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise DefinitionError(f"{what}: retry={self.retry!r} must be a Retry: write retry=Retry(attempts=3)")
        if self.interrupt not in {"raise", "never"}:
            raise DefinitionError(f"{what}: interrupt={self.interrupt!r} must be 'raise' or 'never'")

    def limit(self, name: str, what: str) -> float:
        """Return a limit in time in seconds. Raises `DefinitionError` unless it is positive."""
        return positive(getattr(self, name), f"{what}: {name}")

    def limit_or_none(self, name: str, what: str) -> float | None:
        """Return a limit in time in seconds, or None where none is set. Raises `DefinitionError` below 100 ms."""
        if getattr(self, name) is None:
            return None
        if (limit := self.limit(name, what)) < _SHORTEST:
            raise DefinitionError(f"{what}: {name}={getattr(self, name)!r} is too short: give at least '100ms'")
        return limit

    def rule(self, what: str) -> When:
        """Return the rule that `when` names. Raises `DefinitionError` for none."""
        try:
            return When(self.when)
        except ValueError:
            near, rules = did_you_mean(self.when, When), ", ".join(When)
            raise DefinitionError(f"{what}: when={self.when!r} is no rule{near}: use {rules}") from None
