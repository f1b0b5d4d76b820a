"""
How long a server may stay silent before its connection is cut.

No option of libpq ends a statement that a stalled proxy or a frozen server has swallowed: the kernel at the other end
goes on to acknowledge. So a thread looks at the statements under way, and shuts the sockets of those that are overdue.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import psycopg2

from flowforge.loop import Loop

if TYPE_CHECKING:
    from types import TracebackType

_TICK = 0.5  # seconds between looks


class Silent(Protocol):
    """A connection that may wait for an answer."""

    #: Whether it was cut because none came.
    cut: bool

    def fileno(self) -> int:
        """Return its socket's file descriptor."""


class _Watch:
    """The statements under way, and the loop that looks at them: it starts with the first, and does not stop."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.overdue_at: dict[Silent, float] = {}
        self.loop = Loop("flowforge-patience", self._look)

    def start(self) -> None:
        """Start the loop, unless that was done."""
        if self.loop.ident is None:
            self.loop.start()

    def _look(self) -> None:
        time.sleep(_TICK)
        now = time.monotonic()
        with self.lock:  # while it is held no statement ends, so that each socket is still the statement's own
            for connection, overdue_at in self.overdue_at.items():
                if overdue_at <= now and not connection.cut:
                    connection.cut = True
                    _shut(connection)


_watch = _Watch()


def loops() -> list[Loop]:
    """Return the loop that looks, once it was started: without it a statement may wait for ever."""
    return [_watch.loop] if _watch.loop.ident else []


def _shut(connection: Silent) -> None:
    """End what waits for a connection's socket, unless it is closed by now; to close it is its owner's."""
    with suppress(OSError, psycopg2.Error):
        shared = socket.socket(fileno=connection.fileno())
        try:
            shared.shutdown(socket.SHUT_RDWR)
        finally:
            shared.detach()


def _renew() -> None:
    global _watch  # noqa: PLW0603 - a forked child has no thread of its parent's, and maybe a lock that is held for ever
    _watch = _Watch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class Patience:
    """A block in which an answer is awaited on a connection, for at most so many seconds."""

    def __init__(self, connection: Silent, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds

    def __enter__(self) -> None:
        """Begin to wait."""
        self._watch = _watch
        with self._watch.lock:
            self._watch.start()
            self._watch.overdue_at[self._connection] = time.monotonic() + self._seconds

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wait no more."""
        with self._watch.lock:
            self._watch.overdue_at.pop(self._connection, None)
