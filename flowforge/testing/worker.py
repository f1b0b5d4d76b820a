"""A worker and a scheduler in threads of this process, wired as their processes are."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import dramatiq

from flowforge import client
from flowforge.actors.boot import wire
from flowforge.actors.registry import Registry
from flowforge.scheduler import build

if TYPE_CHECKING:
    from flowforge.actors.runtime import Runtime
    from flowforge.workflow import Definition

_LOOK_EVERY = 50  # milliseconds between looks of Dramatiq's threads at whether they are to stop
_LAST_LOOK = 500  # milliseconds that it waits for its threads once they should be idle


class Worker:
    """
    Runs tasks in threads of this process, so that a breakpoint in them works.

    Its Dramatiq broker is its own: the process's global one, and the actors declared there, are not touched. A thread
    that user code does not give back, for which a worker process would have itself replaced, is left behind.
    """

    def __init__(self) -> None:
        self._running = ExitStack()

    def serve(self, *workflows: Definition[Any]) -> None:
        """Run the tasks of these workflows from now on, in place of those served so far, as after a deployment."""
        self.stop()
        registry, engine = Registry(workflows), client.engine()
        broker, middleware = wire(engine.settings)
        middleware.registry = registry
        worker = dramatiq.Worker(broker, worker_threads=engine.settings.threads, worker_timeout=_LOOK_EVERY)
        scheduler = build(engine.settings, engine.database)
        scheduler.start()
        self._running.callback(scheduler.stop)
        worker.start()
        runtime = middleware.runtime
        assert runtime is not None
        runtime.end_process = lambda: None
        self._running.callback(_stop, worker, runtime)

    def stop(self) -> None:
        """Take nothing more in, let what runs end within the grace of the settings, and hand back what has not."""
        self._running.close()


def _stop(worker: dramatiq.Worker, runtime: Runtime) -> None:
    runtime.drain()
    runtime.holding.wait_idle(lost=runtime.lost_threads, seconds=runtime.settings.grace)
    runtime.close()
    worker.stop(timeout=_LAST_LOOK)
    worker.broker.close()
