"""
A server process that lives from `start` to `stop`, and never longer than this process: `guardian` holds it.

Its URL stays the same over `kill`, `restart` and `start`; without a directory its data is temporary and goes at `stop`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

from flowforge.embedded import guardian, wheels
from flowforge.errors import FlowForgeError, refuse_windows

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds until a started server must answer, and between two looks.
_PATIENCE, _LOOK_EVERY = 60.0, 0.02
#: A parent for sockets: their paths have room for 107 bytes; nothing in it needs quoting.
_SHORT = re.compile(r"[\w./-]{1,60}", re.ASCII)
#: Linux's, and the bytes that a server of tests may need there.
_MEMORY, _ROOM = Path("/dev/shm"), 4 * 2**30  # noqa: S108 - a fresh private directory in it
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class ServerFailed(FlowForgeError):  # noqa: N818 - says what happened
    """A server ended while starting, or did not answer in time. The message shows the end of its log."""

    def __init__(self, name: str, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        super().__init__("\n".join([f"{name} did not start; {log} ends with:", *lines[-20:]]))
        self.name, self.log = name, log


class Server(ABC):
    """A server process; also a context manager that starts and stops it. Not for use by several threads at once."""

    #: Names the data directory and the log.
    name: ClassVar[str]

    def __init__(
        self, directory: Path | None = None, options: Mapping[str, str] = _NO_OPTIONS, *, place: Path | None = None
    ) -> None:
        """
        Prepare, without starting.

        Args:
            directory: Where to keep data (`NAME/`) and log (`NAME.log`); None: a temporary one.
            options: Settings of the server, beside ours or instead of them.
            place: Where to make the temporary one, such as `memory()`; None: where the system makes its own.

        """
        self.directory = directory and directory.absolute()
        self.options, self._place = dict(options), place
        #: Process id of the server; 0 when stopped.
        self.pid = 0
        self._guardian: subprocess.Popen[str] | None = None
        self._scratch: Path | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where to connect, from the first `start` to `stop`; RuntimeError outside of it."""

    @property
    def running(self) -> bool:
        """Whether the server process lives."""
        return self._guardian is not None and self._guardian.poll() is None

    def start(self) -> Self:
        """
        Start the server unless it runs; return when it answers.

        ServerFailed if it does not, within 60 s; UnsupportedPlatform on Windows.
        """
        refuse_windows(f"the embedded {self.name} server")
        if self.running:
            return self
        try:
            self._launch()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut the server down, killing it after 10 s, and delete what is temporary. Harmless when stopped."""
        self._end("stop")
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def kill(self) -> None:
        """End the server as a crash does: at once. What was on disk is there at the next `start`."""
        self._end("kill")

    def restart(self) -> Self:
        """Shut the server down and start it again, with its data, on the same URL."""
        self._end("stop")
        return self.start()

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    @property
    def scratch(self) -> Path:
        """A directory with a short name, for this server alone, from the first `start` to `stop`."""
        if self._scratch is None:
            message = f"{self.name} is not started"
            raise RuntimeError(message)
        return self._scratch

    @property
    def data(self) -> Path:
        """The server's data directory, in which it runs."""
        return (self.directory or self.scratch) / self.name

    @abstractmethod
    def order(self) -> guardian.Order:
        """Return what the guardian shall hold."""

    @abstractmethod
    def ready(self) -> bool:
        """Tell whether our process, and no other, answers."""

    def _launch(self) -> None:
        self._end("stop")  # what is left of a server that ended by itself
        self._scratch = self._scratch or _short_directory(self._place)
        if not self.data.exists():
            self.data.mkdir(mode=0o700, parents=True)
            wheels.give(self.data)
        with self._log.open("ab") as log:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, "hold", json.dumps(self.order()._asdict())],
                cwd=self.data,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # out of reach of a terminal's Ctrl-C
            )
        self.pid = int(self._guardian.stdout.readline() or 0) if self._guardian.stdout else 0

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + _PATIENCE
        while not self.ready():
            if not self.running or time.monotonic() > end:
                raise ServerFailed(self.name, self._log)
            time.sleep(_LOOK_EVERY)

    def _end(self, word: str) -> None:
        """Give the guardian its last word; return when server and guardian are gone."""
        if self._guardian is not None:
            self._guardian.communicate(f"{word}\n")
            self._guardian, self.pid = None, 0

    @property
    def _log(self) -> Path:
        return self.data.with_suffix(".log")


def memory() -> Path | None:
    """
    Return a directory that is in memory, if there is one with room for a server's data.

    A database is copied there in 10 ms, and on a disk in 100.
    """
    try:
        there = os.statvfs(_MEMORY)
    except (OSError, AttributeError):  # not on Linux
        return None
    fits = there.f_bavail * there.f_frsize >= _ROOM and not there.f_flag & os.ST_NOEXEC
    return _MEMORY if fits and os.access(_MEMORY, os.W_OK) else None


def _short_directory(place: Path | None) -> Path:
    """Create a temporary directory that the server's account owns and can reach."""
    place = place or Path(tempfile.gettempdir())
    if not _SHORT.fullmatch(str(place)) or not wheels.reachable(place):
        place = Path("/tmp")  # noqa: S108 - a fresh private directory in it
    directory = Path(tempfile.mkdtemp(prefix="flowforge-", dir=place))
    wheels.give(directory)
    return directory
