"""A wait that lasts too long is ended from outside, and nothing stops the watch."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg2
import pytest

from flowforge.db.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Iterator


class Line:
    """A connection to a server that says nothing."""

    def __init__(self) -> None:
        self.cut = False
        self.ours, self.servers = socket.socketpair()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.ours.fileno()

    def wait(self, seconds: float) -> bytes:
        """Wait for what the server says, for as long as we are patient."""
        self.ours.settimeout(10)
        with Patience(self, seconds):
            return self.ours.recv(1)


class ResetLine(Line):
    """A connection that the other side has ended in the very moment."""

    def __init__(self) -> None:
        super().__init__()
        self.ours.close()
        self.ours = socket.socket()


class ClosedLine(Line):
    """A connection that we have closed in the very moment."""

    def fileno(self) -> int:
        """Say so as psycopg2 does."""
        raise psycopg2.InterfaceError("connection already closed")


@pytest.fixture
def line() -> Iterator[Line]:
    """A connection."""
    line = Line()
    with closing(line.ours), closing(line.servers):
        yield line


def test_a_wait_for_a_silent_server_ends(line: Line) -> None:
    """B103."""
    assert line.wait(0.1) == b""
    assert line.cut
    assert line.fileno() > 0


def test_an_answer_in_time_is_no_reason_to_cut(line: Line) -> None:
    line.servers.send(b"yes")

    assert [line.wait(10), line.wait(0.01), line.wait(10)] == [b"y", b"e", b"s"]
    assert not line.cut


def test_a_connection_that_cannot_be_cut_any_more_does_not_end_the_watch(line: Line) -> None:
    reset, closed = ResetLine(), ClosedLine()
    with Patience(reset, 0), Patience(closed, 0):
        assert line.wait(0.1) == b""

    for other in (reset, closed):
        assert other.cut
        other.ours.close()
        other.servers.close()
