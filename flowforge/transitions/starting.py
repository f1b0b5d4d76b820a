"""start_run and forget: the first verb of a run's life, and the promises that equal requests are one run."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from flowforge.db import fetch, load_statements

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

_SQL = load_statements("flowforge.transitions")

#: start_run's text, for connections of other libraries than ours; its parameters are `start_run_parameters`.
START_RUN = _SQL["start_run"]

#: Seconds for which an idempotency key stands for its run, where the caller says nothing else.
KEY_TTL = 86_400.0


class NewRun(NamedTuple):
    """
    A run to start: `parameters` is JSON text; a lower `priority` goes first; equal starts with a `key` are one.

    It is to be over `deadline` seconds after its start; None leaves that to its workflow.
    """

    id: UUID
    workflow_id: UUID
    parameters: str
    priority: int = 0
    key: str | None = None
    deadline: float | None = None


class Started(NamedTuple):
    """
    What became of a `NewRun`: `run_id` is its own id, or that of the run for which its key stands already.

    `same` says whether that run was asked for with the same workflow and parameters.
    """

    id: UUID
    run_id: UUID
    same: bool


def start_run(connection: Connection, runs: Sequence[NewRun], *, key_ttl: float = KEY_TTL) -> list[Started]:
    """
    Write runs, their task runs, and a dispatch for each root.

    A workflow that the connection's snapshot does not show gets no run: its id is missing in the answer. No two of the
    runs may have one key. Waits for a transaction that holds one of the keys, so that of many at once exactly one
    starts the run.
    """
    rows = fetch(connection, START_RUN, start_run_parameters(runs, key_ttl=key_ttl))
    return [Started(*row) for row in rows]


def start_run_parameters(runs: Sequence[NewRun], *, key_ttl: float = KEY_TTL) -> dict[str, Any]:
    """Return the parameters of START_RUN; keys stand for their runs for `key_ttl` seconds."""
    return {
        "runs": [run.id for run in runs],
        "workflows": [run.workflow_id for run in runs],
        "parameters": [run.parameters for run in runs],
        "priorities": [run.priority for run in runs],
        "keys": [run.key for run in runs],
        "deadlines": [None if run.deadline is None else timedelta(seconds=run.deadline) for run in runs],
        "user": None,
        "ttl": timedelta(seconds=key_ttl),
    }


def forget(connection: Connection, *, limit: int) -> int:
    """Delete idempotency keys that no longer stand for their run. Return how many those were."""
    return len(fetch(connection, _SQL["forget"], {"limit": limit}))
