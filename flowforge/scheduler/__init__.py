"""
The scheduler process: APScheduler runs the table of duties, and a loop publishes.

Any number of schedulers may run at once: every duty is safe in all of them, so that none is the leader.
"""

from __future__ import annotations

from flowforge.scheduler.build import Scheduler, build

__all__ = ["Scheduler", "build"]
