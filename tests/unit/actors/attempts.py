"""Attempts without a database: a claim that nobody made, and a task of a workflow that nobody stored."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from flowforge.actors.holding import Attempt
from flowforge.actors.ledger import Ledger
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
    claim = Claim(uuid4(), uuid4(), uuid4(), known.id, 1, 1, failures_left, "{}")
    return Attempt(claim, known, task, lease=known.stored.lease or Settings().lease)


class Unread(Ledger):
    """A ledger whose file nobody finds."""

    def __init__(self) -> None:
        where = Path(tempfile.mkdtemp())
        super().__init__(where, "owner")
        (where / "owner").unlink()
        where.rmdir()


def runtime(database: Any = None, **settings: Any) -> Runtime:
    """Return a worker process of one thread; connected to nothing, or to a double of the database."""
    nowhere: Any = None
    process = Runtime(Settings(namespace="unit", **settings), database, nowhere, Registry(()), ("default",), threads=1)
    process.holding.ledger.close()  # so that no file is left
    return process
