"""migrate, deploy and start."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from flowforge import client, migrations
from flowforge.actors.registry import load
from flowforge.cli import output
from flowforge.settings import Settings
from flowforge.states import RunState


def migrate() -> None:
    """Bring the database at DATABASE_URL to this release's schema."""
    database = client.engine().database
    applied = migrations.migrate(database)
    runs_on_it = f"FlowForge {migrations.oldest_release(database)} or newer runs on the result"
    typer.echo(f"applied {', '.join(applied)}: {runs_on_it}" if applied else "nothing to apply")


def deploy(
    repository: Annotated[str | None, typer.Option(help="Where the code is kept.")] = None,
    ref: Annotated[str | None, typer.Option(help="Branch or tag.")] = None,
    commit: Annotated[str | None, typer.Option(help="Commit.")] = None,
) -> None:
    """Store every workflow in FLOWFORGE_MODULES and make its version the current one."""
    registry = load(Settings.from_env().require("modules").modules)
    for definition in registry.workflows.values():
        row = client.deploy(definition, repository=repository, ref=ref, commit=commit)
        typer.echo(f"{row.name} version {row.version} is current ({len(definition.tasks)} tasks)")


def start(
    workflow: Annotated[str, typer.Argument(help="Name of a deployed workflow.")],
    parameters: Annotated[list[str] | None, typer.Argument(help="key=value; a value is JSON, or else text.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Equal starts with one key are one run.")] = None,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Lower goes first.")] = 0,
    deadline: Annotated[str | None, typer.Option(help="Cancelled unless it is over after this, as 30m or 2h.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit code 1 unless it succeeded.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait at most; the run goes on.")] = None,
    as_json: output.AsJson = False,
) -> None:
    """Start a run of a workflow's current version."""
    if timeout is not None and not wait:
        raise typer.BadParameter("it is for who waits: add --wait", param_hint="--timeout")
    given = dict(_pair(text) for text in parameters or [])
    registry = load(Settings.from_env().modules)
    if definition := registry.workflows.get(workflow):
        given = json.loads(definition.encode(**given))
    run = client.start_by_name(workflow, given, idempotency_key=idempotency_key, priority=priority, deadline=deadline)
    if not definition:
        typer.echo(f"parameters not checked: no workflow {workflow!r} in FLOWFORGE_MODULES here", err=True)
    if wait:
        typer.echo(f"{run.id} started: `flowforge runs show {run.id} --watch` follows it", err=True)
    state = run.wait(timeout) if wait else run.state
    typer.echo(json.dumps({"id": str(run.id), "state": state}) if as_json else f"{run.id} {state}")
    if wait and state != RunState.SUCCEEDED:
        raise typer.Exit(1)


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r}: write key=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
