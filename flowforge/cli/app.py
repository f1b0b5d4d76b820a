"""The commands, and how their errors end: 1 for what failed, 2 for what was asked wrongly or cannot start."""

from __future__ import annotations

import sys
from typing import Annotated

import peewee
import psycopg2
import redis
import typer
from rich.console import Console
from rich.text import Text

from flowforge import client, migrations
from flowforge.cli import chaos, check, decisions, definitions, doctor, init, pausing, processes, runs
from flowforge.errors import (
    DatabaseUnreachable,
    FlowForgeError,
    IncompatibleServer,
    SchemaMismatch,
    SettingsError,
    UnsupportedPlatform,
)

RET_FAILED = 1
RET_USAGE = 2

_CANNOT_START = (SettingsError, IncompatibleServer, SchemaMismatch, DatabaseUnreachable, UnsupportedPlatform)

app = typer.Typer(
    name="flowforge",
    help="Durable workflows on Postgres, Redis and a Procfile.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for decide in (decisions.cancel, decisions.rerun, decisions.pause, decisions.resume, decisions.move):
    runs.app.command()(decide)
app.add_typer(runs.app, name="runs")
app.add_typer(pausing.workflows, name="workflows")
app.add_typer(pausing.queues, name="queues")
app.command(name="audit")(pausing.audit_log)
for command in (
    definitions.migrate,
    definitions.deploy,
    check.check,
    definitions.start,
    processes.worker,
    processes.scheduler,
    processes.dev,
    processes.demo,
    doctor.doctor,
    chaos.chaos,
    init.init,
):
    app.command()(command)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(what: Annotated[str, typer.Argument()] = "X") -> None:
    """Answer a habit from other tools."""
    typer.echo(f"flowforge has no command 'run': did you mean `start {what}` or `runs show {what}`?", err=True)
    raise typer.Exit(RET_USAGE)


def main() -> None:
    """Run the command line; errors that have a remedy are said in one line."""
    try:
        app()
    except FlowForgeError as error:
        _say(error)
        sys.exit(RET_USAGE if isinstance(error, _CANNOT_START) else RET_FAILED)
    except (peewee.ProgrammingError, psycopg2.ProgrammingError):
        _say_if_unmigrated()
        raise
    except redis.RedisError as error:
        _say(f"Redis at REDIS_URL does not answer: {error}")
        sys.exit(RET_USAGE)


def _say_if_unmigrated() -> None:
    """End with one line where a statement failed because the database lacks a migration."""
    try:
        migrations.check(client.engine().database)
    except SchemaMismatch as error:
        _say(error)
        sys.exit(RET_USAGE)


def _say(error: object) -> None:
    Console(stderr=True).print(Text.assemble(("error", "bold red"), f" {str(error).strip()}"), soft_wrap=True)
