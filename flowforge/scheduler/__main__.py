"""
One scheduler process. SIGTERM lets the present turns be the last.

Exit code 0 after that, 70 when a thread is dead or a duty stuck, 2 when it cannot start.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading

import redis

from flowforge.errors import FlowForgeError
from flowforge.scheduler.build import build
from flowforge.settings import Settings, arm_faults
from flowforge.watch import Watch, expect_start

logger = logging.getLogger("flowforge.scheduler")

RET_OK = 0
RET_CANNOT_START = 2


def main() -> int:
    """Run the duties until told to stop; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    expect_start()
    try:
        arm_faults()
        scheduler = build(Settings.from_env())
    except (FlowForgeError, redis.RedisError) as error:
        logger.critical("scheduler.cannot_start error=%s", error)
        return RET_CANNOT_START
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    scheduler.start()
    Watch(scheduler.parts).until(told)
    scheduler.stop()
    return RET_OK


if __name__ == "__main__":
    sys.exit(main())
