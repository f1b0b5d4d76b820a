"""Listings of workflows and queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.db import fetch, load_statements, proxy
from flowforge.insights.pauses import PauseSummary, pauses
from flowforge.states import Paused

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

_SQL = load_statements("flowforge.insights", "queries.sql")


@dataclass(frozen=True)
class WorkflowSummary:
    """A workflow: its current version, None where none was deployed, and how many runs have not ended."""

    name: str
    version: int | None
    deployed_at: datetime | None
    unfinished: int
    paused: list[PauseSummary]


@dataclass(frozen=True)
class QueueSummary:
    """A queue: dispatches that are due, delayed, and held by a pause; since when the oldest is due; what runs."""

    name: str
    due: int
    delayed: int
    held: int
    oldest: datetime | None
    running: int
    paused: list[PauseSummary]


def list_workflows(organization: UUID) -> list[WorkflowSummary]:
    """Return the stored workflows by name."""
    rows = fetch(proxy.raw(), _SQL["workflows"], {"organization": organization})
    paused = _pauses_by(organization, Paused.WORKFLOW, "workflows_of_paused_queues")
    return [WorkflowSummary(**row._asdict(), paused=paused.get(row.name, [])) for row in rows]


def list_queues(organization: UUID) -> list[QueueSummary]:
    """Return the queues that stored tasks name, or where something waits, by name."""
    rows = fetch(proxy.raw(), _SQL["queues"], {"organization": organization})
    paused = _pauses_by(organization, Paused.QUEUE, "queues_of_paused_others")
    return [QueueSummary(**row._asdict(), paused=paused.get(row.name, [])) for row in rows]


def _pauses_by(organization: UUID, kind: Paused, concerned: str) -> dict[str, list[PauseSummary]]:
    """Return name -> pauses of what has it, and, by the query `concerned`, of others that stop something of it."""
    if not (there := pauses(organization)):
        return {}
    by_name = {one.subject: [one] for one in there if one.kind == kind}
    known = {(one.kind, one.subject): one for one in there}
    for row in fetch(proxy.raw(), _SQL[concerned], {"organization": organization}):
        if pause := known.get((row.kind, row.subject)):
            by_name.setdefault(row.name, []).append(pause)
    return by_name
