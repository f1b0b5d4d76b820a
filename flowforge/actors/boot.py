"""
Wiring of a worker process: settings in, a Dramatiq broker out whose middleware starts and stops the engine.

The middleware also says which threads are to be watched.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import dramatiq

from flowforge import client, db, migrations, watch
from flowforge.actors.consumer import EXECUTE, DispatchConsumer, Fetching
from flowforge.actors.execution import execute
from flowforge.actors.intake import Intake
from flowforge.actors.registry import Registry, load
from flowforge.actors.runtime import Runtime
from flowforge.broker import DISPATCH, Broker, check_server, connect_redis
from flowforge.errors import refuse_windows
from flowforge.settings import arm_faults
from flowforge.watch import Part, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.settings import Settings

logger = logging.getLogger(__name__)

_LONGEST_FETCH = 60.0  # seconds that a worker with free threads may not fetch although Redis answers


class EngineMiddleware(dramatiq.Middleware):
    """Starts the engine's threads with the worker's, and stops them around its shutdown."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = Registry(())
        self.runtime: Runtime | None = None
        self.watch = Watch(self._parts, self._hang)
        #: Whether a thread watches, because nobody does who has the main thread: Dramatiq's own command line.
        self.watched_by_thread = False
        self._worker: dramatiq.Worker | None = None
        self._fetching = Fetching(connect_redis(settings))
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._others: set[str] = set()  # messages of the users' own actors that occupy a thread

    def before_worker_boot(self, broker: Any, worker: dramatiq.Worker) -> None:
        """Make the runtime, for as many threads as the worker has; then serve the dispatch queue."""
        queues = self.settings.queues or tuple(self.registry.queues)
        database = client.engine().database
        self.runtime = Runtime(self.settings, database, broker.runway, self.registry, queues, worker.worker_threads)
        self.runtime.start()
        broker.consume_dispatches_with(self._consumer)
        logger.info(
            "worker.ready owner=%s queues=%s threads=%d", self.runtime.owner, ",".join(queues), worker.worker_threads
        )

    def _consumer(self, milliseconds: int) -> DispatchConsumer:
        assert self.runtime is not None
        return DispatchConsumer(self.runtime, Intake(self.runtime), self._fetching, milliseconds)

    def after_worker_boot(self, broker: Any, worker: dramatiq.Worker) -> None:  # noqa: ARG002
        """Have the threads watched that there are now."""
        self._worker = worker
        if self.watched_by_thread:
            self._watcher = self.watch.start(self._stopping)

    def _hang(self) -> float:
        """Return how long user code may keep the interpreter: longer than its lease, which nobody can renew then."""
        assert self.runtime is not None
        return max(watch.HANG, 2 * max((one.lease for one in self.runtime.holding.all()), default=0.0))

    def _parts(self) -> Iterator[Part]:
        """Yield what must live, and what must go on, in this process."""
        assert self.runtime is not None
        assert self._worker is not None
        yield Part.of(self.runtime.committer.loop)
        yield Part.of(self.runtime.keeper.loop)
        yield from map(Part.of, db.loops())
        for number, thread in enumerate(self._worker.workers):
            yield Part(f"dramatiq-worker-{number}", thread)
        for queue, consumer in tuple(self._worker.consumers.items()):
            fetching = (self._fetching.beat(), _LONGEST_FETCH) if queue == DISPATCH else ()
            yield Part(f"dramatiq-consumer-{queue}", consumer, *fetching)

    def before_process_message(self, broker: Any, message: Any) -> None:  # noqa: ARG002
        """Count a thread as taken by an actor of the user's own; attempts are counted when they are claimed."""
        if self.runtime and message.queue_name != DISPATCH:
            self._others.add(message.message_id)
            self.runtime.holding.occupy()

    def after_process_message(self, broker: Any, message: Any, **_: Any) -> None:  # noqa: ARG002
        """Count it as free again."""
        if self.runtime and message.message_id in self._others:
            self._others.discard(message.message_id)
            self.runtime.holding.vacate()

    def after_skip_message(self, broker: Any, message: Any) -> None:
        """Count it as free again: its actor was not called."""
        self.after_process_message(broker, message)

    def before_worker_shutdown(self, broker: Any, worker: dramatiq.Worker) -> None:  # noqa: ARG002
        """Watch no longer, stop taking in; what runs may end within the grace that Dramatiq waits."""
        self._stopping.set()
        if self._watcher:
            self._watcher.join()
        if self.runtime:
            self.runtime.drain()

    def after_worker_shutdown(self, broker: Any, worker: dramatiq.Worker) -> None:  # noqa: ARG002
        """Give back what is left."""
        if self.runtime:
            self.runtime.close()


def boot(settings: Settings) -> tuple[Broker, EngineMiddleware]:
    """
    Make FlowForge's broker Dramatiq's, and import the user's modules on it.

    Raises `UnsupportedPlatform`, `SettingsError`, `IncompatibleServer`, `SchemaMismatch`, `ForeignBroker`, or
    whatever an import raises.
    """
    refuse_windows("a worker")
    arm_faults()
    settings.require("database_url", "redis_url", "modules")
    migrations.check(client.configure(settings).database)
    broker, engine = wire(settings)
    dramatiq.set_broker(broker)
    engine.registry = load(settings.modules, broker)
    return broker, engine


def wire(settings: Settings) -> tuple[Broker, EngineMiddleware]:
    """Make a broker for this process's engine, which runs no user's actor yet. Raises `IncompatibleServer`."""
    redis = connect_redis(settings)
    check_server(redis)
    broker, engine = Broker(redis, settings.namespace), EngineMiddleware(settings)
    broker.add_middleware(engine)
    _declare_execute(broker, engine)
    return broker, engine


def _declare_execute(broker: Broker, engine: EngineMiddleware) -> None:
    """Declare the one actor. Its queue is declared when the worker boots: only then is there a runtime to serve."""

    def run(attempt: Any) -> None:
        assert engine.runtime is not None
        execute(engine.runtime, attempt)

    options = {"max_retries": 0, "time_limit": float("inf"), "notify_shutdown": False}
    actor = dramatiq.Actor(run, broker=broker, actor_name=EXECUTE, queue_name=DISPATCH, priority=0, options=options)
    broker.actors[EXECUTE] = actor
