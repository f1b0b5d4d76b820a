"""The Dramatiq broker over the runway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dramatiq.brokers.redis import RedisBroker

from flowforge.broker.own_actors import InHand, OwnActorsConsumer, without_keys
from flowforge.broker.runway import Runway

if TYPE_CHECKING:
    from collections.abc import Callable

    import dramatiq
    import redis

#: The one Dramatiq queue that carries every dispatch, whatever FlowForge queue it comes from.
DISPATCH = "flowforge"


class Broker(RedisBroker):
    """
    Dramatiq's RedisBroker, with one queue more: `DISPATCH`, whose consumer pops from the runway.

    Users' own actors keep what they have on a RedisBroker, default middleware included.
    """

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        super().__init__(client=client, namespace=f"{namespace}:dramatiq")
        self.scripts["dispatch"] = client.register_script(without_keys(self.scripts["dispatch"].script))
        self.in_hand = InHand()
        self.runway = Runway(client, namespace)
        self._dispatch_consumer: Callable[[int], dramatiq.Consumer] | None = None

    @property
    def consumer_class(self) -> type[OwnActorsConsumer]:
        """The class that RedisBroker makes its consumers of."""
        return OwnActorsConsumer

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
