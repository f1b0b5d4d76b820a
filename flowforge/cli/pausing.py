"""workflows and queues: what there is, how much waits, and pausing it; and the audit log."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from flowforge import client, insights
from flowforge.cli import output
from flowforge.cli.decisions import Reason
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import Paused
from flowforge.tenancy import audit

workflows = typer.Typer(help="What is deployed.", no_args_is_help=True)
queues = typer.Typer(help="What waits for workers.", no_args_is_help=True)
Name = Annotated[str, typer.Argument()]


@workflows.command(name="list")
def list_workflows(as_json: output.AsJson = False) -> None:
    """List workflows with their current version, and what is paused."""
    client.engine()
    rows = insights.list_workflows(DEFAULT_ORGANIZATION)
    if as_json:
        output.print_json(rows)
        return
    made = output.table("workflow", "current", "deployed", "unfinished", "note")
    for row in rows:
        current = "none" if row.version is None else f"v{row.version}"
        deployed = output.ago(row.deployed_at) if row.deployed_at else "never"
        made.add_row(Text(row.name), current, deployed, str(row.unfinished), output.paused(row.paused))
    output.console.print(made)


@workflows.command(name="pause")
def pause_workflow(name: Name, reason: Reason = "") -> None:
    """Dispatch nothing more of a workflow's runs, of whatever version; what runs goes on."""
    _pause(Paused.WORKFLOW, name, reason)


@workflows.command(name="resume")
def resume_workflow(name: Name, reason: Reason = "") -> None:
    """Dispatch a workflow's runs again."""
    _resume(Paused.WORKFLOW, name, reason)


@queues.command(name="list")
def list_queues(as_json: output.AsJson = False) -> None:
    """List queues: what is due, delayed, held by a pause and running, and how long the oldest has been due."""
    client.engine()
    rows = insights.list_queues(DEFAULT_ORGANIZATION)
    if as_json:
        output.print_json(rows)
        return
    made = output.table("queue", "due", "oldest", "delayed", "held", "running", "note")
    for row in rows:
        oldest = output.took(row.oldest, None)
        counts = (row.due, row.delayed, row.held, row.running)
        due, *others = map(str, counts)
        made.add_row(Text(row.name), due, oldest, *others, output.paused(row.paused))
    output.console.print(made)


@queues.command(name="pause")
def pause_queue(name: Name, reason: Reason = "") -> None:
    """Dispatch nothing more of a queue; what runs goes on."""
    _pause(Paused.QUEUE, name, reason)


@queues.command(name="resume")
def resume_queue(name: Name, reason: Reason = "") -> None:
    """Dispatch a queue again."""
    _resume(Paused.QUEUE, name, reason)


def _pause(kind: Paused, name: str, reason: str) -> None:
    client.engine()
    done = client.pause(kind, name, reason=reason)
    typer.echo(f"{kind} {name} {'is paused' if done else 'was paused already'}")


def _resume(kind: Paused, name: str, reason: str) -> None:
    client.engine()
    done = client.resume(kind, name, reason=reason)
    typer.echo(f"{kind} {name} {'is dispatched again' if done else 'was not paused'}")


def audit_log(
    subject: Annotated[str | None, typer.Option(help="Only of this run's id, workflow or queue.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    as_json: output.AsJson = False,
) -> None:
    """Say who did what, the latest first."""
    client.engine()
    rows = audit.entries(DEFAULT_ORGANIZATION, subject=subject, limit=limit)
    if as_json:
        output.print_json([row.__data__ for row in rows])
        return
    made = output.table("when", "who", "did", "to", "note")
    for row in rows:
        told = ", ".join(f"{name}: {value}" for name, value in row.detail.items() if value not in ("", None))
        made.add_row(output.ago(row.created_at), Text(row.principal), row.action, Text(row.subject), Text(told))
    output.console.print(made)
