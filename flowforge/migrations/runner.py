"""
Applies migrations one at a time, however many processes try, and keeps what each says of older releases.

A migration in a transaction holds the lock in that transaction. One that says `atomic = False`, because PostgreSQL
refuses its statement in a transaction, runs on this thread's connection while another connection holds the lock.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import peewee
import playhouse.migrations
from psycopg2.errors import DeadlockDetected, LockNotAvailable

from flowforge.db import load_statements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge.db import Database

logger = logging.getLogger(__name__)

SQL = load_statements("flowforge.migrations")

_POLL = 0.1  # seconds between two tries to get the lock
_PAUSE = 2.0  # seconds for the statements that waited behind ours, before it is tried again


class Runner(playhouse.migrations.Runner):  # type: ignore[misc]
    """The migrations of a directory, and the database's history of them."""

    def __init__(self, database: Database, directory: Path) -> None:
        super().__init__(database, str(directory), schema="flowforge")

        class History(self.History):  # type: ignore[name-defined,misc]
            oldest_release = peewee.CharField(max_length=20)

            class Meta:
                table_name = self.table_name

        self.History = History

    def history(self) -> dict[str, str]:
        """Return, for each migration that was applied, also by a newer release, the oldest release that it names."""
        if not self.History.table_exists():
            return {}
        return {row.name: row.oldest_release for row in self.History.select()}

    def run(self) -> list[str]:
        """Apply what is due; return its names."""
        self._prepare()
        applied = self.history()
        due = [(one.name, one.load()) for one in self.migrations() if one.name not in applied]
        for name, module in due:
            self._apply(name, module)
        return [name for name, _ in due]

    def _prepare(self) -> None:
        """Make the schema and the history table, which comes before any migration."""
        with _locked(self.database):
            self.database.execute_sql(SQL["create_schema"])
            self.History.create_table()

    def _apply(self, name: str, module: Any) -> None:
        """Apply a migration that another process has not applied by now; give way to whoever holds what it needs."""
        alone = _locked if getattr(module, "atomic", True) else _locked_elsewhere
        while True:
            try:
                with alone(self.database):
                    if name not in self.history():
                        module.up(self.migrator, self.database)
                        self.History.create(name=name, oldest_release=module.OLDEST_RELEASE)
            except (DeadlockDetected, LockNotAvailable) as error:
                logger.warning("migration.gives_way name=%s error=%s", name, str(error).strip())
                time.sleep(_PAUSE)
            else:
                return


@contextmanager
def _locked(database: Database) -> Iterator[None]:
    """
    Run the block in a transaction that holds the lock.

    In `read committed`, whatever the default is: so that it sees what was committed before it had the lock, and holds
    no snapshot while it is idle.
    """
    while True:
        with database.atomic("READ COMMITTED"):
            if database.execute_sql(SQL["try_lock"]).fetchone()[0]:
                database.execute_sql(SQL["give_way"])
                yield
                return
        time.sleep(_POLL)  # outside the transaction, which would keep one of a pooler's few sessions from the holder


@contextmanager
def _locked_elsewhere(database: Database) -> Iterator[None]:
    """Run the block outside a transaction, while one on another connection holds the lock."""
    with closing(type(database)(database.database, **database.connect_params)) as other, _locked(other):
        other.execute_sql(SQL["stay_open"])
        yield
