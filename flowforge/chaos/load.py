"""Starting the load: a fixed mix, spread over the time, with now and then a decision about a run."""

from __future__ import annotations

import logging
import random
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flowforge import client
from flowforge.chaos import workflows
from flowforge.chaos.effects import QUEUE
from flowforge.errors import CannotCancel, CannotPause, CannotRerun, RowLocked
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import Paused

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from flowforge.client import Prepared, Run, Workflow

logger = logging.getLogger(__name__)

_MIX: tuple[tuple[Workflow[Any], int], ...] = (
    (workflows.single, 6),
    (workflows.chain, 2),
    (workflows.join, 2),
    (workflows.fan_out, 1),
    (workflows.flaky, 2),
    (workflows.failing, 2),
)
#: Task runs of one bundle of the mix.
BUNDLE = sum(len(workflow.tasks) * times for workflow, times in _MIX)
_REMEMBERED = 200  # runs that a decision may be about
_REFUSED = (CannotCancel, CannotPause, CannotRerun, RowLocked)


class Load:
    """Starts bundles of runs, and decides about some of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - to be replayed
        self._latest: deque[Run] = deque(maxlen=_REMEMBERED)
        self._paused: list[Run] = []
        self.runs = self.task_runs = 0

    def start(self) -> None:
        """Start one bundle in one transaction."""
        prepared: list[Prepared] = []
        for workflow, times in _MIX:
            prepared += [workflow.prepare(n=self.runs + len(prepared) + number) for number in range(times)]
        self._latest.extend(workflows.single.start_many(prepared))
        self.runs += len(prepared)
        self.task_runs += BUNDLE

    def decide(self) -> str:
        """Cancel, pause, resume or rerun a run, as the dice fall; return what was done, or why it was refused."""
        if not self._latest:
            return "nothing"
        run, word = self._random.choice(list(self._latest)), self._random.choice(["cancel", "now", "rerun", "pause"])
        try:
            return f"{word} {run.id}: {self._decide(run, word)}"
        except _REFUSED as refusal:
            return f"{word} {run.id}: refused: {refusal}"

    def _decide(self, run: Run, word: str) -> object:
        if word == "rerun":
            return run.rerun(reason="chaos")
        if word == "pause":
            self._paused.append(run)
            return run.pause(reason="chaos")
        return run.cancel(reason="chaos", now=word == "now")

    def hold_up(self) -> None:
        """Pause the whole queue."""
        client.pause(Paused.QUEUE, QUEUE, reason="chaos")

    def go_on(self) -> None:
        """Resume the queue."""
        client.resume(Paused.QUEUE, QUEUE)

    def abandon(self, runs: Iterable[UUID]) -> None:
        """Cancel what is left of this load."""
        for id_ in runs:
            with suppress(*_REFUSED):
                client.Run(id_, DEFAULT_ORGANIZATION).cancel(reason="chaos was interrupted", now=True)

    def calm(self) -> None:
        """Lift every pause that this load has made."""
        self.go_on()
        while self._paused:
            self._paused[-1].resume()
            self._paused.pop()
