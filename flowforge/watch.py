"""
The watch: ends this process when a thread of it is dead, or gives no sign of life for too long.

A process that looks alive and does nothing is worse than one that is gone, for which its supervisor starts another.
"""

from __future__ import annotations

import _thread
import faulthandler
import logging
import math
import os
import sys
import threading
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flowforge.loop import Loop

logger = logging.getLogger(__name__)

#: EX_SOFTWARE: a thread is dead or stuck, a new process will do.
RET_DEAD = 70

#: Seconds for which one thread may keep the interpreter to itself.
HANG = 130.0

#: Seconds that a loop may be silent: six statements in a row, each of them just short of being given up.
SILENCE = 120.0

_EVERY = 1.0  # seconds between looks
_LONGEST = 2.0  # seconds that count between looks: when this process itself stood still, nobody in it was silent
_LAST_WORDS = 5.0  # seconds that the log may take, whose locks may be held for ever


class Part(NamedTuple):
    """
    What is watched, as it is at this moment.

    `thread`, if it has one now, must live; `beat` is anything that changes with a sign of life, due every `limit`
    seconds.
    """

    name: str
    thread: threading.Thread | None
    beat: object = None
    limit: float = math.inf

    @classmethod
    def of(cls, loop: Loop, limit: float = SILENCE) -> Part:
        """Return a loop that was started as a part."""
        return cls(loop.name, loop, loop.beat, limit)


def expect_start() -> None:
    """End this process, with code 1, unless a `Watch` looks within `HANG` seconds: an import may hang."""
    faulthandler.dump_traceback_later(HANG, exit=True, file=2)


class Watch:
    """
    Looks at the parts of a process: `parts` says which those are, at every look anew.

    `hang` says for how many seconds the interpreter may be kept from it.
    """

    def __init__(self, parts: Callable[[], Iterable[Part]], hang: Callable[[], float] = lambda: HANG) -> None:
        self._parts, self._hang = parts, hang
        self._silent: dict[str, tuple[object, float]] = {}  # name -> last beat, and the seconds since it came

    def until(self, told: threading.Event) -> None:
        """
        Look once a second until `told` is set; end the process, with code 70, when a part of it is dead.

        A call into C may keep the interpreter's lock for ever, as a regular expression does that tries every way there
        is: then nobody can look. faulthandler's thread needs no lock: it tells where each thread stands, and ends the
        process with code 1.
        """
        looked_at = time.monotonic()
        try:
            while not self._wait(told):
                since, looked_at = time.monotonic() - looked_at, time.monotonic()
                if dead := self.look(since):
                    _end(partial(_tell_of, dead, self._silent[dead.name][1]))
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _wait(self, told: threading.Event) -> bool:
        """Wait until the next look, at most as long as the interpreter may be kept; return whether it is the end."""
        faulthandler.dump_traceback_later(self._hang(), exit=True, file=2)
        return told.wait(_EVERY)

    def start(self, told: threading.Event) -> threading.Thread:
        """Do so in a thread, which may no more die than those that it looks at."""
        watcher = threading.Thread(target=self._until, args=(told,), name="flowforge-watch", daemon=True)
        watcher.start()
        return watcher

    def _until(self, told: threading.Event) -> None:
        try:
            self.until(told)
        except BaseException as error:  # noqa: BLE001 - told of by another thread, which need not come to its end
            _end(partial(logger.critical, "watch.died", exc_info=error))

    def look(self, since: float) -> Part | None:
        """Return a part that is dead, or silent for too long, if any; the last look was `since` seconds ago."""
        for part in self._parts():
            last = self._silent.get(part.name)
            silent = last[1] + min(since, _LONGEST) if last and last[0] == part.beat else 0.0
            self._silent[part.name] = (part.beat, silent)
            if silent > part.limit or (part.thread and not part.thread.is_alive()):
                return part
        return None


def _end(tell: Callable[[], None]) -> None:
    """End this process whatever its other threads hold, and tell why if the log lets us."""
    told = threading.Event()

    def speak() -> None:
        tell()
        told.set()

    try:
        _thread.start_new_thread(speak, ())  # `threading` would wait until it runs, which may be for ever
        told.wait(_LAST_WORDS)
    finally:
        os._exit(RET_DEAD)


def _tell_of(dead: Part, silent: float) -> None:
    logger.critical("loop.dead loop=%s silent_for=%.0f%s", dead.name, silent, _where(dead.thread))
    for handler in logging.getLogger().handlers:
        handler.flush()


def _where(thread: threading.Thread | None) -> str:
    """Return where a thread that is stuck stands."""
    if not thread or not thread.is_alive():
        return ""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - documented so
    return "".join(["\n", *traceback.format_stack(frame)]).rstrip()
