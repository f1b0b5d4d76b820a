"""Attempts without a database: a claim that nobody made, and a task of a workflow that nobody stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from flowforge.actors.holding import Attempt
from flowforge.actors.registry import Registry
from flowforge.actors.runtime import Runtime
from flowforge.insights import KnownTask
from flowforge.settings import Settings
from flowforge.transitions import Claim
from flowforge.workflow import Definition, StoredTask

if TYPE_CHECKING:
    from collections.abc import Callable


def nothing() -> None: ...


def attempt(function: Callable[..., Any] = nothing, *, failures_left: int = 0, **options: Any) -> Attempt:
    """Return a claimed attempt of a task of its own."""
    task = Definition[Any]("sales").task(function, key="only", **options)
    known = KnownTask(uuid4(), StoredTask.of(task), {})
    return Attempt(Claim(uuid4(), uuid4(), uuid4(), known.id, 1, 1, failures_left, "{}"), known, task)


def runtime(threads: int = 1) -> Runtime:
    """Return a worker process that is connected to nothing."""
    nowhere: Any = None
    return Runtime(Settings(), nowhere, nowhere, Registry(()), ("default",), threads)
