"""worker, scheduler, dev and demo: the commands that stay."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from flowforge.embedded.supervisor import Program, Supervisor
from flowforge.settings import Settings

#: Seconds that a process may take beyond the grace of its attempts, before it is killed.
_MARGIN = 5.0


def worker(
    processes: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each (FLOWFORGE_THREADS).")] = None,
    queues: Annotated[str | None, typer.Option(help="Queues to serve, with commas (FLOWFORGE_QUEUES).")] = None,
) -> None:
    """Run worker processes, each on its own: one that dies is replaced, the others go on."""
    _log()
    settings = Settings.from_env().require("database_url", "redis_url", "modules")
    given = {"FLOWFORGE_THREADS": threads and str(threads), "FLOWFORGE_QUEUES": queues}
    environment = {name: value for name, value in given.items() if value}
    command = [sys.executable, "-m", "flowforge.actors"]
    programs = [Program(f"worker.{number}", command, environment) for number in range(1, processes + 1)]
    raise typer.Exit(Supervisor(programs, grace=settings.grace + _MARGIN).run())


def scheduler() -> None:
    """Run one scheduler process; any number may run."""
    from flowforge.scheduler.__main__ import main  # noqa: PLC0415 - APScheduler is only needed here

    raise typer.Exit(main())


def dev(
    modules: Annotated[list[str] | None, typer.Argument(help="Modules with workflows (FLOWFORGE_MODULES).")] = None,
    data: Annotated[Path | None, typer.Option(help="Keep PostgreSQL's data in this directory.")] = None,
) -> None:
    """Start PostgreSQL and Valkey and run the Procfile here; Ctrl-C ends everything."""
    from flowforge.embedded import development  # noqa: PLC0415 - needs the extra `embedded`

    _log()
    settings = Settings.from_env()
    named = tuple(modules or ()) or settings.require("modules").modules
    commands = development.commands(Path.cwd())
    with development.deployment(named, data) as environment:
        typer.echo("for commands in another terminal (after a change of code, start this anew):")
        for name in ("DATABASE_URL", "REDIS_URL", "FLOWFORGE_MODULES"):
            typer.echo(f"export {name}={shlex.quote({**os.environ, **environment}[name])}")
        if command := commands.pop(development.RELEASE, None):
            development.release(command, environment)
        supervisor = development.supervise(commands, environment, grace=settings.grace + 2 * _MARGIN, echo=sys.stdout)
        raise typer.Exit(supervisor.run())


def demo(
    directory: Annotated[Path | None, typer.Argument(help="A source tree (default: Python's own library).")] = None,
    report: Annotated[Path, typer.Option(help="Where to write the report.")] = Path("flowforge-demo-report.html"),
) -> None:
    """Survey a source tree with two workers, kill one halfway, and check the figures."""
    from flowforge.embedded.demo.run import run  # noqa: PLC0415 - needs the extra `embedded`

    raise typer.Exit(run(directory, report))


def _log() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
