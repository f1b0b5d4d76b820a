"""What a task may know of its attempt and tell about it: a parameter annotated `Context` receives it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID


class Hooks(Protocol):
    """What the process that runs the attempt does for its context."""

    def cancelled(self, context: Context) -> bool:
        """Whether the attempt should stop."""

    def progress(self, context: Context, done: float, total: float | None, note: str) -> None:
        """Show how far the attempt is."""

    def guard(self, context: Context, connection: Any) -> None:
        """Lock the task run in the connection's transaction, or raise `LeaseLost`."""

    async def guard_async(self, context: Context, connection: Any) -> None:
        """Lock the task run like `guard`, on an asynchronous connection."""


@dataclass(frozen=True)
class Context:
    """One attempt of a task run."""

    run_id: UUID
    task_run_id: UUID
    organization_id: UUID
    workflow: str
    key: str
    attempt: int
    token: int
    hooks: Hooks = field(repr=False, compare=False)
    #: The slot that a trigger fired, or None.
    slot: datetime | None = None

    @property
    def idempotency_key(self) -> str:
        """A key for calls to other services: the same in every attempt of this task run."""
        return f"{self.run_id}/{self.key}"

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop: it was cancelled, ran out of time, or lost its lease."""
        return self.hooks.cancelled(self)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the attempt's ids."""
        ids = {"run_id": str(self.run_id), "task_run_id": str(self.task_run_id), "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger(f"flowforge.task.{self.workflow}.{self.key}"), ids)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Show how far this attempt is, in any unit; kept in Redis, for whoever watches."""
        self.hooks.progress(self, done, total, note)

    def guard(self, connection: Any) -> None:
        """
        Lock this task run in the connection's open transaction, so that nobody else may take it until that ends.

        The connection is of psycopg2, psycopg, SQLAlchemy, Django or Peewee, to FlowForge's database. Raises
        `LeaseLost` when another worker owns it: roll back then, and write nothing. Raises `OptionError` outside a
        transaction, because a lock that is given up at once fences nothing.
        """
        self.hooks.guard(self, connection)

    async def guard_async(self, connection: Any) -> None:
        """Lock this task run like `guard`, on a connection of psycopg, SQLAlchemy or asyncpg that is asynchronous."""
        await self.hooks.guard_async(self, connection)
