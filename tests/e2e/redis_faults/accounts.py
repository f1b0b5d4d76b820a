"""What was started, what became of it, and how often it was sent."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from peewee import SQL, fn

from flowforge.models import OutboxMessage, TaskRunEvent, WorkflowRun
from flowforge.transitions import Dispatch
from tests.e2e.redis_faults import errands
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis as redis_client

    from flowforge import Workflow
    from flowforge.client import Run

#: For a worker that is to run errands, and to keep what it has claimed even on a busy machine.
ERRANDS = {"FLOWFORGE_MODULES": "tests.e2e.redis_faults.errands", "FLOWFORGE_LEASE": "15"}
#: Seconds after the broker's return within which a lost dispatch is sent again.
PROMISED = 10.0

_SENT = re.compile(rb'\["([0-9a-f-]{36})", (\d+), ')
_BATCH = 1000


def start(number: int, workflow: Workflow[...] = errands.errand) -> list[Run]:
    """Start runs of one task."""
    prepared = (workflow.prepare() for _ in range(number))
    return workflow.start_many(prepared)


def states() -> dict[str, int]:
    """Count the runs of this test's database by their state."""
    query = WorkflowRun.select(WorkflowRun.state, fn.count(WorkflowRun.id)).group_by(WorkflowRun.state)
    return dict(query.tuples())


def claims() -> Counter[UUID]:
    """Count the claims of each task run, without those that were handed back because no thread became free in time."""
    return happened("claimed") - happened("handed_back")


def happened(kind: str) -> Counter[UUID]:
    """Count the events of a kind, by task run."""
    query = TaskRunEvent.select(TaskRunEvent.task_run).where(TaskRunEvent.kind == kind)
    return Counter(id_ for (id_,) in query.tuples())


def all_succeed(number: int, *, seconds: float = PROMISED, claimed: int = 1) -> None:
    """Wait until so many runs, which are all, have succeeded, each after so many claims."""
    wait_for(lambda: states() == {"succeeded": number}, seconds=seconds, every=0.1 + number / 50_000)
    times = Counter(claims().values())
    assert times == {claimed: number}, times


def listed(redis: redis_client.Redis, namespace: str, queue: str = "default") -> list[tuple[UUID, int]]:
    """Return the task run and token of each dispatch that waits in a queue's list."""
    members: list[bytes] = redis.lrange(f"{namespace}:dispatch:{queue}", 0, -1)  # type: ignore[assignment]
    return [(dispatch.task_run_id, dispatch.token) for dispatch in map(Dispatch.decode, members)]


def sent(heard: Iterable[bytearray]) -> Counter[tuple[UUID, int]]:
    """Count how often each task run was sent at each token, by what the senders were heard to say."""
    return Counter((UUID(id_.decode()), int(token)) for said in heard for id_, token in _SENT.findall(bytes(said)))


def published() -> int:
    """Return how many of the dispatches owed are marked as published."""
    return int(OutboxMessage.select().where(SQL("published_at is not null")).count())


def remaining(since: float, seconds: float = PROMISED) -> float:
    """Return what is left of so many seconds since a moment of the monotonic clock."""
    return max(since + seconds - time.monotonic(), 0.0)
