"""
Run a process that never outlives its owner, however the owner dies.

`hold` keeps a server for as long as the owner holds our standard input open; `become` turns into the command itself.
Run as a program of its own, `python -I -S guardian.py hold|become …`: it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Any, NamedTuple, NoReturn

#: Seconds that the server gets to shut down before it is killed.
GRACE = 10.0
#: Seconds that the preparation (initdb) may take.
PREPARATION = 120.0
#: An operation of Linux's prctl(2).
_PR_SET_PDEATHSIG = 1
#: Loaded while we may still read it: the account of the server may not. Only Linux has prctl.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Order(NamedTuple):
    """What to hold: run `prepare` to its end (if any), then keep `command` running, both as `account`."""

    prepare: list[str]
    command: list[str]
    #: user, group and extra_groups as subprocess.Popen takes them; empty: ours.
    account: dict[str, Any]
    #: How the owner's word "kill" ends the server.
    kill_signal: int
    #: Directory to delete when the owner died.
    remove: str


def tie_to_parent(parent: int, signal_number: int) -> None:
    """
    Ask the kernel to signal this process when its parent dies; exit if it died already. Only Linux can.

    It is the thread that forked us that counts as the parent, so that thread must live as long as we may.
    """
    if _LIBC:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os._exit(1)


def become(parent: int, signal_number: int, command: list[str]) -> NoReturn:
    """Tie this process to its parent, then replace it by the command; exit code 127 when that cannot be run."""
    tie_to_parent(parent, signal_number)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; an ignored signal stays ignored over exec
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127)


def hold(order: Order) -> int:
    """Run the server, tell its pid on standard output, end it at the owner's word; return its exit code."""
    if order.prepare and (code := _prepare(order)):
        return code
    bell = _ring_at_child_exit()
    server = _launch(order)
    with contextlib.suppress(BrokenPipeError):  # the owner is gone already
        print(server.pid, flush=True)  # noqa: T201 - our answer
    word = _wait_for_word(server, bell)
    _end(server, order.kill_signal if word == "kill" else signal.SIGINT)
    if not word:
        shutil.rmtree(order.remove, ignore_errors=True)
    return server.returncode


def _prepare(order: Order) -> int:
    return subprocess.run(
        order.prepare, stdout=sys.stderr, check=False, timeout=PREPARATION, **order.account
    ).returncode


def _launch(order: Order) -> subprocess.Popen[str]:
    owner = os.getpid()
    return subprocess.Popen(
        order.command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        text=True,
        # After the change of user, which would clear it; safe here because this process has a single thread.
        preexec_fn=lambda: tie_to_parent(owner, signal.SIGINT),  # noqa: PLW1509
        **order.account,
    )


def _ring_at_child_exit() -> int:
    """Return a file descriptor that becomes readable when a child has exited."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _wait_for_word(server: subprocess.Popen[str], bell: int) -> str:
    """Return the owner's last word, nothing if the owner is gone, or "exited" if the server ended first."""
    while server.poll() is None:
        ready, _, _ = select.select([sys.stdin, bell], [], [])
        if sys.stdin in ready:
            # A line, not the end of the file: a fork of the owner may hold the pipe open.
            return sys.stdin.readline().strip()
        os.read(bell, 4096)
    return "exited"


def _end(server: subprocess.Popen[str], signal_number: int) -> None:
    server.send_signal(signal_number)
    try:
        server.wait(GRACE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(role: str, *arguments: str) -> int:
    """Play the role: `hold ORDER` (JSON) or `become PARENT SIGNAL COMMAND…`."""
    if role == "become":
        parent, signal_number, *command = arguments
        become(int(parent), int(signal_number), command)
    return hold(Order(**json.loads(arguments[0])))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
