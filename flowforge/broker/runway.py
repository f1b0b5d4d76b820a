"""The runway of dispatches and the wake list in Redis. It knows names, not functions."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from flowforge.broker.clients import impatient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

logger = logging.getLogger(__name__)

_WAKES_KEPT = 64
_SILENCE = 1.0  # seconds after a wake that failed
_PROGRESS_KEPT = 86_400  # seconds


class Progress(NamedTuple):
    """How far an attempt is, in a unit of its own."""

    done: float
    total: float | None
    note: str


class Runway:
    """The lists of dispatches in Redis, one for each queue, and the wake list."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.client: Any = client  # redis-py types a reply as all that any command may answer
        self.namespace = namespace
        self._wake, self._waker, self._silent_until = f"{namespace}:wake", impatient(client), 0.0

    def key(self, queue: str) -> str:
        """Return the key of a queue's list."""
        return f"{self.namespace}:dispatch:{queue}"

    def length(self, queue: str) -> int:
        """Return how many dispatches of a queue wait."""
        return int(self.client.llen(self.key(queue)))

    def push(self, queue: str, dispatches: Sequence[bytes]) -> None:
        """Append dispatches, all or none."""
        self.client.rpush(self.key(queue), *dispatches)

    def pop(self, queues: Sequence[str], *, limit: int, seconds: float) -> tuple[str, list[bytes]]:
        """Take up to `limit` dispatches from the first of the queues that has any; wait up to `seconds` for one."""
        keys = {self.key(queue).encode(): queue for queue in queues}
        popped = self.client.blmpop(seconds, len(keys), *keys, direction="LEFT", count=limit)
        return (keys[popped[0]], list(popped[1])) if popped else ("", [])

    def members(self, queue: str) -> list[bytes]:
        """Return the dispatches of a queue that wait."""
        return list(self.client.lrange(self.key(queue), 0, -1))

    def tell_progress(self, task_run_id: UUID, done: float, total: float | None, note: str) -> None:
        """Keep the last word of an attempt for a day. Whoever watches may miss it, so that a failure is only logged."""
        word = json.dumps({"done": done, "total": total, "note": note})
        try:
            self._waker.set(self._progress(task_run_id), word, ex=_PROGRESS_KEPT)
        except redis.RedisError as error:
            logger.warning("runway.progress_lost error=%s", error)

    def progress(self, task_run_ids: Sequence[UUID]) -> dict[UUID, Progress]:
        """Return the last word of each of these task runs that has told any."""
        words = self.client.mget([self._progress(id_) for id_ in task_run_ids]) if task_run_ids else []
        told = zip(task_run_ids, words, strict=True)
        return {id_: Progress(**json.loads(word)) for id_, word in told if word}

    def _progress(self, task_run_id: UUID) -> str:
        return f"{self.namespace}:progress:{task_run_id}"

    def wake(self, word: bytes = b"now") -> None:
        """
        Tell a publisher that something may be due: `now`, or `soon` while the caller's transaction is still open.

        Without Redis the publisher finds it a little later by itself. So a failure is only logged, and for a second
        nobody tries again: the caller may hold a transaction open.
        """
        if time.monotonic() < self._silent_until:
            return
        try:
            with self._waker.pipeline(transaction=False) as pipe:
                pipe.rpush(self._wake, word)
                pipe.ltrim(self._wake, -_WAKES_KEPT, -1)
                pipe.execute()
        except redis.RedisError as error:
            self._silent_until = time.monotonic() + _SILENCE
            logger.warning("runway.wake_failed error=%s", error)

    def wait(self, seconds: float) -> list[bytes]:
        """Wait for a wake, at most `seconds`; return the words that were there."""
        popped = self.client.blmpop(seconds, 1, self._wake, direction="LEFT", count=_WAKES_KEPT)
        return list(popped[1]) if popped else []
