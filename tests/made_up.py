"""
Migrations that no release has, beside the real ones.

`python -m tests.made_up expand` (or `contract`) migrates the database at DATABASE_URL as a later release might.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge import db, migrations, models
from flowforge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULE = '''"""Made up."""

from flowforge.migrations.steps import {step}

OLDEST_RELEASE = "{oldest}"
atomic = {atomic}


def up(migrator, db):
    {step}(db, __file__)
'''

_TABLE = "create table flowforge.made_up (id uuid primary key, task_run_id uuid references flowforge.task_run);"
_CHECK = "alter table flowforge.task_run add constraint made_up_not_blank check (made_up <> '') not valid;"
_INDEX = "create index concurrently if not exists idx_made_up on flowforge.task_run (made_up);"


def write(directory: Path, name: str, sql: str, *, oldest: str = "0.1.0", step: str = "run_sql") -> None:
    """Write a migration that runs the SQL; `step` is a function of flowforge.migrations.steps."""
    module = _MODULE.format(step=step, oldest=oldest, atomic=step == "run_sql")
    (directory / f"{name}.py").write_text(module, encoding="utf-8")
    (directory / f"{name}.sql").write_text(sql, encoding="utf-8")


def copy(directory: Path) -> Path:
    """Copy the real migrations into the directory; return it."""
    for file in migrations.DIRECTORY.glob("[0-9]*"):
        shutil.copy(file, directory)
    return directory


def expand(directory: Path) -> None:
    """Write what old processes can run on: a column for every table, a table, a constraint, and an index."""
    for number, model in enumerate(models.MODELS, 9001):
        table = model._meta.table_name
        write(directory, f"{number}_{table}", f"alter table flowforge.{table} add made_up text;")
    write(directory, "9101_table", _TABLE)
    write(directory, "9102_check", _CHECK)
    write(directory, "9103_index", _INDEX, step="build_index")
    write(directory, "9104_valid", "alter table flowforge.task_run validate constraint made_up_not_blank;")


def contract(directory: Path) -> None:
    """Write what no process of today can run on, and must not be told that it can: a column is gone."""
    write(directory, "9001_contract", "alter table flowforge.task_run drop deferred_because;", oldest="9.0.0")


def main(change: Callable[[Path], None]) -> None:
    """Apply the real migrations and the change to the database at DATABASE_URL; write the names of what was due."""
    with tempfile.TemporaryDirectory() as directory, closing(db.open_database(Settings.from_env())) as database:
        change(copy(Path(directory)))
        sys.stdout.write(" ".join(migrations.migrate(database, Path(directory))))


if __name__ == "__main__":
    main({"expand": expand, "contract": contract}[sys.argv[1]])
