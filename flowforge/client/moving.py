"""runs move: an unfinished run goes on by another version of its workflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge import insights, transitions
from flowforge.client.engine import engine
from flowforge.client.principal import principal
from flowforge.errors import CannotMove
from flowforge.states import RUN_TERMINAL
from flowforge.tenancy import audit

if TYPE_CHECKING:
    from flowforge.client.run import Run


@dataclass(frozen=True)
class Move:
    """What a move does to a run: the version before and after, and a line for each task run that changes."""

    run: Run
    workflow: str
    before: int
    after: int
    differences: list[str]


def move(run: Run, *, version: int | None = None, dry_run: bool = False, by: str | None = None) -> Move:
    """
    Let a run go on by the current version of its workflow, or by a numbered one.

    What has ended or is running stays as it is; what has not begun follows the version; what the version does not have
    is skipped. Return what it does, or with `dry_run` would do. Raises `CannotMove` that says what is in the way.
    """
    with engine().database.atomic():
        connection = engine().database.raw()
        held = transitions.hold(connection, run.id)
        summary = insights.run_summary(run.organization, run.id)
        if summary is None or summary.state in RUN_TERMINAL:
            raise CannotMove(
                f"run {run.id} {'has ended' if summary else 'is not there'}: only a run that goes on can be moved"
            )
        target = insights.version(run.organization, summary.workflow, version)
        if summary.cancel_requested_at is not None:
            raise CannotMove(f"run {run.id} was cancelled: only a run that goes on can be moved")
        if target is None:
            raise CannotMove(
                f"workflow {summary.workflow!r} has no {'current version' if version is None else f'version {version}'}"
            )
        planned = transitions.plan(held, insights.targets(target.id))
        if not dry_run and not transitions.move(connection, run.id, target.id, planned):
            raise CannotMove(f"run {run.id} has changed meanwhile: move it again")
        if not dry_run:
            versions = {"from": summary.version, "to": target.version}
            audit.record(run.organization, by or principal(), "run.move", ("run", str(run.id)), versions)
    if not dry_run:
        engine().wake(b"now")
    return Move(run, summary.workflow, summary.version, target.version, planned.differences)
