"""A workflow whose every start is noted in a file, which no server can lose; worker processes import this module."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from flowforge import Context, Retry, Workflow
from flowforge.states import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flowforge import Run

#: For a worker that is to keep the ledger.
LEDGER = {"FLOWFORGE_MODULES": "tests.e2e.postgres_faults.ledger"}
#: A lost worker costs nothing here: how often it happens is up to the test.
_STURDY = Retry(attempts=3, delay="50ms", lost=50)


@dataclass(frozen=True)
class Entry:
    """Where to note, and for how many seconds the first task works."""

    file: str
    seconds: float = 0.0


ledger = Workflow("ledger", Entry)


def note(file: str, context: Context) -> None:
    """Append a line in one write, as several processes may."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{context.task_run_id} {context.token}\n".encode())
    os.close(descriptor)


@ledger.task(retry=_STURDY)
def first(file: str, seconds: float, context: Context) -> int:
    note(file, context)
    time.sleep(seconds)
    return 1


@ledger.task(retry=_STURDY)
def fails_once(file: str, context: Context) -> int:
    note(file, context)
    if context.attempt == 1:
        raise ValueError("once")
    return 1


@ledger.task(retry=_STURDY)
def second(first: int, file: str, context: Context) -> int:
    note(file, context)
    return first


@ledger.task(retry=_STURDY)
def last(second: int, fails_once: int, file: str, context: Context) -> int:
    note(file, context)
    return second + fails_once


def check(runs: Sequence[Run], file: Path) -> None:
    """Assert that these runs succeed, and that of none of their task runs anything began after its accepted outcome."""
    assert {run.wait(timeout=60) for run in runs} == {RunState.SUCCEEDED}
    began = starts(file)
    for task in chain.from_iterable(run.tasks() for run in runs):
        tokens = began[str(task.id)]
        assert (max(tokens), tokens.count(task.fencing_token)) == (task.fencing_token, 1)


def starts(file: Path) -> dict[str, list[int]]:
    """Return the tokens at which each task run was begun."""
    began = defaultdict[str, list[int]](list)
    for line in file.read_text().splitlines():
        task_run, token = line.split()
        began[task_run].append(int(token))
    return began
