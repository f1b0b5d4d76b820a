"""Wiring of the scheduler process."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from flowforge import db, migrations
from flowforge.broker import Runway, check_server, connect_redis
from flowforge.errors import refuse_windows
from flowforge.monitor import Turns
from flowforge.scheduler.duties import JOBS, Post, take_turn
from flowforge.scheduler.publishing import PublishingLoop

if TYPE_CHECKING:
    from flowforge.db import Database
    from flowforge.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scheduler:
    """A scheduler and its publishing loop."""

    duties: BackgroundScheduler
    publishing: PublishingLoop

    def start(self) -> None:
        """Begin all turns."""
        self.publishing.loop.start()
        self.duties.start()
        logger.info("scheduler.ready duties=%d", len(JOBS))

    def stop(self) -> None:
        """Let the present turns be the last."""
        self.duties.shutdown(wait=True)
        self.publishing.loop.stop(timeout=10)


def build(settings: Settings, database: Database | None = None) -> Scheduler:
    """
    Make a scheduler, not yet started, on the process's database if it has one already.

    Raises `UnsupportedPlatform`, `SettingsError`, `IncompatibleServer` or `SchemaMismatch`.
    """
    refuse_windows("a scheduler")
    settings.require("database_url", "redis_url")
    database = db.connect(settings, name="flowforge-scheduler") if database is None else database
    migrations.check(database)
    redis = connect_redis(settings)
    check_server(redis)
    runway, turns = Runway(redis, settings.namespace), Turns(redis, settings.namespace)
    duties = BackgroundScheduler(
        job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        executors={
            "default": ThreadPoolExecutor(len(JOBS))
        },  # a duty runs once at a time, and a thread has a connection
    )
    for job in JOBS:
        turn = functools.partial(take_turn, job, Post(database, runway), turns)
        duties.add_job(turn, "interval", seconds=job.every, id=job.name)
    return Scheduler(duties, PublishingLoop(database, runway, turns, limit=settings.runway))
