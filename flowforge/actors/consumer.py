"""
Dramatiq's consumer of dispatches: pops as many as there is room for, hands out the attempts that were claimed.

That it goes on asking for them is watched: a worker that has stopped to, while Redis answers, is to be replaced.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import dramatiq
import redis
from dramatiq.broker import MessageProxy
from dramatiq.errors import ConnectionClosed

from flowforge import faults
from flowforge.broker import DISPATCH

if TYPE_CHECKING:
    from flowforge.actors.holding import Attempt
    from flowforge.actors.intake import Intake
    from flowforge.actors.runtime import Runtime

EXECUTE = "flowforge.execute"


class Fetching:
    """Whether this worker still fetches: a beat that stops when no fetch comes through although Redis answers."""

    def __init__(self, client: redis.Redis) -> None:
        """Ask `client` whether Redis answers: one for this alone, since the consumer's own may be what is broken."""
        self._client, self._count, self._seen, self._excuses = client, 0, -1, 0

    def came_through(self) -> None:
        """Count a fetch, with or without dispatches, and also that there was no room for one."""
        self._count += 1

    def beat(self) -> int:
        """Return what changes from look to look while this worker fetches, or cannot because Redis is away."""
        if self._count == self._seen and not self._answers():
            self._excuses += 1
        self._seen = self._count
        return self._count + self._excuses

    def _answers(self) -> bool:
        try:
            return bool(self._client.ping())
        except redis.RedisError:
            return False


class DispatchConsumer(dramatiq.Consumer):
    """Serves all of this worker's queues in turn. Redis is owed no acknowledgement: PostgreSQL knows who has what."""

    def __init__(self, runtime: Runtime, intake: Intake, fetching: Fetching, milliseconds: int) -> None:
        self._runtime, self._intake, self._fetching, self._seconds = runtime, intake, fetching, milliseconds / 1000
        self._queues = deque(runtime.queues)
        self._ready: deque[MessageProxy] = deque()

    def __next__(self) -> MessageProxy | None:
        """Return the next attempt as a message, or None after a while without any."""
        if not self._ready:
            self._refill()
        return self._ready.popleft() if self._ready else None

    def _refill(self) -> None:
        room = self._runtime.holding.room(self._seconds)
        if not room:
            self._fetching.came_through()
            return
        self._queues.rotate(-1)
        queue, popped = self._pop(room)
        if popped:
            faults.point("consume.popped")
        if popped and self._runtime.holding.closed:
            self._runtime.runway.push(queue, popped)
        elif popped:
            self._ready.extend(map(_message, self._intake.take_in(popped)))

    def _pop(self, room: int) -> tuple[str, list[bytes]]:
        try:
            popped = self._runtime.runway.pop(tuple(self._queues), limit=room, seconds=self._seconds)
        except redis.RedisError as error:
            if isinstance(error, redis.ResponseError) and not isinstance(error, redis.ReadOnlyError):
                self._fetching.came_through()  # to a server that refuses; another process would not fare better
            raise ConnectionClosed(error) from None
        self._fetching.came_through()
        return popped

    def ack(self, message: MessageProxy) -> None:
        """Do nothing: the outcome went to the committer."""

    def nack(self, message: MessageProxy) -> None:
        """Do nothing: the lease says what becomes of it."""


def _message(attempt: Attempt) -> MessageProxy:
    """Wrap an attempt for Dramatiq's threads; it never leaves this process, so it need not be encoded."""
    message: dramatiq.Message[Any] = dramatiq.Message(
        queue_name=DISPATCH,
        actor_name=EXECUTE,
        args=(attempt,),
        kwargs={},
        options={},
        message_id=str(attempt.claim.id),
        message_timestamp=0,
    )
    return MessageProxy(message)
