"""start_run, reserve and forget: the first verbs of a run's life, and the promises that equal requests are one run."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from flowforge.db import fetch, load_statements

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

_SQL = load_statements("flowforge.transitions")


class NewRun(NamedTuple):
    """A run to start: `parameters` is JSON text; a lower `priority` goes first."""

    id: UUID
    workflow_id: UUID
    parameters: str
    priority: int = 0


def start_run(connection: Connection, runs: Sequence[NewRun]) -> dict[UUID, int]:
    """
    Write runs, their task runs, and a dispatch for each root. Return run id -> number of its task runs.

    A workflow that the connection's snapshot does not show gets no run: its id is missing in the answer.
    """
    rows = fetch(
        connection,
        _SQL["start_run"],
        {
            "runs": [run.id for run in runs],
            "workflows": [run.workflow_id for run in runs],
            "parameters": [run.parameters for run in runs],
            "priorities": [run.priority for run in runs],
        },
    )
    return {row.workflow_run_id: row.tasks for row in rows}


class Reservation(NamedTuple):
    """An idempotency key that is to stand for a run for `ttl` seconds; `user` is None until there are users."""

    organization_id: UUID
    user: str | None
    key: str
    fingerprint: str
    run_id: UUID
    workflow_id: UUID
    ttl: float


def reserve(connection: Connection, reservation: Reservation) -> tuple[UUID, str] | None:
    """
    Let the key stand for the run, or find the run that it stands for already. Return that run's id and fingerprint.

    None means that the connection's snapshot does not show the workflow. Waits for a transaction that holds the same
    key, so that of many at once exactly one starts the run.
    """
    parameters = {
        "organization": reservation.organization_id,
        "user": reservation.user,
        "key": reservation.key,
        "fingerprint": reservation.fingerprint,
        "run": reservation.run_id,
        "workflow": reservation.workflow_id,
        "ttl": timedelta(seconds=reservation.ttl),
    }
    rows = fetch(connection, _SQL["reserve"], parameters) or fetch(connection, _SQL["reserved"], parameters)
    return (rows[0].workflow_run_id, rows[0].fingerprint) if rows else None


def forget(connection: Connection, *, limit: int) -> int:
    """Delete idempotency keys that no longer stand for their run. Return how many those were."""
    return len(fetch(connection, _SQL["forget"], {"limit": limit}))
