"""Reads of what is paused, by whom and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowforge.models import Pause, Task, Workflow
from flowforge.states import RUN_TERMINAL, Paused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from uuid import UUID


@dataclass(frozen=True)
class PauseSummary:
    """One pause: `kind` is `run`, `workflow` or `queue`, and `subject` the run's id or the name."""

    kind: str
    subject: str
    reason: str
    paused_by: str
    created_at: datetime


def pauses(
    organization: UUID, *, kinds: Iterable[Paused] = Paused, subjects: Iterable[str] | None = None
) -> list[PauseSummary]:
    """Return what is paused, the oldest first: of these kinds, and of these subjects if any are given."""
    query = Pause.select().where((Pause.organization == organization) & Pause.kind.in_(list(kinds)))
    query = query if subjects is None else query.where(Pause.subject.in_(list(subjects)))
    rows = query.order_by(Pause.created_at)
    return [PauseSummary(row.kind, row.subject, row.reason, row.paused_by, row.created_at) for row in rows]


def pauses_of(runs: Sequence[Any]) -> dict[UUID, list[PauseSummary]]:
    """Return run -> the pauses of it, its workflow and its queues, for rows of unfinished runs with their workflows."""
    going = [run for run in runs if run.state not in RUN_TERMINAL]
    if not going or not Pause.select().exists():
        return {}
    queues = _queues_of({run.workflow_id for run in going})
    concerned = {run.id: _subjects(run, queues.get(run.workflow_id, set())) for run in going}
    names = {name for subjects in concerned.values() for _, name in subjects}
    there = pauses(going[0].organization_id, subjects=names)
    return {id_: [one for one in there if (one.kind, one.subject) in subjects] for id_, subjects in concerned.items()}


def _subjects(run: Any, queues: Iterable[str]) -> set[tuple[str, str]]:
    own = {(Paused.RUN, str(run.id)), (Paused.WORKFLOW, run.workflow.name)}
    return own | {(Paused.QUEUE, queue) for queue in queues}


def _queues_of(versions: Iterable[UUID]) -> dict[UUID, set[str]]:
    """Return the queues that the tasks of these versions name."""
    query: Any = Task.select(Task.workflow, Task.queue).where(Task.workflow.in_(list(versions))).distinct()
    queues: dict[UUID, set[str]] = {}
    for version, queue in query.tuples():
        queues.setdefault(version, set()).add(queue)
    return queues


def workflow_names(organization: UUID) -> list[str]:
    """Return the names of the workflows that are stored, in order."""
    query: Any = Workflow.select(Workflow.name).where(Workflow.organization == organization).distinct()
    return sorted(name for (name,) in query.tuples())


def queue_names(organization: UUID) -> list[str]:
    """Return the queues that stored tasks name, in order."""
    query: Any = Task.select(Task.queue).join(Workflow).where(Workflow.organization == organization).distinct()
    return sorted(name for (name,) in query.tuples())
