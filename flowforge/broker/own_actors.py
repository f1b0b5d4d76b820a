"""How Dramatiq's RedisBroker consumes the queues of users' own actors, made to outlive what Redis does."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis
from dramatiq.brokers.redis import _RedisConsumer
from dramatiq.common import q_name
from dramatiq.errors import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dramatiq.broker import MessageProxy

#: With this, Dramatiq's script looks for what a dead worker has left in any queue, and forgets the worker if that is
#: nothing. KEYS walks the whole database, and managed servers refuse it.
_ANYTHING_LEFT = b'redis.call("keys", dead_worker_acks .. "*")'
#: Instead a worker is forgotten a week after its death: no message may be due later than that.
_DEAD_FOR_LESS = b'{redis.call("zscore", heartbeats, dead_worker) + dead_message_ttl > timestamp + 0 or nil}'


def without_keys(script: Any) -> bytes:
    """Return Dramatiq's script, which is bytes, without its use of KEYS."""
    return bytes(script).replace(_ANYTHING_LEFT, _DEAD_FOR_LESS)


class InHand:
    """What this process has fetched from the queues of users' own actors: ids in Redis, by queue."""

    def __init__(self) -> None:
        self.messages: dict[str, set[str]] = {}
        #: Queues whose consumer has ended: what it had fetched, and is not in hand, nobody will carry out.
        self.abandoned: set[str] = set()


class OwnActorsConsumer(_RedisConsumer):
    """
    Dramatiq's consumer of one queue.

    All that Redis may fail with is told to Dramatiq as a lost connection: after anything else it would not try an
    acknowledgement again, or the thread that consumes would end for good. And what a consumer before this one had
    fetched and not handed on is put back: in Redis it is this worker's, which lives, so that nobody else would.
    """

    def __init__(self, broker: Any, queue: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue, prefetch, timeout)
        self._in_hand = broker.in_hand.messages.setdefault(queue, set())
        if queue != q_name(queue):
            self._in_hand.clear()  # delayed messages are kept by the thread that consumes, which has begun anew
        if queue in broker.in_hand.abandoned:
            self._put_back()
            broker.in_hand.abandoned.discard(queue)

    def _put_back(self) -> None:
        acks = f"{self.broker.namespace}:__acks__.{self.broker.broker_id}.{self.queue_name}"
        with _told_as_lost():
            fetched = {id_.decode() for id_ in self.broker.client.smembers(acks)}
            if orphans := fetched - self._in_hand:
                self.broker.do_requeue(self.queue_name, *orphans)

    def __next__(self) -> MessageProxy | None:
        """Return the next message, or None after a while without any."""
        with _told_as_lost():
            message: MessageProxy | None = super().__next__()
        if message is not None:
            self._in_hand.add(message.options["redis_message_id"])
        return message

    def ack(self, message: MessageProxy) -> None:
        """Say that a message was processed."""
        with _told_as_lost():
            super().ack(message)
        self._in_hand.discard(message.options["redis_message_id"])

    def nack(self, message: MessageProxy) -> None:
        """Give a message up as dead."""
        with _told_as_lost():
            super().nack(message)
        self._in_hand.discard(message.options["redis_message_id"])

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Put messages back into their queue."""
        with _told_as_lost():
            super().requeue(messages)

    def close(self) -> None:
        """Leave the queue; the next consumer begins with what this one leaves behind."""
        self.broker.in_hand.abandoned.add(self.queue_name)


@contextmanager
def _told_as_lost() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise ConnectionClosed(error) from None
