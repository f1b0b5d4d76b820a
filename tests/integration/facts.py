"""What the tables say of runs, in the words of the model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flowforge.db import fetch
from tests.model_history import quarters

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

Facts = dict[str, Any]

#: What is read of some runs; events in the order in which they were told.
_RUNS = "select * from flowforge.workflow_run where id = any(%(runs)s::uuid[])"
_RUN_EVENTS = """
    select workflow_run_id, kind, from_state, to_state
      from flowforge.workflow_run_event
     where workflow_run_id = any(%(runs)s::uuid[])
     order by created_at"""
_TASK_RUNS = """
    select t.*, d.key
      from flowforge.task_run t
      join flowforge.task d on d.id = t.task_id
     where t.workflow_run_id = any(%(runs)s::uuid[])
     order by d.position"""
_EVENTS = """
    select e.task_run_id, e.kind, e.from_state, e.to_state, e.attempt, e.fencing_token
      from flowforge.task_run_event e
      join flowforge.task_run t on t.id = e.task_run_id
     where t.workflow_run_id = any(%(runs)s::uuid[])
     order by e.created_at"""
_OWED = "select * from flowforge.outbox_message where workflow_run_id = any(%(runs)s::uuid[])"


def stored(connection: Connection, runs: Iterable[UUID], since: datetime) -> dict[UUID, Facts]:
    """Return what the tables say of each run; times are told in hours since a moment."""
    told: dict[UUID, Facts] = {}
    places: dict[UUID, Facts] = {}
    read = partial(fetch, connection, parameters={"runs": list(runs)})
    for run in read(_RUNS):
        told[run.id] = {"run": _run(run, since), "run events": []}
    for run_id, *event in read(_RUN_EVENTS):
        told[run_id]["run events"].append(tuple(event))
    for row in read(_TASK_RUNS):
        places[row.id] = told[row.workflow_run_id][row.key] = _task_run(row, since)
    for id_, *event in read(_EVENTS):
        places[id_]["events"].append(tuple(event))
    for message in read(_OWED):
        places[message.task_run_id]["owed"].append(_owed(message, since))
    return told


def _run(run: Any, since: datetime) -> tuple[Any, ...]:
    counters = run.tasks_remaining, run.tasks_failed, run.tasks_cancelled
    return (run.state, *counters, run.cancel_requested_at is not None, _hours(run.deadline, since))


def _task_run(row: Any, since: datetime) -> Facts:
    counters = row.upstream_remaining, row.upstream_failed, row.upstream_unsucceeded
    return {
        "state": (row.state, row.attempt, row.fencing_token),
        "budgets": (row.failures_left, row.losses_left),
        "upstream": None if row.state == "cancelled" else counters,
        "asked": row.cancel_requested_at is not None,
        "reason": row.deferred_because,
        "lease": row.lease_owner and (row.lease_owner, _hours(row.lease_expires_at, since)),
        "owed": [],
        "events": [],
    }


def _owed(message: Any, since: datetime) -> tuple[Any, ...]:
    snapshot = message.fencing_token_snapshot, message.attempt_snapshot, message.held, message.published_at is not None
    return (*snapshot, _hours(message.available_at, since), _hours(message.start_by, since))


def _hours(moment: datetime | None, since: datetime) -> float | None:
    return None if moment is None else quarters((moment - since).total_seconds() / 3600)
