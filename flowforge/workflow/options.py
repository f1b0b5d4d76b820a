"""The options of one task, checked where the task is defined."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowforge.errors import DefinitionError, did_you_mean
from flowforge.states import When
from flowforge.workflow.retry import seconds
from flowforge.workflow.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.workflow.retry import Duration, Retry
    from flowforge.workflow.task import Interrupt

_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_QUEUE = re.compile(r"[A-Za-z0-9_.:-]{1,63}")


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
    queue: str = "default"
    interrupt: Interrupt = "raise"

    @property
    def before(self) -> Sequence[Task[..., Any]]:
        """The tasks that `after` names, as a sequence."""
        return [self.after] if isinstance(self.after, Task) else self.after

    def check(self, key: str, what: str) -> None:
        """Raise `DefinitionError` for a key, queue or interrupt that cannot be."""
        if not _KEY.fullmatch(key):
            raise DefinitionError(f"{what}: key must be 1-200 of A-Z, a-z, 0-9, '_', '.', ':', '-': give one with key=")
        if not _QUEUE.fullmatch(self.queue):
            raise DefinitionError(f"{what}: queue={self.queue!r} must be 1-63 of A-Z, a-z, 0-9, '_', '.', ':', '-'")
        if self.interrupt not in {"raise", "never"}:
            raise DefinitionError(f"{what}: interrupt={self.interrupt!r} must be 'raise' or 'never'")

    def limit(self, what: str) -> float:
        """Return the timeout in seconds. Raises `DefinitionError` unless it is positive."""
        limit = seconds(self.timeout, f"{what}: timeout")
        if limit <= 0:
            raise DefinitionError(f"{what}: timeout={self.timeout!r} must be positive")
        return limit

    def rule(self, what: str) -> When:
        """Return the rule that `when` names. Raises `DefinitionError` for none."""
        try:
            return When(self.when)
        except ValueError:
            near, rules = did_you_mean(self.when, When), ", ".join(When)
            raise DefinitionError(f"{what}: when={self.when!r} is no rule{near}: use {rules}") from None
