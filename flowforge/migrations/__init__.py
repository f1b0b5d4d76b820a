"""
Migrations, run by playhouse.migrations: `NNNN_name.py` beside this file, each in one transaction.

Every migration takes the same transaction-scoped advisory lock and then looks again whether it is still due, so that
two processes at once, also through a transaction pooler, apply each one exactly once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from playhouse.migrations import Runner

from flowforge.errors import SchemaMismatch

if TYPE_CHECKING:
    from flowforge.db import Database

_SCHEMA = "flowforge"
_LOCK = 0x666C6F77  # "flow"


class _LockedRunner(Runner):  # type: ignore[misc]
    """Runner whose every step holds the lock."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, str(Path(__file__).parent), schema=_SCHEMA)

    def prepare(self) -> None:
        """Make the schema and the history table, which Runner expects to be there."""
        with self.database.atomic():
            self._lock()
            self.database.execute_sql(f"create schema if not exists {_SCHEMA}")
            self.History.create_table()

    def _lock(self) -> None:
        self.database.execute_sql("select pg_advisory_xact_lock(%s)", (_LOCK,))

    def _run(self, name: str, module: Any, direction: str, fake: bool = False) -> None:  # noqa: FBT001, FBT002 - Runner's signature
        with self.database.atomic():
            self._lock()
            applied = self.History.select().where(self.History.name == name).exists()
            if applied != (direction == "up"):
                super()._run(name, module, direction, fake)


def migrate(database: Database) -> list[str]:
    """Apply the migrations that are due; return the names of those that were due when it began."""
    runner = _LockedRunner(database)
    runner.prepare()
    return list(runner.up())


def pending(database: Database) -> list[str]:
    """Return the names of the migrations that the database lacks."""
    return [migration.name for migration in _LockedRunner(database).status() if migration.applied is None]


def check(database: Database) -> None:
    """Raise `SchemaMismatch` when the database lacks a migration of this release."""
    if missing := pending(database):
        raise SchemaMismatch(f"the database lacks {', '.join(missing)}: run `flowforge migrate`")
