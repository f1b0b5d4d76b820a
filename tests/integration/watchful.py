"""A workflow whose task says when it was told to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from flowforge import Context, Workflow


@dataclass(frozen=True)
class Parameters:
    """Where to say it."""

    file: str


watchful = Workflow("watchful", Parameters)
quick = Workflow("quick")


@watchful.task
def watch(file: str, context: Context) -> None:
    if context.attempt > 1:
        return
    until = time.monotonic() + 60
    while not context.cancelled and time.monotonic() < until:
        time.sleep(0.01)
    Path(file).write_text(f"{time.time()}\n")


@quick.task
def nothing() -> None: ...
