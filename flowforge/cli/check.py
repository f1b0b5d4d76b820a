"""check: what unfinished runs need that this code lacks, before it is deployed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.text import Text

from flowforge import client, insights
from flowforge.actors.registry import load
from flowforge.cli import output
from flowforge.settings import Settings


@dataclass(frozen=True)
class Lack:
    """Unfinished task runs of a stored task that this code cannot run, and why."""

    workflow: str
    version: int
    task: str
    task_runs: int
    reason: str


def check(
    against: Annotated[str | None, typer.Option(help="A database's URL; without it that at DATABASE_URL.")] = None,
    as_json: output.AsJson = False,
) -> None:
    """Say what unfinished runs need that the code in FLOWFORGE_MODULES lacks. Exit code 1 if there is anything."""
    settings = Settings.from_env().require("modules")
    registry = load(settings.modules)
    client.configure(replace(settings, database_url=against) if against else settings)
    served = settings.queues or registry.queues
    lacks = [
        Lack(need.workflow, need.version, need.key, need.task_runs, reason)
        for need in insights.unfinished_tasks()
        if (reason := registry.cannot_run(need.workflow, need.key, need.inputs) or _unserved(need.queue, served))
    ]
    if as_json:
        output.print_json(lacks)
    else:
        _print(lacks)
    if lacks:
        raise typer.Exit(1)


def _unserved(queue: str, served: Sequence[str]) -> str | None:
    if queue in served:
        return None
    return (
        f"it waits in queue {queue!r}, and workers of this code serve {', '.join(served)}: add it to FLOWFORGE_QUEUES"
    )


def _print(lacks: list[Lack]) -> None:
    if not lacks:
        typer.echo("this code can finish every run")
        return
    made = output.table("workflow", "task", "task runs", "note")
    for lack in lacks:
        made.add_row(f"{lack.workflow} v{lack.version}", Text(lack.task), str(lack.task_runs), Text(lack.reason))
    output.console.print(made)
    typer.echo(
        "deploy code that has these tasks beside this, or let the runs go on by `flowforge runs move RUN --to current`"
    )
