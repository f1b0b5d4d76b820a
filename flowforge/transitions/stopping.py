"""cancel, rerun, pause, resume and unhold: what people decide about runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from flowforge.db import begun, fetch, load_statements
from flowforge.states import Paused, RunState
from flowforge.transitions.ending import Ending, skip
from flowforge.transitions.moving import hold

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

_SQL = load_statements("flowforge.transitions")

#: Seconds that a cancel waits for whoever locks a row: a user's transaction may.
_PATIENCE = 5.0
#: Held dispatches that one statement lets go.
_AT_ONCE = 5_000


class Decision(NamedTuple):
    """Who decided, and why: kept in the events of what changed."""

    by: str
    reason: str = ""

    def encode(self) -> str:
        """Write this as the JSON of an event's detail."""
        return json.dumps(self._asdict())


@dataclass(frozen=True)
class Cancelled:
    """
    What became of a run that was asked to stop: whether that was accepted, and its state before dependents follow.

    `tasks` has a word for each task run concerned: `cancelled`, `asked` while its code runs, or for one that was named
    and had ended before its state.
    """

    accepted: bool
    state: RunState
    tasks: dict[UUID, str]


def cancel(
    connection: Connection,
    run_id: UUID,
    decision: Decision,
    *,
    tasks: Sequence[UUID] | None = None,
    now: bool = False,
    overdue: bool = False,
    patience: float | None = None,
) -> Cancelled | None:
    """
    Cancel a run, or only these of its task runs; None if there is no such run.

    What has not begun ends at once, what is running is asked to stop. Of a run that has begun clean-ups (`all_done`)
    still run, unless `now`. With `overdue` only a run whose deadline has passed, and that nobody has cancelled yet.
    Waits for locks for `patience` seconds; raises psycopg2's LockNotAvailable then, and changes nothing.
    """
    parameters = {
        "runs": [run_id],
        "tasks": list(tasks or ()),
        "whole": tasks is None,
        "now": now,
        "overdue": overdue,
        "detail": decision.encode(),
    }
    with begun(connection):
        hold(connection, run_id, patience=patience or _PATIENCE)
        rows = fetch(connection, _SQL["cancel"], parameters)
        unwanted = [Ending(r.id, r.workflow_run_id, r.token, r.became) for r in rows if r.became == "unwanted"]
        skip(connection, unwanted)
    told = {row.id: row for row in rows if row.became not in {"unwanted", "ready"}}
    run = told.pop(run_id, None)
    accepted = {id_: row.became for id_, row in told.items()}
    return run and Cancelled(run.accepted, RunState(run.became), accepted)


class Again(NamedTuple):
    """A task run that a rerun concerns; `becomes` is `ready`, `pending`, or `unwanted`: its rule forbids it."""

    key: str
    becomes: str


@dataclass(frozen=True)
class Rerun:
    """What became of a rerun: whether it was accepted, the run's state before, and the task runs, in order."""

    accepted: bool
    before: RunState
    tasks: list[Again]


def rerun(connection: Connection, run_id: UUID, decision: Decision, *, tasks: Sequence[UUID] = ()) -> Rerun | None:
    """
    Carry these task runs of a finished run out again, or without any those that failed or were cancelled.

    All that depend on them are due again too. Budgets are fresh, tokens go on. None if there is no such run.
    """
    parameters = {"run": run_id, "tasks": list(tasks), "detail": decision.encode()}
    with begun(connection):
        hold(connection, run_id, patience=_PATIENCE)
        rows = fetch(connection, _SQL["rerun"], parameters)
    if not rows:
        return None
    again = [Again(row.key, row.becomes) for row in rows if row.id]
    return Rerun(rows[0].accepted, RunState(rows[0].run_state), again)


class Subject(NamedTuple):
    """What can be paused: a run by its id, a workflow or a queue by its name."""

    organization: UUID
    kind: Paused
    name: str


def pause(connection: Connection, subject: Subject, decision: Decision) -> bool:
    """Dispatch nothing of a subject from now on; False where it is paused already, or is a run that has ended."""
    return bool(fetch(connection, _SQL["pause"], _about(subject, decision)))


def resume(connection: Connection, subject: Subject, decision: Decision) -> bool:
    """Dispatch a subject again; False where it was not paused. `unhold` lets go what was held back."""
    return bool(fetch(connection, _SQL["resume"], _about(subject, decision)))


def _about(subject: Subject, decision: Decision) -> dict[str, object]:
    run = subject.name if subject.kind is Paused.RUN else None
    named = {"organization": subject.organization, "kind": subject.kind.value, "subject": subject.name}
    return {**named, "run": run, "by": decision.by, "reason": decision.reason}


def unhold(connection: Connection, *, limit: int = _AT_ONCE) -> int:
    """Make held dispatches due again that nothing pauses any more. Return how many."""
    return len(fetch(connection, _SQL["unhold"], {"limit": limit}))
