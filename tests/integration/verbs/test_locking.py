"""The lock order, verb by verb: run rows by id, then task rows by id; who waits for one has locked none after it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg2
import pytest

from flowforge import models, transitions
from flowforge.states import TaskState
from flowforge.transitions import NewRun, Outcome, Release
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation
from tests.support import Racer, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.db import Database

READY, RUNNING, FAILED = TaskState.READY, TaskState.RUNNING, TaskState.FAILED
MANY = {f"task_{n}": Node(options={"attempts": 2}) for n in range(12)}

Call = tuple[TaskState, "Callable[[Any, list[Any], list[Any]], Any]"]

#: Verb -> the state of what it is called on, and the call on a connection, with task runs and their dispatches.
VERBS: dict[str, Call] = {
    "claim": (READY, lambda c, _, dispatches: transitions.claim(c, dispatches, owner="worker-1", lease=15)),
    "defer": (
        READY,
        lambda c, _, dispatches: transitions.defer(c, [(one, "no such task") for one in dispatches], delay=0),
    ),
    "give_up": (READY, lambda c, rows, _: transitions.give_up(c, outcomes(rows))),
    "finish": (RUNNING, lambda c, rows, _: transitions.finish(c, outcomes(rows))),
    "cut_off": (RUNNING, lambda c, rows, _: transitions.cut_off(c, outcomes(rows))),
    "retry": (RUNNING, lambda c, rows, _: transitions.retry(c, releases(rows))),
    "hand_back": (RUNNING, lambda c, rows, _: transitions.hand_back(c, releases(rows))),
    "hold": (RUNNING, lambda c, rows, _: transitions.hold(c, rows[0].workflow_run_id)),
    "cancel": (READY, lambda c, rows, _: transitions.cancel(c, rows[0].workflow_run_id, situation.DECISION)),
    "rerun": (FAILED, lambda c, rows, _: transitions.rerun(c, rows[0].workflow_run_id, situation.DECISION)),
}
#: Those that begin with the run rows; claim, because the runs have not begun.
OF_RUNS = ["claim", "give_up", "finish", "cut_off", "hold", "cancel", "rerun"]


def outcomes(rows: list[Any]) -> list[Outcome]:
    """Return how task runs ended."""
    return [situation.outcome(row, FAILED) for row in rows]


def releases(rows: list[Any]) -> list[Release]:
    """Return what gives task runs up."""
    return [Release(row.id, row.fencing_token) for row in rows]


def rows_in(database: Database, state: TaskState, runs: int = 1) -> list[Any]:
    """Return the task runs of some runs, in a state, the highest ids first: the order in which they are written."""
    workflow = factories.make_workflow(MANY)
    for number in range(runs, 0, -1):
        database.perform(transitions.start_run, [NewRun(UUID(int=number), workflow.id, "{}")])
    rows = list(models.TaskRun.select().order_by(models.TaskRun.id.desc()))
    for row in rows if state != READY else ():
        factories.claim(database, row)
    for row in rows if state == FAILED else ():
        database.perform(transitions.finish, [situation.outcome(factories.reload(row), FAILED)])
    return [factories.reload(row) for row in rows]


def locked_while_waiting(url: str, verb: str, rows: list[Any], first: Any, others: list[Any]) -> list[Any]:
    """Call a verb while another holds a row; return which of the others it has locked while it waits for that."""
    dispatches = [factories.dispatch(row) for row in rows]

    def call(connection: Any) -> Any:
        with connection.cursor() as cursor:  # as it is with other statistics: rows are found in the order of the table
            cursor.execute("set local enable_indexscan = off; set local enable_bitmapscan = off")
        return VERBS[verb][1](connection, rows, dispatches)

    caller = Racer(url, call)
    with situation.held_open(url, lambda connection: lock(connection, first)):
        caller.start()
        wait_for(lambda: situation.waiting(url) == 1)
        locked = [row.id for row in others if not is_free(url, row)]
    caller.roll_back()
    return locked


def lock(connection: Any, row: Any) -> None:
    """Lock a row as verbs do, or raise LockNotAvailable."""
    with connection.cursor() as cursor:
        table = f"flowforge.{row._meta.table_name}"
        cursor.execute(f"select from {table} where id = %s for no key update nowait", (row.id,))


def is_free(url: str, row: Any) -> bool:
    """Whether nobody has locked a row."""
    with closing(psycopg2.connect(url)) as connection:
        try:
            lock(connection, row)
        except psycopg2.errors.LockNotAvailable:
            return False
        return True


@pytest.mark.parametrize("verb", VERBS)
def test_task_runs_are_locked_by_id(database: Database, database_url: str, verb: str) -> None:
    """B084."""
    *others, first = rows_in(database, VERBS[verb][0])

    assert locked_while_waiting(database_url, verb, [*others, first], first, others) == []


@pytest.mark.parametrize("verb", OF_RUNS)
def test_a_run_is_locked_before_its_task_runs(database: Database, database_url: str, verb: str) -> None:
    """B084."""
    rows = rows_in(database, VERBS[verb][0])

    run = situation.run(rows[0].workflow_run_id)

    assert locked_while_waiting(database_url, verb, rows, run, rows) == []


@pytest.mark.parametrize("verb", ["claim", "give_up", "finish", "cut_off"])
def test_of_a_batch_over_several_runs_these_are_locked_by_id(database: Database, database_url: str, verb: str) -> None:
    """B084."""
    rows = rows_in(database, VERBS[verb][0], runs=4)
    first, *others = models.WorkflowRun.select().order_by(models.WorkflowRun.id)

    assert locked_while_waiting(database_url, verb, rows, first, others) == []
