"""A workflow of two tasks, and what its starts have written."""

# Annotations are read at run time here, as in every module that defines tasks.
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from flowforge import Run, Workflow, models, transitions
from flowforge.states import TaskState
from tests import factories

if TYPE_CHECKING:
    from flowforge.db import Database

DAY = date(2026, 11, 29)


@dataclass(frozen=True)
class Sales:
    day: date
    region: str = "eu"


def extract(day: date) -> list[int]: ...


def transform(extract: list[int]) -> dict[str, int]: ...


def define(name: str = "daily-sales", *more: str) -> Workflow[...]:
    """Return a workflow of two tasks in a row, and of one for each further key."""
    sales = Workflow(name, Sales)
    sales.task(extract)
    sales.task(transform)
    for key in more:
        sales.task(extract, key=key)
    return sales


def rows(database: "Database") -> dict[str, int]:
    """Return the number of rows in each table of FlowForge's schema."""
    query = "select table_name from information_schema.tables where table_schema = 'flowforge'"
    tables = [name for (name,) in database.execute_sql(query)]
    return {name: count(database, f"flowforge.{name}") for name in tables}


def count(database: "Database", table: str) -> int:
    """Return the number of rows in a table."""
    (number,) = database.execute_sql(f"select count(*) from {table}").fetchone()
    return int(number)


def written(database: "Database", before: dict[str, int]) -> set[str]:
    """Return the tables whose rows are not as many as before; but a definition may stay, it is harmless."""
    changed = {table for table, number in rows(database).items() if number != before[table]}
    return changed - {"workflow", "task", "task_dependency"}


def end(database: "Database", run: Run, state: TaskState = TaskState.SUCCEEDED, **values: Any) -> None:
    """Claim and end the task runs of a run, one after another, as a worker would."""
    ready = (models.TaskRun.workflow_run == run.id) & (models.TaskRun.state == "ready")
    while row := models.TaskRun.get_or_none(ready):
        (claimed,) = factories.claim(database, row)
        database.perform(transitions.finish, [factories.outcome(claimed, state, **values)])
