"""
One worker process: Dramatiq's Worker on FlowForge's broker, in this very process.

SIGTERM stops the intake at once; what runs may end within the grace. Exit code 0 after an orderly stop, 75 when the
process asked to be replaced, 70 when a thread of the engine's or Dramatiq's is dead or stuck, 2 when it cannot start,
1 when user code lets no other thread run, or its import does not end.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import dramatiq
import redis

from flowforge import watch
from flowforge.actors.boot import boot
from flowforge.errors import FlowForgeError
from flowforge.settings import Settings

if TYPE_CHECKING:
    from flowforge.actors.boot import EngineMiddleware

logger = logging.getLogger("flowforge.actors")

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_LAST_LOOK = 1000  # milliseconds that Dramatiq waits for its threads once they should be idle
_LEFT = 2.0  # seconds that threads may take to end which keep the process, and are not the engine's

RET_OK = 0
RET_CANNOT_START = 2  # settings, servers, or the user's modules
RET_REPLACE_ME = 75  # EX_TEMPFAIL: a thread is lost, a new process will do


def main() -> int:
    """Boot, work until told to stop, drain; return the exit code."""
    _log()
    watch.expect_start()
    try:
        settings = Settings.from_env()
        broker, engine = boot(settings)
    except (FlowForgeError, redis.RedisError) as error:
        logger.critical("worker.cannot_start error=%s", error)
        return RET_CANNOT_START
    told = _listen()  # not before: nothing is held yet, and an import that hangs would not hear of it
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=settings.threads, worker_timeout=500)
    worker.start()
    engine.watch.until(told)
    code = _stop(worker, engine, settings)
    _see_off(code)
    return code


def _log() -> None:
    """Log to stderr; the engine through a handler of its own, whose lock no user code can leave held."""
    logging.basicConfig(level=logging.INFO, format=_FORMAT)
    own = logging.StreamHandler()
    own.setFormatter(logging.Formatter(_FORMAT))
    for name in ("actors", "broker", "db", "faults", "loop", "transitions", "watch"):
        logging.getLogger(f"flowforge.{name}").addHandler(own)
        logging.getLogger(f"flowforge.{name}").propagate = False


def _listen() -> threading.Event:
    """Return what SIGTERM and SIGINT set. A second signal ends the process at once, without a word to anyone."""
    told = threading.Event()

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001
        signal.signal(number, signal.SIG_DFL)
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return told


def _stop(worker: dramatiq.Worker, engine: EngineMiddleware, settings: Settings) -> int:
    """Drain within the grace. A lost thread is not waited for; what it holds might make an orderly exit hang."""
    runtime = engine.runtime
    assert runtime is not None
    runtime.drain()
    runtime.holding.wait_idle(lost=runtime.lost_threads, seconds=settings.grace)
    runtime.close()
    if runtime.retired:
        os._exit(RET_REPLACE_ME)
    worker.stop(timeout=_LAST_LOOK)
    worker.broker.close()
    return RET_OK


def _see_off(code: int) -> None:
    """End this process soon even if it waits for threads that user code has left."""

    def leave() -> None:
        logger.warning("worker.threads_left threads=%s", ",".join(one.name for one in threading.enumerate()))
        os._exit(code)

    timer = threading.Timer(_LEFT, leave)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
