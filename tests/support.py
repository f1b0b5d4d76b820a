"""Waiting without sleeping, and races held open at a known point."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def wait_for(condition: Callable[[], T], *, seconds: float = 20.0, every: float = 0.02) -> T:
    """Return the condition's first true value; fail after `seconds`."""
    pause, end = threading.Event(), time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not true within {seconds} s: {condition}"
        pause.wait(every)
    return value


class Racer(threading.Thread):
    """A call on a connection of its own, in a transaction that stays open until `commit`."""

    def __init__(self, url: str, call: Callable[[Any], Any]) -> None:
        super().__init__(daemon=True)
        self.connection = psycopg2.connect(url)
        self.pid = self.connection.info.backend_pid
        self._call, self._go, self._called = call, threading.Event(), threading.Event()
        self._end: Callable[[], None] = self.connection.commit
        self.answer: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call, wait to be let go, commit."""
        try:
            self.answer = self._call(self.connection)
            self._called.set()
            self._go.wait(30)
            self._end()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error
        finally:
            self._called.set()
            self.connection.close()

    def reach_commit(self) -> Racer:
        """Wait until the call is done and its locks are held, before its commit."""
        assert self._called.wait(30)
        return self

    def roll_back(self) -> None:
        """Let the transaction roll back instead of committing."""
        self._end = self.connection.rollback
        self.commit()

    def commit(self) -> Any:
        """Let the transaction commit; return the call's answer."""
        self._go.set()
        self.join(30)
        assert not self.is_alive()
        if self.error:
            raise self.error
        return self.answer


@contextmanager
def racing(url: str, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Iterator[tuple[Racer, Racer]]:
    """Hold `first` between its locks and its commit, and see `second` wait for it in pg_stat_activity."""
    one, two = Racer(url, first), Racer(url, second)
    one.start()
    one.reach_commit()
    two.start()
    wait_for(lambda: _waits_for_lock(url, two.pid))
    yield one, two
    one.commit()
    two.commit()


def _waits_for_lock(url: str, pid: int) -> bool:
    connection = psycopg2.connect(url)
    with connection.cursor() as cursor:
        cursor.execute("select wait_event_type = 'Lock' from pg_stat_activity where pid = %s", (pid,))
        row = cursor.fetchone()
    connection.close()
    return bool(row and row[0])
