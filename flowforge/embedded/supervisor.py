"""
Keep programs running: start them, start them again when they exit, end them in an orderly way.

One program's death never touches another, and no process outlives the supervisor, however that ends (on Linux;
elsewhere, unless it is killed).
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, TextIO

from flowforge.embedded.program import Child, Program
from flowforge.errors import refuse_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Program", "Supervisor"]

#: Seconds between two looks at the children.
_LOOK_EVERY = 0.1


class Supervisor:
    """Runs programs, each in a process group of its own, until told to stop."""

    def __init__(self, programs: Iterable[Program], *, grace: float = 10.0, echo: TextIO | None = None) -> None:
        """
        Prepare, without starting.

        Args:
            programs: What to run; ValueError if two share a name.
            grace: Seconds between SIGTERM and SIGKILL.
            echo: Where to write the programs' output, each line behind the program's name; None: they inherit ours.

        """
        self._children = [Child(program, grace, echo) for program in programs]
        self._requests = 0
        names = Counter(child.program.name for child in self._children)
        if twice := [name for name, count in names.items() if count > 1]:
            message = f"two programs share a name: {', '.join(twice)}"
            raise ValueError(message)

    @property
    def running(self) -> dict[str, int]:
        """The process id of each program that runs."""
        processes = [(child.program.name, child.process) for child in self._children]
        return {name: process.pid for name, process in processes if process}

    def stop(self) -> None:
        """Ask `run` to end, from any thread; a second request kills at once."""
        self._requests += 1

    def run(self) -> int:
        """
        Run the programs until `stop` or, in the main thread, SIGTERM or SIGINT.

        Return 0 when all ended by themselves, 1 when one had to be killed. Linux takes the calling thread for the
        programs' parent, so they end with it. UnsupportedPlatform on Windows.
        """
        refuse_windows("a supervisor of processes")
        with self._stopped_by_signals():
            try:
                self._keep_running()
                self._end()
            finally:
                for child in self._children:
                    child.close()
        return int(any(child.killed for child in self._children))

    def _keep_running(self) -> None:
        while not self._requests:
            for child in self._children:
                child.look()
                child.start_if_due()
            time.sleep(_LOOK_EVERY)

    def _end(self) -> None:
        for child in self._children:
            child.ask_to_end()
        while self.running:
            for child in self._children:
                if self._requests > 1:
                    child.kill()
                child.look()
            time.sleep(_LOOK_EVERY)

    @contextlib.contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT for `stop`; only the main thread may set handlers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, lambda *_: self.stop()) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
