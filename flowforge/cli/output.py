"""How things look in a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from rich.console import RenderableType

    from flowforge.broker import Progress
    from flowforge.client import Move
    from flowforge.insights import Event, PauseSummary, RunSummary, TaskSummary

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: As wide as the terminal; in a pipe nothing is cut.
console = Console(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 400)

_LINES = 12  # of a traceback
_SHORT = 13  # characters of a run's id: enough to tell it apart, and `runs show` takes as much

STYLES = {
    "pending": "dim",
    "ready": "yellow",
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "magenta",
    "skipped": "dim italic",
}
_BAR, _NOTE = 20, 300  # characters


def print_json(value: object) -> None:
    """Print dataclasses, ids and instants as JSON."""
    typer.echo(json.dumps(value, default=_plain, indent=2))


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


def state(word: str) -> Text:
    """Return a state in its colour."""
    return Text(word, style=STYLES.get(word, ""))


def table(*columns: str) -> Table:
    """Return an empty table of the house's form."""
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, no_wrap=column not in {"note", "checked"}, overflow="fold")
    return made


def runs(rows: Iterable[RunSummary]) -> Table:
    """Return runs as a table."""
    made = table("run", "workflow", "state", "tasks", "started", "took", "note")
    for run in rows:
        done = run.tasks.get("succeeded", 0)
        made.add_row(
            str(run.id)[:_SHORT],
            Text(f"{run.workflow} v{run.version}"),
            state(run.state),
            f"{done}/{sum(run.tasks.values())}",
            ago(run.created_at),
            took(run.started_at, run.finished_at),
            _decided(run),
        )
    return made


def _decided(run: RunSummary) -> Text:
    """Return what people decided about a run that goes on."""
    if run.cancel is None:
        return paused(run.paused)
    why = f": {run.cancel['reason']}" if run.cancel["reason"] else ""
    return Text(f"cancel asked for by {run.cancel['by']}{why}", style="magenta")


def paused(pauses: Sequence[PauseSummary]) -> Text:
    """Return what is paused, by whom and why."""
    said = [f"{one.kind} paused by {one.paused_by}{f': {one.reason}' if one.reason else ''}" for one in pauses]
    return Text("; ".join(said), style="yellow")


def events(rows: Iterable[Event]) -> Table:
    """Return what happened, a line for each event."""
    made = table("when", "task", "event", "attempt", "note")
    for event in rows:
        told = ", ".join(f"{name}: {value}" for name, value in (event.detail or {}).items())
        attempt = "" if event.attempt is None else str(event.attempt)
        at = event.at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]
        made.add_row(at, Text(event.task or "(run)"), event.kind, attempt, Text(told[:_NOTE]))
    return made


def run(summary: RunSummary, tasks: Sequence[TaskSummary], progress: Mapping[UUID, Progress]) -> RenderableType:
    """Return one run: a headline, and a line for each task run with its place in time."""
    head = Text.assemble(
        (f"{summary.workflow} v{summary.version}", "bold"),
        "  ",
        state(summary.state),
        f"  {summary.id}  ",
        _decided(summary),
        "\n",
        (json.dumps(summary.parameters), "dim"),
    )
    began = summary.started_at or summary.created_at
    until = summary.finished_at or datetime.now(UTC)
    made = table("task", "state", "attempt", "took", "when", "note")
    for task in tasks:
        made.add_row(
            Text(task.key),
            state(task.state),
            str(task.attempt),
            took(task.started_at, task.finished_at),
            _bar(task, began, until),
            Text(_note(task, progress.get(task.id))),
        )
    return Group(head, made, *(_traceback(task) for task in tasks if task.state == "failed" and task.error))


def move(moved: Move, *, done: bool) -> RenderableType:
    """Return what a move of a run does, or did."""
    head = f"{moved.run.id} {moved.workflow} v{moved.before} -> v{moved.after}: {'moved' if done else 'would move'}"
    return Group(
        Text(head, style="bold"), *(Text(f"  {line}") for line in moved.differences or ["no task run changes"])
    )


def _bar(task: TaskSummary, began: datetime, until: datetime) -> Text:
    """Draw when the last attempt ran, between the run's start and its end."""
    whole = (until - began).total_seconds()
    if not task.started_at or whole <= 0:
        return Text(" " * _BAR)
    end = task.finished_at or until
    left = int((task.started_at - began).total_seconds() / whole * _BAR)
    wide = max(1, round((end - task.started_at).total_seconds() / whole * _BAR))
    left = max(0, min(left, _BAR - wide))
    return Text(" " * left + "━" * wide + " " * (_BAR - left - wide), style=STYLES.get(task.state, ""))


def _traceback(task: TaskSummary) -> Text:
    """Return the last lines of what a failed task has raised: the cause stands last."""
    lines = (task.error or {}).get("traceback", "").rstrip().splitlines()[-_LINES:]
    return Text("\n".join(["", f"{task.key}:", *(f"  {line}" for line in lines)]), style="dim") if lines else Text()


def _note(task: TaskSummary, progress: Progress | None) -> str:
    if task.error and task.state in {"failed", "skipped", "ready"}:
        return f"{task.error['type']}: {task.error['message']}".splitlines()[0][:_NOTE]
    if task.state == "running":
        return f"{_progress(progress)}on {task.lease_owner}"
    return task.deferred_because or ""


def _progress(progress: Progress | None) -> str:
    if progress is None:
        return ""
    of = f"/{progress.total:g}" if progress.total is not None else ""
    return f"{progress.done:g}{of} {progress.note}".rstrip() + ", "


def took(started: datetime | None, finished: datetime | None) -> str:
    """Return a duration in words, until now if it goes on."""
    if started is None:
        return ""
    seconds = ((finished or datetime.now(UTC)) - started).total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"  # noqa: PLR2004 - seconds in a minute


def ago(moment: datetime) -> str:
    """Return how long ago a moment was."""
    return f"{took(moment, None)} ago"
