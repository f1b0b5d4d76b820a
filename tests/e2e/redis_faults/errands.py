"""Workflows of one short task, of which many are under way at once; worker processes import this module."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import dramatiq

from flowforge import Context, Retry, Workflow


@dataclass(frozen=True)
class Seconds:
    """How long a task takes."""

    n: float = 0


@dataclass(frozen=True)
class File:
    """Where to say something."""

    file: str


errand = Workflow("errand", Seconds)
elsewhere = Workflow("elsewhere")
patient = Workflow("patient")


@errand.task
def run(n: float, context: Context) -> None:
    if n:
        context.progress(0, n, "seconds")
        time.sleep(n)


@elsewhere.task(queue="elsewhere")
def run_elsewhere() -> None: ...


@patient.task(retry=Retry(attempts=2, delay="2h", max_delay="3h"))
def succeed_later(context: Context) -> None:
    if context.attempt == 1:
        raise ValueError("come back in two hours")


@dramatiq.actor(queue_name="own", max_retries=0)
def own(file: str) -> None:
    """An actor of the user's own."""
    Path(file).touch()
