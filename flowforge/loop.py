"""
A thread that takes one turn after another, and says so when a turn fails instead of dying in silence.

`flowforge.watch` ends the process when such a thread is dead all the same, or is stuck in a turn.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds after a turn that failed


class Loop(threading.Thread):
    """
    Calls `turn` until `stop`. A turn waits for its own work, and returns.

    A failed turn is logged at most once per pause; the pause doubles up to five seconds while turns go on failing.
    """

    def __init__(self, name: str, turn: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._turn, self._stopped, self._pause = turn, threading.Event(), _FIRST_PAUSE
        #: When the last turn ended, well or not, on the monotonic clock; a turn that is long by nature may set it too.
        self.beat = time.monotonic()

    def run(self) -> None:
        """Take turns."""
        try:
            while not self._stopped.is_set():
                self._take_turn()
        except BaseException:
            logger.critical("loop.died loop=%s", self.name, exc_info=True)

    def _take_turn(self) -> None:
        try:
            self._turn()
            self._pause = _FIRST_PAUSE
        except Exception:
            logger.exception("loop.turn_failed loop=%s pause=%.1f", self.name, self._pause)
            self._stopped.wait(self._pause)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        self.beat = time.monotonic()

    def stop(self, timeout: float | None = None) -> None:
        """Let the present turn be the last, and wait for it."""
        self._stopped.set()
        self.join(timeout)
