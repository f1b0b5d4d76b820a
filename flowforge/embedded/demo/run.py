"""
`flowforge demo`: a deployment on embedded servers, the survey through it, and a worker killed halfway.

Returns the process's exit code: 0 only if the run succeeded, its check held, and the kill was recovered from.
"""

from __future__ import annotations

import os
import signal
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flowforge import client, insights, migrations
from flowforge.embedded import development
from flowforge.embedded.demo import report
from flowforge.embedded.demo.workflow import check, merge, source_survey
from flowforge.settings import Settings
from flowforge.states import TASK_TERMINAL, RunState, TaskEvent, TaskState

if TYPE_CHECKING:
    from flowforge.client import Run

_MODULE = "flowforge.embedded.demo.workflow"
_LEASE = 5.0  # seconds, so that one sees the recovery without waiting long
_MARGIN = 5.0  # seconds that a worker may take beyond its grace
_LOOK_EVERY = 0.1
#: What becomes of a dead worker's task: of one that had begun, and of one that had not.
_RECOVERED = {TaskEvent.EXPIRED, TaskEvent.HANDED_BACK}
_ANSWERED = 0.5  # seconds until what a process has sent is carried out, on a busy machine too
_COMMANDS = {
    "scheduler": "flowforge scheduler",
    "worker.1": "python -m flowforge.actors",
    "worker.2": "python -m flowforge.actors",
}

console = Console()


def run(directory: Path | None, report_file: Path) -> int:
    """Survey the tree (default: this Python's standard library); return the exit code."""
    tree = (directory or Path(sysconfig.get_path("stdlib"))).resolve()
    console.print(f"Surveying [bold]{tree}[/] on PostgreSQL and Valkey of our own, with two workers.")
    with development.deployment([_MODULE]) as environment:
        settings = _settings(environment)
        migrations.migrate(client.configure(settings).database)
        client.deploy(source_survey)
        log = report_file.with_suffix(".log").open("w", encoding="utf-8")
        with log, development.running(_COMMANDS, environment, grace=settings.grace + _MARGIN, echo=log):
            started = source_survey.start(directory=str(tree))
            killed = _watch(started)
            return _conclude(started, killed, tree, report_file)


def _settings(environment: dict[str, str]) -> Settings:
    environment |= {"FLOWFORGE_LEASE": str(_LEASE), "FLOWFORGE_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return Settings.from_env({**os.environ, **environment})


def _watch(run: Run) -> str | None:
    """Show the progress until the run has ended; halfway kill a worker that owns a lease. Return what was killed."""
    killed = None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("waiting for the workers", total=len(source_survey.tasks))
        while not run.state.ended:
            tasks = run.tasks()
            done = sum(task.state in TASK_TERMINAL for task in tasks)
            running = [task for task in tasks if task.state == TaskState.RUNNING]
            progress.update(bar, completed=done, description=_doing(running))
            reading = [task for task in running if task.key.startswith("read_share")]
            if killed is None and done >= len(tasks) / 2 and reading and (killed := _kill(run, reading)):
                progress.console.print(f"[bold red]SIGKILL[/] for worker process {killed}, which owns a lease")
            time.sleep(_LOOK_EVERY)
        progress.update(bar, completed=len(source_survey.tasks), description="done")
    return killed


def _doing(running: list[insights.TaskSummary]) -> str:
    return ", ".join(task.key for task in running[:4]) or "waiting"


def _kill(run: Run, owned: list[insights.TaskSummary]) -> str | None:
    """Kill the process that owns the first of these leases, by its pid in the owner's name, if it still owns any."""
    owner = owned[0].lease_owner or ""
    pid = int(owner.split(":")[1])
    os.kill(pid, signal.SIGSTOP)  # what it has sent is answered soon; what it owns after that it owns when it dies
    time.sleep(_ANSWERED)
    owns = owner in {task.lease_owner for task in run.tasks()}
    os.kill(pid, signal.SIGKILL if owns else signal.SIGCONT)
    return owner if owns else None


def _conclude(run: Run, killed: str | None, tree: Path, report_file: Path) -> int:
    """Write the report, say what came of it, and judge."""
    tasks = run.tasks()
    recovered = [event for event in run.events() if event.kind in _RECOVERED]
    _print_times(tasks)
    for event in recovered:
        console.print(f"recovered: [bold]{event.task}[/] ran again as attempt {event.attempt}")
    if run.state != RunState.SUCCEEDED:
        console.print(f"[bold red]the run {run.state}[/]")
        return 1
    steps = _steps(tasks)
    report_file.write_text(report.render(run.result(merge), title=str(tree), took=steps), encoding="utf-8")
    console.print(f"[green]check:[/] {run.result(check)}\nreport: [bold]{report_file.resolve()}[/]")
    return 0 if not killed or recovered else 1


def _steps(tasks: list[insights.TaskSummary]) -> list[report.Step]:
    ran = [task for task in tasks if task.started_at and task.finished_at]
    first = min(task.started_at for task in ran if task.started_at)
    return [
        report.Step(task.key, (task.started_at - first).total_seconds(), _seconds(task), task.attempt)
        for task in ran
        if task.started_at
    ]


def _seconds(task: insights.TaskSummary) -> float:
    return (task.finished_at - task.started_at).total_seconds() if task.started_at and task.finished_at else 0.0


def _print_times(tasks: list[insights.TaskSummary]) -> None:
    """Say where the time went: the shares together, the other tasks one by one."""
    shares = [task for task in tasks if task.key.startswith("read_share")]
    others = [task for task in tasks if task not in shares]
    console.print("\nwhere the time went")
    console.print(f"  {len(shares)} shares together {sum(map(_seconds, shares)):6.2f} s")
    for task in others:
        console.print(f"  {task.key:<19} {_seconds(task):6.2f} s")
