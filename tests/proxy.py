"""A network between client and server that can be cut, stalled without a word, closed on one side, or lose a word."""

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
        #: Where new connections go.
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lines: list[_Line] = []
        self._traps: list[_Trap] = []
        self._heard: list[bytearray] | None = None
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
        for line in self._lines:
            line.flowing.set()
        for line in self._lines:
            line.join()

    def stall(self) -> None:
        """Forward nothing more, in either direction, and close nothing; new connections are accepted, and stall too."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward again, also what has come meanwhile."""
        self._flowing.set()

    def strand(self) -> None:
        """Forward nothing more on the connections that there are, and close none of them; new ones flow."""
        self.stall()
        self._flowing = threading.Event()
        self._flowing.set()

    def intercept(self, *words: bytes) -> threading.Event:
        """
        Cut the next connection whose client says all of these words, one after another, and forward not the last.

        What is returned is set then.
        """
        self._traps.append(_Trap(words, answered=False))
        return self._traps[-1].sprung

    def swallow(self, *words: bytes) -> threading.Event:
        """Cut such a connection once the server has answered the last of the words, and drop that answer."""
        self._traps.append(_Trap(words, answered=True))
        return self._traps[-1].sprung

    def listen(self) -> list[bytearray]:
        """Keep what clients say on connections that are yet to come, each by itself; what is returned grows."""
        self._heard = []
        return self._heard

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
                self._lines.append(_Line(client, server, self._flowing, self._traps))
                if self._heard is not None:
                    self._heard.append(self._lines[-1].said)
                    self._lines[-1].kept = True
                self._lines[-1].start()

    def _connect(self) -> socket.socket:
        if not isinstance(self.target, str):
            return socket.create_connection(self.target)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.target)
        except OSError:
            server.close()
            raise
        return server


class _Trap:
    """Words that, said in turn by a client, end its connection: of one client only, and once."""

    def __init__(self, words: tuple[bytes, ...], *, answered: bool) -> None:
        self._words, self._lock, self._heard, self._closed = words, threading.Lock(), dict[_Line, int](), False
        #: Whether the server is to hear, and to answer, the last word.
        self.answered = answered
        #: Set when the connection is ended.
        self.sprung = threading.Event()

    def closes(self, line: _Line, said: bytes) -> bool:
        """Whether a client has now said the last word."""
        with self._lock:
            if self._closed:
                return False
            self._heard[line] = heard = self._heard.get(line, 0) + (self._words[self._heard.get(line, 0)] in said)
            self._closed = heard == len(self._words)
            return self._closed


class _Line(threading.Thread):
    """One connection: what one side says is sent to the other, until one of them closes."""

    def __init__(
        self, client: socket.socket, server: socket.socket, flowing: threading.Event, traps: list[_Trap]
    ) -> None:
        super().__init__(daemon=True)
        self.client, self.server, self.flowing, self._traps = client, server, flowing, traps
        #: Whether what the server says is dropped.
        self.mute = False
        #: What the client has said, if that is kept.
        self.said, self.kept = bytearray(), False
        self._trap: _Trap | None = None  # the one that ends this

    def run(self) -> None:
        """Forward, while the network flows."""
        with closing(self.client), closing(self.server), suppress(OSError):
            while self._forward(select.select([self.client, self.server], [], [])[0]):
                pass

    def _forward(self, sides: list[socket.socket]) -> bool:
        """Forward what some sides say; return whether the connection goes on."""
        for side in sides:
            self.flowing.wait()
            said = side.recv(_CHUNK)
            if not said or not (self._forward_client(said) if side is self.client else self._forward_server(said)):
                return False
        return True

    def _forward_client(self, said: bytes) -> bool:
        self._trap = self._trap or next((trap for trap in self._traps if trap.closes(self, said)), None)
        if self._trap and not self._trap.answered:
            self._trap.sprung.set()
            return False
        if self.kept:
            self.said += said
        self.server.sendall(said)
        return True

    def _forward_server(self, said: bytes) -> bool:
        if self._trap:
            self._trap.sprung.set()
            return False
        if not self.mute:
            self.client.sendall(said)
        return True

    def shut(self, *sides: socket.socket, how: int = socket.SHUT_RDWR) -> None:
        """Shut some sides, unless they are closed; `run` then ends, and closes both."""
        for side in sides:
            with suppress(OSError):
                side.shutdown(how)
