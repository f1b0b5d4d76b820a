"""Dramatiq's consumer of dispatches: pops as many as there is room for, hands out the attempts that were claimed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import dramatiq
import redis
from dramatiq.broker import MessageProxy
from dramatiq.errors import ConnectionClosed

from flowforge.broker import DISPATCH

if TYPE_CHECKING:
    from flowforge.actors.holding import Attempt
    from flowforge.actors.intake import Intake
    from flowforge.actors.runtime import Runtime

EXECUTE = "flowforge.execute"


class DispatchConsumer(dramatiq.Consumer):
    """Serves all of this worker's queues in turn. Redis is owed no acknowledgement: PostgreSQL knows who has what."""

    def __init__(self, runtime: Runtime, intake: Intake, milliseconds: int) -> None:
        self._runtime, self._intake, self._seconds = runtime, intake, milliseconds / 1000
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
            return
        self._queues.rotate(-1)
        queue, popped = self._pop(room)
        if popped and self._runtime.holding.closed:
            self._runtime.runway.push(queue, popped)
        elif popped:
            self._ready.extend(map(_message, self._intake.take_in(popped)))

    def _pop(self, room: int) -> tuple[str, list[bytes]]:
        try:
            return self._runtime.runway.pop(tuple(self._queues), limit=room, seconds=self._seconds)
        except redis.RedisError as error:
            raise ConnectionClosed(error) from None

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
