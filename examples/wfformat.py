"""
Replay a recorded scientific workflow: its tasks, in its order, each sleeping for its recorded runtime divided by N.

    python examples/wfformat.py montage.json --speed 500

FILE is WfFormat 1.5 JSON (https://github.com/wfcommons/WfFormat), in which runs of Pegasus, Nextflow and Makeflow are
published; https://github.com/wfcommons/WfInstances has hundreds. The recorded runtimes are stored with the workflow and
the speed is the run's parameter, so one version serves every speed. Exit code 0 only if the run succeeded, 2 if the
file or the settings cannot be used, 130 after Ctrl-C.

Where DATABASE_URL is unset, PostgreSQL and Valkey are started here and are gone afterwards. Where it is set, it and
REDIS_URL name servers of yours that `flowforge migrate` has prepared. Either way a scheduler and `--workers` workers
run for as long as the replay. Its tasks have a queue of their own, named like the workflow, so that these workers and
those that you have do not meet. An interrupted run stays on your servers; the next replay of the file continues it.

`--workers 0` starts no process. Then run these yourself:

    export PYTHONPATH=examples FLOWFORGE_MODULES=wfformat WFFORMAT_FILES=montage.json
    flowforge scheduler
    flowforge worker --threads 32 --queues wfformat.montage

Workers import this file as the module `wfformat`: it then has one workflow for each file in WFFORMAT_FILES, separated
as in PATH.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import re
import shlex
import sys
import tempfile
import textwrap
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import redis
from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flowforge import FlowForgeError, Settings, Workflow, configure, insights, migrations
from flowforge.embedded import development
from flowforge.errors import did_you_mean
from flowforge.states import RunState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flowforge import Run

RET_FAILED, RET_CANNOT_START, RET_INTERRUPTED = 1, 2, 130

_LOOK_EVERY = 0.2  # seconds
_NO_WORKER_AFTER = 30.0  # seconds in which one of our workers must have taken a task
_MARGIN = 5.0  # seconds that a worker may take to end beyond the grace of its attempts
_LAST_LINES = 20

console = Console(highlight=False)


# The file ------------------------------------------------------------------------------------------------------------


class WfFormatError(ValueError):
    """A file cannot be replayed. The message names file, field, value and remedy."""

    def __init__(self, file: Path, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{file}: {field}: {problem}: {remedy}" if field else f"{file}: {problem}: {remedy}")
        self.file, self.field = file, field


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Specified(_Part):
    id: str
    parents: list[str]


class _Executed(_Part):
    id: str
    seconds: float = Field(alias="runtimeInSeconds", ge=0, allow_inf_nan=False)


class _File(_Part):
    version: Literal["1.5"] = Field(alias="schemaVersion")
    specified: list[_Specified] = Field(min_length=1, validation_alias=AliasPath("workflow", "specification", "tasks"))
    executed: list[_Executed] = Field(validation_alias=AliasPath("workflow", "execution", "tasks"))


@dataclass(frozen=True)
class Recording:
    """A recorded workflow; both mappings have every task's id, parents before their children."""

    name: str
    parents: Mapping[str, frozenset[str]]
    seconds: Mapping[str, float]

    @property
    def edges(self) -> int:
        """How often one task waits for another."""
        return sum(map(len, self.parents.values()))

    @property
    def sequential(self) -> float:
        """Seconds that the tasks take one after the other."""
        return sum(self.seconds.values())

    @property
    def critical_path(self) -> float:
        """Seconds that the slowest chain of tasks takes: no number of workers can do it faster."""
        ends: dict[str, float] = {}
        for task, parents in self.parents.items():
            ends[task] = self.seconds[task] + max((ends[parent] for parent in parents), default=0.0)
        return max(ends.values())


_TASKS, _RUNTIMES = "workflow.specification.tasks", "workflow.execution.tasks"
_REMEDIES = {
    "schemaVersion": "only WfFormat 1.5 is read: convert the file with the tools of github.com/wfcommons/WfFormat",
    "runtimeInSeconds": "give the task's recorded runtime, 0 seconds or more",
    "execution": "give the recorded runtimes: a specification alone cannot be replayed",
    "specification": "give each task an id and the list of its parents, as WfFormat 1.5 has them",
}
_WHAT_TO_GIVE = "give a WfFormat 1.5 file"


def read(file: Path) -> Recording:
    """Read a WfFormat 1.5 file. Raises `WfFormatError`."""
    try:
        content = _File.model_validate_json(file.read_bytes())
    except OSError as error:
        raise WfFormatError(file, "", f"cannot be read ({error.strerror})", "give the path of a file") from None
    except ValidationError as error:
        raise _first(file, error) from None
    parents = _by_id(file, _TASKS, ((task.id, frozenset(task.parents)) for task in content.specified))
    seconds = _by_id(file, _RUNTIMES, ((task.id, task.seconds) for task in content.executed))
    _check_same(file, parents, seconds)
    order = _sorted(file, parents)
    name = ("wfformat." + re.sub(r"[^a-z0-9._-]", "-", file.stem.lower()))[:63]
    return Recording(name, {task: parents[task] for task in order}, {task: seconds[task] for task in order})


def _first(file: Path, error: ValidationError) -> WfFormatError:
    """Say the first problem that pydantic found."""
    problem = error.errors()[0]
    if problem["type"] == "json_invalid":
        return WfFormatError(file, "", f"not JSON ({problem['ctx']['error']})", _WHAT_TO_GIVE)
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    got = "missing" if problem["type"] == "missing" else problem["msg"]
    remedy = next((_REMEDIES[part] for part in reversed(problem["loc"]) if part in _REMEDIES), _WHAT_TO_GIVE)
    return WfFormatError(file, field, f"{got} (in {textwrap.shorten(repr(problem['input']), 80)})", remedy)


def _by_id(file: Path, field: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for task, value in pairs:
        if task in found:
            raise WfFormatError(file, field, f"two tasks have the id {task!r}", "give each an id of its own")
        found[task] = value
    return found


def _check_same(file: Path, parents: Mapping[str, frozenset[str]], seconds: Mapping[str, float]) -> None:
    """See that every parent is a task, and that exactly the tasks have runtimes."""
    for task, named in parents.items():
        if unknown := sorted(named - parents.keys()):
            problem = f"task {task!r} has the parent {unknown[0]!r}, which is no task"
            remedy = f"correct the parent{did_you_mean(unknown[0], parents)}, or add the task"
            raise WfFormatError(file, _TASKS, problem, remedy)
        if task not in seconds:
            problem = f"no runtimeInSeconds for task {task!r}"
            raise WfFormatError(file, _RUNTIMES, problem, _REMEDIES["runtimeInSeconds"])
    if unknown := [task for task in seconds if task not in parents]:
        problem = f"{unknown[0]!r} has a runtime, but is not among {_TASKS}"
        raise WfFormatError(file, _RUNTIMES, problem, f"remove it{did_you_mean(unknown[0], parents)}, or add the task")


def _sorted(file: Path, parents: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the tasks with parents first; the same order each time."""
    try:
        return list(TopologicalSorter({task: sorted(named) for task, named in parents.items()}).static_order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise WfFormatError(file, _TASKS, f"the tasks wait for each other: {circle}", "remove one parent") from None


# The workflow ---------------------------------------------------------------------------------------------------------

Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Replay:
    """A replay's parameters."""

    speed: Speed = 1.0


def sleep(seconds: float, speed: Speed) -> None:
    time.sleep(seconds / speed)


def build(recording: Recording) -> Workflow[...]:
    """Return the workflow of a recording."""
    workflow = Workflow(recording.name, Replay, description="A recorded workflow, replayed")
    tasks: dict[str, Any] = {}
    for name, parents in recording.parents.items():
        tasks[name] = workflow.task(
            sleep,
            key=key_of(name),
            inputs={"seconds": recording.seconds[name]},
            after=[tasks[parent] for parent in sorted(parents)],
            timeout="365d",
            queue=recording.name,
        )
    return workflow


def key_of(name: str) -> str:
    """
    Return the key of a task: its id, where that is possible.

    Any other id has what is not allowed replaced, and a digest of the whole behind it that keeps it apart.
    """
    if re.fullmatch(r"[A-Za-z0-9_.:-]{1,200}", name) and name != "speed":  # the parameter's name is taken
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_.:-]', '_', name)[:160]}:{digest[:32]}"


# The replay -----------------------------------------------------------------------------------------------------------


def main() -> int:
    """Replay one file; return the exit code."""
    options = _options()
    try:
        recording = read(options.file)
        with _servers() as environment, _processes(environment, recording.name, options) as log:
            return _replay(recording, options, log)
    except KeyboardInterrupt:
        return RET_INTERRUPTED
    except (WfFormatError, FlowForgeError, redis.RedisError) as error:
        print(f"error: {str(error).strip()}", file=sys.stderr)
        return RET_CANNOT_START


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().partition("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="WfFormat 1.5 JSON")
    parser.add_argument("--speed", type=_positive, default=1.0, metavar="N", help="how much faster than recorded")
    parser.add_argument("--workers", type=int, default=2, metavar="W", help="worker processes; 0: you run them (2)")
    parser.add_argument("--threads", type=int, default=32, metavar="T", help="threads of each: tasks only sleep (32)")
    options = parser.parse_args()
    if options.workers < 0 or options.threads < 1:
        parser.error("--workers must be 0 or more, --threads 1 or more")
    return options


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0, for example 100")


@contextmanager
def _servers() -> Iterator[dict[str, str]]:
    """Give the environment of our processes: on the servers of DATABASE_URL, or else on some of our own."""
    if os.environ.get("DATABASE_URL"):
        migrations.check(configure(Settings.from_env().require("redis_url")).database)
        yield {}
        return
    with development.deployment([]) as environment:
        migrations.migrate(configure(Settings.from_env({**os.environ, **environment})).database)
        yield environment


@contextmanager
def _processes(environment: Mapping[str, str], queue: str, options: argparse.Namespace) -> Iterator[Path]:
    """Run scheduler and workers beside the block; give their log. None of them is left after it."""
    ours = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
        "FLOWFORGE_MODULES": "wfformat",
        "FLOWFORGE_QUEUES": queue,
        "FLOWFORGE_THREADS": str(options.threads),
        "FLOWFORGE_GRACE": "1",  # a sleeper loses nothing by starting again
        "WFFORMAT_FILES": str(options.file.resolve()),
    }
    python = shlex.quote(sys.executable)
    commands = {f"worker.{number}": f"{python} -m flowforge.actors" for number in range(options.workers)}
    if commands:
        commands["scheduler"] = f"{python} -m flowforge.scheduler"
    with (
        tempfile.TemporaryDirectory() as scratch,
        Path(scratch, "log").open("w", encoding="utf-8") as log,
        development.running(commands, {**environment, **ours}, grace=1 + _MARGIN, echo=log),
    ):
        yield Path(log.name)


def _replay(recording: Recording, options: argparse.Namespace, log: Path) -> int:
    run = build(recording).start(speed=options.speed)
    console.print(f"{recording.name}: run {run.id} at {options.speed:g} times the recorded speed", soft_wrap=True)
    try:
        _watch(run, len(recording.parents), patience=_NO_WORKER_AFTER if options.workers else math.inf)
    except TimeoutError as error:
        said = log.read_text(encoding="utf-8").splitlines()[-_LAST_LINES:]
        print(f"error: {error} The processes said:", *said, sep="\n", file=sys.stderr)
        return RET_FAILED
    return _report(recording, run, options)


def _watch(run: Run, total: int, *, patience: float) -> None:
    """Show the progress until the run has ended. TimeoutError if none of its tasks is taken within `patience`."""
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("waiting for a worker", total=total)
        while True:
            summary = _summary(run)
            running = summary.tasks.get("running", 0)
            progress.update(bar, completed=summary.tasks.get("succeeded", 0), description=f"{running} running")
            if RunState(summary.state).ended:
                progress.update(bar, description=summary.state)
                return
            if summary.started_at is None and time.monotonic() - began > patience:
                raise TimeoutError(f"No worker took a task within {patience:g} s.")
            time.sleep(_LOOK_EVERY)


def _summary(run: Run) -> insights.RunSummary:
    summary = insights.run_summary(run.organization, run.id)
    assert summary is not None
    return summary


def _report(recording: Recording, run: Run, options: argparse.Namespace) -> int:
    """Print the figures; return the exit code."""
    summary = _summary(run)
    assert summary.started_at
    assert summary.finished_at
    wall = (summary.finished_at - summary.started_at).total_seconds()
    sequential, critical = recording.sequential / options.speed, recording.critical_path / options.speed
    figures = {
        "run": f"{run.id} {summary.state}",
        "tasks": f"{len(recording.parents)}",
        "edges": f"{recording.edges}",
        "wall time": f"{wall:.2f} s, from the first claim to the end",
        "critical path/N": f"{critical:.2f} s: no number of workers is faster",
        "sequential/N": f"{sequential:.2f} s",
        "speed-up": f"{sequential / wall:.1f} times faster than one task after the other",
    }
    for name, figure in figures.items():
        console.print(f"{name:<16} {figure}")
    return 0 if summary.state == RunState.SUCCEEDED else RET_FAILED


if __name__ == "__main__":
    sys.exit(main())

for _file in filter(None, os.environ.get("WFFORMAT_FILES", "").split(os.pathsep)):
    _built = build(read(Path(_file)))
    globals()[_built.name] = _built  # a worker looks for workflows among a module's names
