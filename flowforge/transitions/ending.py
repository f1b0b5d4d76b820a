"""finish, skip, give_up and cut_off: how a task run ends, its dependents hear of it, and its run is counted down."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flowforge.db import begun, fetch, load_statements
from flowforge.states import TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

_SQL = load_statements("flowforge.transitions")


class Outcome(NamedTuple):
    """How an attempt ended; `result` and `error` are JSON text."""

    id: UUID
    run_id: UUID
    token: int
    state: TaskState
    result: str | None = None
    error: str | None = None


class Ending(NamedTuple):
    """
    What the statement made of a task run.

    `became` is `ended`, `ended before` (the caller's own commit, whose reply was lost), `refused` (not the caller's any
    more), or for a dependent `ready` or `unwanted` (its rule was not met).
    """

    id: UUID
    run_id: UUID
    token: int
    became: str


#: Seconds that an outcome waits for a lock, where its caller says nothing else.
PATIENCE = 2.0


def finish(
    connection: Connection, outcomes: Sequence[Outcome], *, overdue: bool = False, patience: float = PATIENCE
) -> list[Ending]:
    """
    End running task runs at their token, make their dependents ready or skipped, and end runs that are complete.

    With `overdue` only leases that are over are ended, and the token is taken from their owners: expire's last word.
    Of two outcomes for one task run and token the first counts. Raises psycopg2's LockNotAvailable, and changes
    nothing, when a lock is held by another for more than `patience` seconds.
    """
    with begun(connection):
        endings = _end(
            connection, outcomes, leaves=[TaskState.RUNNING], taken=overdue, overdue=overdue, patience=patience
        )
        return endings + skip(connection, [ending for ending in endings if ending.became == "unwanted"])


def skip(connection: Connection, unwanted: Sequence[Ending]) -> list[Ending]:
    """End pending task runs whose rule was not met, and in turn those dependents whose rule that decides."""
    endings: list[Ending] = []
    with begun(connection):
        while unwanted:
            outcomes = [Outcome(e.id, e.run_id, e.token, TaskState.SKIPPED) for e in unwanted]
            latest = _end(connection, outcomes, leaves=[TaskState.PENDING])
            unwanted = [ending for ending in latest if ending.became == "unwanted"]
            endings += latest
    return endings


def give_up(connection: Connection, unstarted: Sequence[Outcome], *, patience: float = PATIENCE) -> list[Ending]:
    """End ready task runs that no worker took in time; their dispatches are owed no longer."""
    return _take_and_end(connection, unstarted, TaskState.READY, patience)


def cut_off(connection: Connection, asked: Sequence[Outcome], *, patience: float = PATIENCE) -> list[Ending]:
    """End running task runs that were asked to stop and did not: their owners' tokens are taken from them."""
    return _take_and_end(connection, asked, TaskState.RUNNING, patience)


def _take_and_end(
    connection: Connection, outcomes: Sequence[Outcome], leaves: TaskState, patience: float
) -> list[Ending]:
    with begun(connection):
        endings = _end(connection, outcomes, leaves=[leaves], taken=True, patience=patience)
        return endings + skip(connection, [ending for ending in endings if ending.became == "unwanted"])


def _end(
    connection: Connection,
    outcomes: Sequence[Outcome],
    *,
    leaves: list[TaskState],
    taken: bool = False,
    overdue: bool = False,
    patience: float = PATIENCE,
) -> list[Ending]:
    if not outcomes:
        return []
    rows = fetch(
        connection,
        _SQL["finish"],
        {
            "ids": [outcome.id for outcome in outcomes],
            "runs": list({outcome.run_id for outcome in outcomes}),
            "tokens": [outcome.token for outcome in outcomes],
            "states": [outcome.state.value for outcome in outcomes],
            "results": [outcome.result for outcome in outcomes],
            "errors": [outcome.error for outcome in outcomes],
            "leaves": [state.value for state in leaves],
            "taken": taken,
            "overdue": overdue,
            "patience": f"{patience * 1000:.0f}ms",
        },
    )
    return [Ending(row.id, row.workflow_run_id, row.token, row.became) for row in rows]
