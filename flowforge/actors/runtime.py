"""What a worker process consists of, wired once."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from flowforge import client
from flowforge.actors import ledger
from flowforge.actors.committer import Committer
from flowforge.actors.holding import Holding
from flowforge.actors.keeper import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.actors.holding import Attempt
    from flowforge.actors.registry import Registry
    from flowforge.broker import Runway
    from flowforge.db import Database
    from flowforge.settings import Settings
    from flowforge.workflow import Context

logger = logging.getLogger(__name__)

_STOP_AFTER = 0.9  # of a lease that is not renewed, so that the attempt stops before it ends
_LAST_OUTCOMES = 3.0  # seconds that a stopping process tries to commit what is left


def owner_name() -> str:
    """Return this process's name in leases: host and pid for people, and a random part, because those two come back."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}:{uuid4().hex[:12]}"


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class Runtime:
    """One worker process."""

    settings: Settings
    database: Database
    runway: Runway
    registry: Registry
    queues: tuple[str, ...]
    threads: int
    owner: str = field(default_factory=owner_name)
    #: Threads that user code does not give back.
    lost_threads: int = 0
    #: Whether this process is to be replaced.
    retired: bool = False
    #: Whether its own threads were stopped.
    closed: bool = False
    #: How it is told to end then.
    end_process: Callable[[], None] = _terminate

    def __post_init__(self) -> None:
        """Make the parts that refer to this process."""
        self.ledgers = ledger.directory(self.settings.namespace, self.settings.database_url)
        self.holding = Holding(self.threads, ledger.Ledger(self.ledgers, self.owner))
        self.committer = Committer(self)
        self.keeper = Keeper(self)

    def start(self) -> None:
        """Start the engine's own threads."""
        self.committer.loop.start()
        self.keeper.loop.start()

    def drain(self) -> None:
        """Take nothing more in, and give back what has not started."""
        self.holding.close()
        self.committer.hand_back(self.holding.withdraw())

    def close(self) -> None:
        """Give back what still runs, commit what is left, and stop the engine's threads; the grace is over."""
        if self.closed:
            return
        self.closed = True
        self.drain()
        left = [attempt for attempt in self.holding.running() if self.holding.end(attempt)]
        for attempt in left:
            attempt.stopping = True
            logger.warning("task_run.handed_back task_run=%s task=%s", attempt.claim.id, attempt.task.key)
        self.committer.hand_back(left)
        until = time.monotonic() + _LAST_OUTCOMES
        self.keeper.loop.stop(timeout=until - time.monotonic())
        self.committer.loop.stop(timeout=max(until - time.monotonic(), 0))
        while len(self.holding) and time.monotonic() < until:
            self.committer.turn()
        self.holding.ledger.close()

    def retire(self, reason: str) -> None:
        """Have this process drain and end, so that its supervisor replaces it."""
        logger.error("worker.retired reason=%s", reason)
        if not self.retired:
            self.retired = True
            self.end_process()

    def hooks(self, attempt: Attempt) -> AttemptHooks:
        """Return what an attempt's context can do."""
        return AttemptHooks(self, attempt)


@dataclass(frozen=True)
class AttemptHooks:
    """The context's line to this process."""

    runtime: Runtime
    attempt: Attempt

    def cancelled(self, context: Context) -> bool:  # noqa: ARG002 - the attempt knows
        """Whether the attempt should stop: it was told to, or its lease may be over, because nothing renews it."""
        left_alone = time.monotonic() - self.attempt.renewed_at
        return self.attempt.stopping or left_alone > _STOP_AFTER * self.attempt.lease

    def progress(self, context: Context, done: float, total: float | None, note: str) -> None:
        """Show how far the attempt is to whoever watches."""
        self.runtime.runway.tell_progress(context.task_run_id, done, total, note)

    def guard(self, context: Context, connection: Any) -> None:
        """Lock the task run in the user's transaction."""
        client.guard(connection, context.task_run_id, context.token)

    async def guard_async(self, context: Context, connection: Any) -> None:
        """Lock the task run in the user's transaction, on an asynchronous connection."""
        await client.guard_async(connection, context.task_run_id, context.token)
