"""
Redis as FlowForge uses it: the runway of dispatches, the wake list, and the Dramatiq broker over them.

It knows names, not functions. Everything in it may be lost at any time: PostgreSQL knows what is owed.

Keys, under the namespace: `dispatch:<queue>` a list of encoded dispatches; `wake` a list that a publisher blocks on;
`progress:<task run>` the last word of an attempt; `dramatiq:…` the users' own actors.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from dramatiq.brokers.redis import RedisBroker
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from flowforge.errors import IncompatibleServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    import dramatiq

    from flowforge.settings import Settings

logger = logging.getLogger(__name__)

#: The one Dramatiq queue that carries every dispatch, whatever FlowForge queue it comes from.
DISPATCH = "flowforge"

_WAKES_KEPT = 64
_PATIENCE, _SILENCE = 0.25, 1.0  # seconds: of a wake, and after one that failed
_PROGRESS_KEPT = 86_400  # seconds
_OLDEST_REDIS, _OLDEST_VALKEY = (7, 0), (7, 2)


def connect_redis(settings: Settings) -> redis.Redis:
    """Return a client of REDIS_URL whose commands end within seconds when the server is out of reach."""
    return redis.Redis.from_url(
        settings.require("redis_url").redis_url,
        socket_connect_timeout=3,
        socket_timeout=5,
        health_check_interval=15,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 2),
    )


def _impatient(client: redis.Redis) -> redis.Redis:
    """Return a client of the same server that gives up at once: nobody shall wait for what may be lost."""
    pool = client.connection_pool
    options = {**pool.connection_kwargs, "socket_connect_timeout": _PATIENCE, "socket_timeout": _PATIENCE}
    options["retry"] = Retry(NoBackoff(), 0)
    return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=pool.connection_class, **options))


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
        self._wake, self._waker, self._silent_until = f"{namespace}:wake", _impatient(client), 0.0

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


class Broker(RedisBroker):
    """
    Dramatiq's RedisBroker, with one queue more: `DISPATCH`, whose consumer pops from the runway.

    Users' own actors keep what they have on a RedisBroker, default middleware included.
    """

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        super().__init__(client=client, namespace=f"{namespace}:dramatiq")
        self.runway = Runway(client, namespace)
        self._dispatch_consumer: Callable[[int], dramatiq.Consumer] | None = None

    def consume_dispatches_with(self, consumer: Callable[[int], dramatiq.Consumer]) -> None:
        """Serve the dispatch queue with what `consumer(milliseconds to block)` returns."""
        self._dispatch_consumer = consumer
        self.declare_queue(DISPATCH)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> dramatiq.Consumer:
        """Return the consumer of a queue."""
        if queue_name == DISPATCH and self._dispatch_consumer:
            return self._dispatch_consumer(timeout)
        return super().consume(queue_name, prefetch, timeout)

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; dispatches have no delay queue, because their delays live in PostgreSQL."""
        if queue_name != DISPATCH:
            super().declare_queue(queue_name)
        elif queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)


def check_server(client: redis.Redis) -> str:
    """Return the server's name and version. Raises `IncompatibleServer` when it has no BLMPOP."""
    info: Any = client.info("server")
    name = "valkey" if "valkey_version" in info else "redis"
    version, oldest = info[f"{name}_version"], _OLDEST_VALKEY if name == "valkey" else _OLDEST_REDIS
    if _numbers(version) < oldest:
        raise IncompatibleServer(f"{name} {version} is too old: FlowForge needs Redis 7.0 or Valkey 7.2")
    return f"{name} {version}"


def _numbers(version: str) -> tuple[int, ...]:
    parts: Iterable[str] = version.split(".")[:2]
    return tuple(int(part) for part in parts)
