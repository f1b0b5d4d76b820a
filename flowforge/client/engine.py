"""The process's one engine: its settings, its database, and its line to the publishers."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import peewee
import psycopg2

from flowforge import db, migrations
from flowforge.broker import Runway, connect_redis
from flowforge.once import once
from flowforge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID


@dataclass
class Engine:
    """What every call of this process goes through."""

    settings: Settings
    database: db.Database
    #: (organization, workflow name, digest) -> id of the stored version, which never changes.
    versions: dict[tuple[UUID, str, str], UUID] = field(default_factory=dict)

    @once
    def runway(self) -> Runway | None:
        """The runway, or None where REDIS_URL is unset: publishers then find a start by themselves."""
        return Runway(connect_redis(self.settings), self.settings.namespace) if self.settings.redis_url else None

    def wake(self, word: bytes) -> None:
        """Tell a publisher that something is due."""
        if self.runway:
            self.runway.wake(word)


@contextmanager
def migrated() -> Iterator[None]:
    """Run a block that reads tables; where those are missing, say by `SchemaMismatch` what is to be done."""
    try:
        yield
    except (peewee.ProgrammingError, psycopg2.ProgrammingError):
        migrations.check(engine().database)
        raise


_lock = threading.Lock()
_engine: Engine | None = None

# A forked child goes on with its parent's engine: the database has dropped the parent's connections by itself, and so
# does redis-py. No fork happens while another thread makes the engine.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def configure(settings: Settings) -> Engine:
    """Use these settings in this process, in place of the environment's."""
    global _engine  # noqa: PLW0603 - one engine for each process is the point
    with _lock:
        _engine = Engine(settings, db.connect(settings))
        return _engine


@contextmanager
def configured(settings: Settings) -> Iterator[Engine]:
    """Use these settings within the block, and after it what was used before."""
    global _engine  # noqa: PLW0603 - as above
    before, bound = _engine, db.proxy.obj
    try:
        yield configure(settings)
    finally:
        with _lock:
            _engine = before
            db.proxy.initialize(bound)


def settings() -> Settings:
    """Return what this process was configured with, or what its environment says; no database is looked for."""
    return _engine.settings if _engine else Settings.from_env()


def engine() -> Engine:
    """Return the process's engine; the first call reads the environment. Raises `SettingsError`."""
    return _engine or configure(Settings.from_env())
