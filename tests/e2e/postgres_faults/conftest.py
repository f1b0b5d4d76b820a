"""What these tests have: a file for the ledger, runs that are started one after another, and words that get lost."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from flowforge import client, db
from flowforge.chaos.proxy import Proxy
from flowforge.db import load_statements
from flowforge.db.session import _preparation
from tests.e2e.postgres_faults.ledger import check, ledger
from tests.e2e.postgres_faults.servers import socket_of
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flowforge import Run
    from flowforge.embedded.servers import PostgresServer
    from flowforge.settings import Settings

    Trap = Callable[..., threading.Event]


#: What becomes of the last of some words: it does not arrive, or it is carried out and its reply is lost.
TRAPS: tuple[Trap, ...] = (Proxy.intercept, Proxy.swallow)
LOST = pytest.mark.parametrize("trap", TRAPS, ids=["COMMIT", "its reply"])


def says(verb: str) -> bytes:
    """Return what is said to the server when a verb is carried out."""
    return f"execute {_preparation(load_statements('flowforge.transitions')[verb]).name}".encode()


class Load(threading.Thread):
    """Starts run after run, each by a key of its own, and by that again until the start is confirmed."""

    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self._file, self._stopped = file, threading.Event()
        self.runs: list[Run] = []

    def run(self) -> None:
        """Start runs until told to stop."""
        while not self._stopped.wait(0.05):
            self._start(uuid4().hex)
        client.engine().database.close()

    def _start(self, key: str) -> None:
        while not self._stopped.wait(0.01):
            with suppress(*db.GONE):
                self.runs.append(ledger.options(idempotency_key=key).start(str(self._file), seconds=0.2))
                return

    def grow(self, by: int = 20) -> None:
        """Wait until so many more starts have been confirmed."""
        number = len(self.runs) + by
        wait_for(lambda: len(self.runs) >= number, seconds=30)

    def stop(self) -> None:
        """Start nothing more."""
        self._stopped.set()
        self.join()

    def check(self) -> None:
        """Stop, and check all that was started."""
        self.stop()
        check(self.runs, self._file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The ledger's file."""
    return tmp_path / "ledger"


@pytest.fixture
def load(file: Path) -> Iterator[Load]:
    """Runs that are started as soon as the test starts this."""
    load = Load(file)
    yield load
    if load.is_alive():
        load.stop()


@pytest.fixture
def network(postgres: PostgresServer) -> Iterator[Proxy]:
    """A network before PostgreSQL."""
    with Proxy(socket_of(postgres)) as network:
        yield network


@pytest.fixture
def far(settings: Settings, network: Proxy) -> dict[str, str]:
    """What a process is told that is to use it."""
    name = settings.database_url.partition("?")[0].rpartition("/")[2]
    return {"DATABASE_URL": f"postgresql://postgres@127.0.0.1:{network.port}/{name}"}
