"""
Crash points and pause points: places at which a test ends this process, or holds a thread of it, at a known moment.

Production passes them all: a point is an empty function until `crash_at` or `pause_at` is called, which says so loudly.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_LOOK_EVERY = 0.01  # seconds between looks at whether a pause is over

_actions: dict[str, list[Callable[[], None]]] = {}


def _nothing(name: str) -> None:
    """Pass a point."""


#: Passes the point of that name. To be called by its module, `faults.point("…")`: arming puts another in its place.
point = _nothing


def armed() -> bool:
    """Whether this process has any point that does something."""
    return point is not _nothing


def crash_at(word: str) -> None:
    """
    End this process as SIGKILL does when it passes a point.

    `name` means the first time, `name:#3` the third, `name:0.1` each time with that probability. ValueError says how to
    write it.
    """
    name, colon, when = word.partition(":")
    due = _due(when if colon else "#1")
    _arm("crash", name, lambda: os.kill(os.getpid(), signal.SIGKILL) if due() else None)


def pause_at(word: str) -> None:
    """
    Hold the thread that passes a point until a file exists: `name=/path/of/file`; meanwhile there is `….reached`.

    ValueError says how to write it.
    """
    name, _, path = word.partition("=")
    if not path:
        raise ValueError("write name=/path/of/file")
    _arm("pause", name, lambda: _wait_for(Path(path)))


def disarm() -> None:
    """Let all points be passed again."""
    global point  # noqa: PLW0603 - off must cost nothing: not even a look whether it is off
    _actions.clear()
    point = _nothing


def _arm(kind: str, name: str, action: Callable[[], None]) -> None:
    global point  # noqa: PLW0603 - see disarm
    _actions.setdefault(name, []).append(action)
    point = _act
    logger.critical("faults.armed %s_at=%s: this process fails on purpose, which only a test may want", kind, name)


def _act(name: str) -> None:
    for action in _actions.get(name, ()):
        action()


def _due(when: str) -> Callable[[], bool]:
    """Return what says, at each passing, whether this is the one."""
    try:
        if when.startswith("#"):
            passings, number = itertools.count(1), int(when[1:])
            return lambda: next(passings) == number
        probability = float(when)
    except ValueError:
        probability = 0.0
    if not 0 < probability <= 1:
        raise ValueError("write name, name:#number, or name:probability, as in finish.after_commit:0.1")
    return lambda: random.random() < probability  # noqa: S311 - not for secrets


def _wait_for(file: Path) -> None:
    file.with_name(f"{file.name}.reached").touch()
    while not file.exists():
        time.sleep(_LOOK_EVERY)
