"""
A program and its process: start it, notice its exit, end it together with all that it started.

A process counts as running until its whole process group is gone, so that a restart never doubles the load.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, TextIO

from flowforge.embedded import guardian

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

#: Seconds until a program that exited is started again: the first time, and at most. It doubles with every exit.
_FIRST_DELAY, _MAX_DELAY = 0.5, 30.0
#: A program that lived as many seconds begins again with the first delay.
_SETTLED = 30.0


@dataclass(frozen=True)
class Program:
    """A command to keep running, without a shell; `environment` is laid over our own."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A program under supervision."""

    def __init__(self, program: Program, grace: float, echo: TextIO | None) -> None:
        """Prepare; `grace` in seconds, between SIGTERM and SIGKILL."""
        self.program = program
        self.process: subprocess.Popen[str] | None = None
        #: Whether SIGKILL was needed, since the last start or request to end.
        self.killed = False
        self._grace, self._echo = grace, echo
        self._copier: threading.Thread | None = None
        self._exit_noted = False
        self._delay, self._started_at, self._start_at, self._kill_at = _FIRST_DELAY, 0.0, 0.0, math.inf

    def start_if_due(self) -> None:
        """Start the program if it does not run and its delay is over."""
        if self.process is None and time.monotonic() >= self._start_at:
            self._started_at = time.monotonic()
            try:
                self._start()
            except OSError as error:  # no memory or no process left: may pass, and is no reason to stop the others
                logger.warning("program.not_started name=%s error=%r", self.program.name, str(error))
                self._postpone()

    def ask_to_end(self) -> None:
        """Send SIGTERM to the process alone (it knows how to end its own), SIGKILL to its group after the grace."""
        self.killed, self._kill_at = False, time.monotonic() + self._grace
        if self.process:
            self.process.terminate()

    def kill(self) -> None:
        """Kill the whole group at the next look."""
        self._kill_at = 0.0

    def look(self) -> None:
        """Notice an exit, end what it left behind; forget the process when nothing of it is left."""
        if self.process is None:
            return
        exited = self.process.poll() is not None
        if exited and not self._exit_noted:
            self._note_exit(self.process)
        if time.monotonic() >= self._kill_at:
            self.killed = self._signal_group(self.process, signal.SIGKILL) or self.killed
        if exited and (self.killed or not self._group_lives(self.process)):
            self.process, self._kill_at = None, math.inf

    def close(self) -> None:
        """Kill what is left, and see the last lines of output written."""
        if self.process:
            self._signal_group(self.process, signal.SIGKILL)
        if self._copier:
            self._copier.join(1)

    def _start(self) -> None:
        owner, ending = str(os.getpid()), str(int(signal.SIGTERM))
        unbuffered = {"PYTHONUNBUFFERED": "1"} if self._echo else {}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, "become", owner, ending, *self.program.command],
            env={**os.environ, **unbuffered, **self.program.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._echo else None,
            stderr=subprocess.STDOUT if self._echo else None,
            text=True,
            errors="replace",
            process_group=0,
        )
        self.killed = self._exit_noted = False
        logger.info("program.started name=%s pid=%s", self.program.name, self.process.pid)
        if self._echo and self.process.stdout:
            arguments = (self.process.stdout, f"{self.program.name} | ", self._echo)
            self._copier = threading.Thread(target=_copy, args=arguments, daemon=True)
            self._copier.start()

    def _note_exit(self, process: subprocess.Popen[str]) -> None:
        self._exit_noted = True
        end = _describe(process.returncode)
        logger.info("program.exited name=%s pid=%s %s", self.program.name, process.pid, end)
        self._postpone()
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace)
        self._signal_group(process, signal.SIGTERM)

    def _postpone(self) -> None:
        """Set the time of the next start, and a longer delay for the one after it."""
        now = time.monotonic()
        if now - self._started_at >= _SETTLED:
            self._delay = _FIRST_DELAY
        self._start_at, self._delay = now + self._delay, min(2 * self._delay, _MAX_DELAY)

    def _group_lives(self, process: subprocess.Popen[str]) -> bool:
        # As process 1 of a container we are the parent of orphans, and must not take their remains for life.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-process.pid, os.WNOHANG)
        return self._signal_group(process, 0)

    @staticmethod
    def _signal_group(process: subprocess.Popen[str], number: int) -> bool:
        """Signal all of the process group; tell whether there was anyone."""
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _describe(code: int) -> str:
    return f"code={code}" if code >= 0 else f"signal={-code}"


def _copy(source: IO[str], prefix: str, target: TextIO) -> None:
    """Write each line behind the prefix, in one piece, until the last writer is gone."""
    with source:
        for line in source:
            target.write(prefix + line.removesuffix("\n") + "\n")
            target.flush()
