"""
Migrations: `NNNN_name.py` with its SQL beside this file, run by playhouse.migrations.

Each names the oldest release whose processes can run on its result. The database keeps that, because older processes,
which do not have the migration's file, decide by it whether they may go on.
"""

from __future__ import annotations

import math
import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.errors import SchemaMismatch
from flowforge.migrations.runner import Runner

if TYPE_CHECKING:
    from flowforge.db import Database

#: Where this release's migrations are.
DIRECTORY = Path(__file__).parent


def migrate(database: Database, directory: Path = DIRECTORY) -> list[str]:
    """
    Apply the migrations that are due; return the names of those that were due when it began.

    Raises `SchemaMismatch` when the database is beyond this release.
    """
    runner = Runner(database, directory)
    with database.limited(math.inf):  # another may be migrating, and tables may be large
        _refuse_beyond(runner)
        return runner.run()


def pending(database: Database, directory: Path = DIRECTORY) -> list[str]:
    """Return the names of this release's migrations that the database lacks."""
    return _lacking(Runner(database, directory))


def check(database: Database, directory: Path = DIRECTORY) -> None:
    """
    Raise `SchemaMismatch` when the database lacks a migration of this release, or is beyond it.

    It is beyond this release when a migration that we do not know says that it needs a newer one. All other migrations
    that we do not know are accepted: a newer release has been migrated to, and we are to work until it takes over.
    """
    runner = Runner(database, directory)
    _refuse_beyond(runner)
    if missing := _lacking(runner):
        raise SchemaMismatch(f"the database lacks {', '.join(missing)}: run `flowforge migrate`")


def oldest_release(database: Database) -> str:
    """Return the oldest release whose processes can run on the database, which is migrated."""
    return max(Runner(database, DIRECTORY).history().values(), key=_numbers)


def _lacking(runner: Runner) -> list[str]:
    applied = runner.history()
    return [one.name for one in runner.migrations() if one.name not in applied]


def _refuse_beyond(runner: Runner) -> None:
    known = {one.name for one in runner.migrations()}
    unknown = {name: needed for name, needed in runner.history().items() if name not in known}
    if not unknown:
        return
    ours, needed = _release(), max(unknown.values(), key=_numbers)
    if _numbers(needed) > _numbers(ours):
        raise SchemaMismatch(
            f"this process is FlowForge {ours}; the database needs at least {needed}: deploy {needed} first"
        )


def _release() -> str:
    """Return the release that this process is. Raises `SchemaMismatch` where nothing says it."""
    try:
        return metadata.version("flowforge")
    except metadata.PackageNotFoundError:
        raise SchemaMismatch(
            "the database holds migrations that this process does not know, and whether it may run with them cannot be "
            "told, because flowforge is not installed: `pip install` it, instead of importing its source"
        ) from None


def _numbers(release: str) -> tuple[int, ...]:
    """Return what releases are compared by: 0.2.0rc1 counts as 0.2.0."""
    numbers = re.match(r"\d+(\.\d+)*", release)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else ()
