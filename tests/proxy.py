"""A network between a client and a server that can be cut, stalled without a word, or closed on one side."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_CHUNK = 65_536
_LOOK_EVERY = 0.05  # seconds between looks at what a test has asked for


class Proxy:
    """Forwards TCP connections from a free port of 127.0.0.1 to a TCP port, or to a Unix socket given by its path."""

    def __init__(self, target: tuple[str, int] | str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lines: list[_Line] = []
        self._flowing, self._open = threading.Event(), True
        self._flowing.set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        """Begin to accept."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close everything."""
        self._open = False
        self._thread.join()
        self._listener.close()
        self.cut()
        self.flow()
        for line in self._lines:
            line.join()

    def stall(self) -> None:
        """Forward nothing more, in either direction, and close nothing; new connections are accepted, and stall too."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward again, also what has come meanwhile."""
        self._flowing.set()

    def cut(self) -> None:
        """Close every connection on both sides; new ones are accepted."""
        for line in self._lines:
            line.shut(line.client, line.server)

    def half_close(self) -> None:
        """Close what the servers say to their clients, and forward what the clients say as before."""
        for line in self._lines:
            line.mute = True
            line.shut(line.client, how=socket.SHUT_WR)

    def _accept(self) -> None:
        while self._open:
            if select.select([self._listener], [], [], _LOOK_EVERY)[0]:
                client, _ = self._listener.accept()
                try:
                    server = self._connect()
                except OSError:  # it is down, and its client shall hear so
                    client.close()
                    continue
                self._lines.append(_Line(client, server, self._flowing))
                self._lines[-1].start()

    def _connect(self) -> socket.socket:
        if not isinstance(self._target, str):
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._target)
        return server


class _Line(threading.Thread):
    """One connection: what one side says is sent to the other, until one of them closes."""

    def __init__(self, client: socket.socket, server: socket.socket, flowing: threading.Event) -> None:
        super().__init__(daemon=True)
        self.client, self.server, self._flowing = client, server, flowing
        #: Whether what the server says is dropped.
        self.mute = False

    def run(self) -> None:
        """Forward, while the network flows."""
        with closing(self.client), closing(self.server), suppress(OSError):
            while True:
                for side in select.select([self.client, self.server], [], [])[0]:
                    self._flowing.wait()
                    if not (said := side.recv(_CHUNK)):
                        return
                    if side is self.client:
                        self.server.sendall(said)
                    elif not self.mute:
                        self.client.sendall(said)

    def shut(self, *sides: socket.socket, how: int = socket.SHUT_RDWR) -> None:
        """Shut some sides, unless they are closed; `run` then ends, and closes both."""
        for side in sides:
            with suppress(OSError):
                side.shutdown(how)
