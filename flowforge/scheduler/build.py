"""Wiring of the scheduler process."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from flowforge import db, migrations
from flowforge.broker import Runway, check_server, connect_redis
from flowforge.errors import refuse_windows
from flowforge.monitor import Turns
from flowforge.scheduler.duties import JOBS, Job, Post, take_turn
from flowforge.scheduler.publishing import PublishingLoop
from flowforge.watch import Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flowforge.db import Database
    from flowforge.settings import Settings

logger = logging.getLogger(__name__)

_STATEMENTS = 10  # of a duty's turn that may all take as long as they may, before the turn counts as stuck


class Duties(BackgroundScheduler):  # type: ignore[misc]
    """APScheduler, whose thread is to be seen by those who watch, and which goes on when this machine's clock steps."""

    @property
    def thread(self) -> threading.Thread | None:
        """The thread that says when a duty's turn is."""
        return self._thread  # type: ignore[no-any-return]

    def _process_jobs(self) -> Any:
        """Let be due now what is further off than its interval: a clock was set back, by which APScheduler sleeps."""
        for job in self.get_jobs():
            now = datetime.now(job.next_run_time.tzinfo)
            if job.next_run_time > now + job.trigger.interval:
                job.modify(next_run_time=now)
        return super()._process_jobs()


@dataclass
class Duty:
    """A duty of this process: its turns, and when the last of them ended."""

    job: Job
    post: Post
    turns: Turns
    beat: float = field(default_factory=time.monotonic)
    #: The thread of the present turn.
    thread: threading.Thread | None = None

    def take_turn(self) -> None:
        """Take a turn."""
        self.thread = threading.current_thread()
        try:
            take_turn(self.job, self.post, self.turns)
        finally:
            self.thread, self.beat = None, time.monotonic()

    def part(self) -> Part:
        """Return what is watched: while a turn does not end there is no other, in this process."""
        limit = self.job.every + _STATEMENTS * self.job.limit
        return Part(f"duty-{self.job.name}", self.thread, self.beat, limit)


@dataclass(frozen=True)
class Scheduler:
    """A scheduler and its publishing loop."""

    duties: Duties
    publishing: PublishingLoop
    each: Sequence[Duty]

    def start(self) -> None:
        """Begin all turns."""
        self.publishing.loop.start()
        self.duties.start()
        logger.info("scheduler.ready duties=%d", len(JOBS))

    def parts(self) -> Iterator[Part]:
        """Yield what must live, and what must go on, once this has started."""
        yield Part.of(self.publishing.loop)
        yield from map(Part.of, db.loops())
        yield Part("apscheduler", self.duties.thread)
        yield from (duty.part() for duty in self.each)

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
    duties = Duties(
        job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        executors={
            "default": ThreadPoolExecutor(len(JOBS))
        },  # a duty runs once at a time, and a thread has a connection
    )
    each = [Duty(job, Post(database, runway, settings.cancel_grace), turns) for job in JOBS]
    for duty in each:
        duties.add_job(duty.take_turn, "interval", seconds=duty.job.every, id=duty.job.name)
    return Scheduler(duties, PublishingLoop(database, runway, turns, limit=settings.runway), each)
