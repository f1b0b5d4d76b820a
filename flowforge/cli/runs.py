"""runs list, runs show and runs events."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated

import redis
import typer
from rich.live import Live

from flowforge import client, insights
from flowforge.cli import output
from flowforge.errors import FlowForgeError
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RUN_TERMINAL, RunState, TaskState

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.broker import Progress

app = typer.Typer(help="What was started.", no_args_is_help=True)

_REFRESH = 0.5  # seconds


@app.command(name="list")
def list_(
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    state: Annotated[RunState | None, typer.Option(help="Only runs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    as_json: output.AsJson = False,
) -> None:
    """List runs, the latest first."""
    client.engine()
    rows = insights.list_runs(DEFAULT_ORGANIZATION, workflow=workflow, state=state, limit=limit)
    if as_json:
        output.print_json(rows)
    else:
        output.console.print(output.runs(rows))


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's id, or its first characters.")],
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it has ended.")] = False,
    as_json: output.AsJson = False,
) -> None:
    """Show a run and its task runs."""
    client.engine()
    run_id = find(run)
    if as_json:
        summary, tasks, progress = _read(run_id)
        output.print_json({"run": summary, "tasks": tasks, "progress": _named(progress)})
    elif watch:
        follow(run_id)
    else:
        output.console.print(output.run(*_read(run_id)))


@app.command()
def events(
    run: Annotated[str, typer.Argument(help="A run's id, or its first characters.")], as_json: output.AsJson = False
) -> None:
    """Say what happened to a run and its task runs, oldest first."""
    client.engine()
    rows = insights.run_events(DEFAULT_ORGANIZATION, find(run))
    if as_json:
        output.print_json(rows)
    else:
        output.console.print(output.events(rows))


def follow(run_id: UUID) -> None:
    """Show a run until it has ended."""
    with Live(console=output.console, auto_refresh=False) as live:
        while True:
            read = _read(run_id)
            live.update(output.run(*read), refresh=True)
            if read[0].state in RUN_TERMINAL:
                return
            time.sleep(_REFRESH)


def _read(run_id: UUID) -> tuple[insights.RunSummary, list[insights.TaskSummary], dict[UUID, Progress]]:
    summary = insights.run_summary(DEFAULT_ORGANIZATION, run_id)
    if summary is None:
        raise FlowForgeError(f"no run {run_id}: `flowforge runs list` shows what there is")
    tasks = insights.task_summaries(DEFAULT_ORGANIZATION, run_id)
    return summary, tasks, _progress([task.id for task in tasks if task.state == TaskState.RUNNING])


def _progress(running: list[UUID]) -> dict[UUID, Progress]:
    """Return what running attempts have told of themselves, as far as Redis has it."""
    runway = client.engine().runway
    try:
        return runway.progress(running) if runway else {}
    except redis.RedisError:
        return {}


def _named(progress: dict[UUID, Progress]) -> dict[str, dict[str, object]]:
    return {str(id_): told._asdict() for id_, told in progress.items()}


def find(prefix: str) -> UUID:
    """Return the one run whose id begins with the prefix. Raises `FlowForgeError` for none and for several."""
    if not re.fullmatch(r"[0-9a-f]{1,32}", prefix.lower().replace("-", "")):
        raise FlowForgeError(f"{prefix!r} is no run id: give its hexadecimal digits, or the first few")
    found = insights.find_runs(DEFAULT_ORGANIZATION, prefix)
    if len(found) != 1:
        said = "no run's id begins" if not found else "several runs' ids begin"
        raise FlowForgeError(f"{said} with {prefix!r}: `flowforge runs list` shows what there is")
    return found[0]
