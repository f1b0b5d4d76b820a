"""runs cancel, rerun, pause, resume and move: what people decide about runs, each with its reason in the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from flowforge import client
from flowforge.cli import output
from flowforge.cli.runs import find
from flowforge.errors import FlowForgeError
from flowforge.models import DEFAULT_ORGANIZATION

Runs = Annotated[list[str], typer.Argument(help="Ids of runs, or their first characters.")]
Reason = Annotated[str, typer.Option(help="Why: kept in the history and in the audit log.")]
Tasks = Annotated[list[str] | None, typer.Option("--task", help="Only this task; may be given again.")]


def cancel(
    runs: Runs,
    task: Tasks = None,
    now: Annotated[bool, typer.Option("--now", help="Without clean-ups (all_done tasks).")] = False,
    reason: Reason = "",
) -> None:
    """Cancel runs, or only tasks of them: what has not begun ends at once, running code is told to stop."""
    if task and now:
        raise typer.BadParameter("it is for whole runs: leave --task out", param_hint="--now")

    def one(run: client.Run) -> str:
        if not task:
            return run.cancel(reason=reason, now=now)
        return ", ".join(f"{key} {_word(run.cancel_task(key, reason=reason))}" for key in task)

    _each(runs, lambda run: _word(one(run)))


def _word(state: str) -> str:
    return state if state != "running" else "running: its code was told to stop"


def rerun(run: Annotated[str, typer.Argument(help="A run's id, or its first characters.")], task: Tasks = None,
          reason: Reason = "") -> None:  # fmt: skip
    """Carry out again what failed or was cancelled in a finished run, or from --task on, and all that follows."""
    _each([run], lambda one: f"due again: {', '.join(one.rerun(tasks=task or (), reason=reason))}")


def pause(runs: Runs, reason: Reason = "") -> None:
    """Dispatch nothing more of runs; what runs goes on."""
    _each(runs, lambda run: "paused" if run.pause(reason=reason) else "was paused already")


def resume(runs: Runs, reason: Reason = "") -> None:
    """Dispatch runs again."""
    _each(runs, lambda run: "resumed" if run.resume(reason=reason) else "was not paused")


def move(
    runs: Runs,
    to: Annotated[str, typer.Option(help="`current`, or the number of a version.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only said what would be done.")] = False,
) -> None:
    """Let unfinished runs go on by another version of their workflow."""
    version = _version(to)

    def one(run: client.Run) -> None:
        output.console.print(output.move(client.move(run, version=version, dry_run=not yes), done=yes))

    try:
        _each(runs, one)
    finally:
        if not yes:
            typer.echo("nothing was changed: add --yes to do it")


def _version(text: str) -> int | None:
    if text == "current":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r}: give `current`, or the number of a version", param_hint="--to")
    return int(text)


def _each(runs: list[str], decide: Callable[[client.Run], str | None]) -> None:
    """Decide about each run and say what became of it; those that are refused keep none of the others from it."""
    client.engine()
    refused = 0
    for run_id in [find(run) for run in runs]:
        try:
            if said := decide(client.Run(run_id, DEFAULT_ORGANIZATION)):
                typer.echo(f"{run_id} {said}")
        except FlowForgeError as error:
            refused += 1
            typer.echo(f"{run_id}: {error}", err=True)
    if refused:
        raise typer.Exit(1)
