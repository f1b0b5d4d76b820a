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
    """Return run -> the pauses of it and of its workflow, for rows of unfinished runs with their workflows."""
    going = [run for run in runs if run.state not in RUN_TERMINAL]
    if not going:
        return {}
    subjects = {str(run.id) for run in going} | {run.workflow.name for run in going}
    there = pauses(going[0].organization_id, kinds=(Paused.RUN, Paused.WORKFLOW), subjects=subjects)
    return {run.id: [pause for pause in there if _concerns(pause, run)] for run in going} if there else {}


def _concerns(pause: PauseSummary, run: Any) -> bool:
    return (pause.kind, pause.subject) in {(Paused.RUN, str(run.id)), (Paused.WORKFLOW, run.workflow.name)}


def workflow_names(organization: UUID) -> list[str]:
    """Return the names of the workflows that are stored, in order."""
    query: Any = Workflow.select(Workflow.name).where(Workflow.organization == organization).distinct()
    return sorted(name for (name,) in query.tuples())


def queue_names(organization: UUID) -> list[str]:
    """Return the queues that stored tasks name, in order."""
    query: Any = Task.select(Task.queue).join(Workflow).where(Workflow.organization == organization).distinct()
    return sorted(name for (name,) in query.tuples())
