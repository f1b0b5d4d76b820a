"""Clients of the database, each with a thread and a connection of its own: one after the other, or two at once."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flowforge import db
from flowforge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SECONDS = 30


class Client:
    """Calls verbs in a thread of its own, on one connection."""

    def __init__(self, url: str) -> None:
        self._database = db.open_database(Settings(database_url=url))
        self._thread = ThreadPoolExecutor(1)
        self.pid: int = self.perform(lambda connection: connection.info.backend_pid)

    def begin(self, verb: Callable[[Any], Any]) -> Future[Any]:
        """Call a verb; it may have to wait."""
        return self._thread.submit(self._database.perform, verb)

    def perform(self, verb: Callable[[Any], Any]) -> Any:
        """Call a verb; return its answer."""
        return self.begin(verb).result(_SECONDS)

    @contextmanager
    def held_open(self, verb: Callable[[Any], Any], *, commit: bool) -> Iterator[Any]:
        """Call a verb, and commit, or roll back, only after the block."""
        self._execute("begin")
        try:
            yield self.perform(verb)
        finally:
            self._execute("commit" if commit else "rollback")

    def close(self) -> None:
        """End the thread and its connection."""
        self._thread.submit(self._database.close).result(_SECONDS)
        self._thread.shutdown()

    def _execute(self, statement: str) -> None:
        self.perform(lambda connection: connection.cursor().execute(statement))


def waits(connection: Any, client: Client, call: Future[Any]) -> bool:
    """Return whether a client's call waits for a lock, once it does or is done."""
    with connection.cursor() as cursor:
        while not call.done():
            cursor.execute("select cardinality(pg_blocking_pids(%s)) > 0", (client.pid,))
            if cursor.fetchone()[0]:
                return True
    return False
