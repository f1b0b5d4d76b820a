"""Tasks that end in every way that is no exception of the ordinary kind."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from flowforge import Retry, Workflow


class Custom(BaseException):
    """Not an Exception."""


exotic = Workflow("exotic")


def raising(error: type[BaseException]) -> None:
    """Make a task of the exotic workflow that raises, and one that does so where it awaits."""

    def task() -> NoReturn:
        raise error(0)

    async def async_task() -> NoReturn:
        await asyncio.sleep(0)
        raise error(0)

    exotic.task(task, key=error.__name__)
    exotic.task(async_task, key=f"{error.__name__}.async")


for _error in (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Custom):
    raising(_error)


@exotic.task(key="RecursionError")
def recurse() -> None:
    recurse()


@exotic.task(key="threads")
def leave_threads() -> None:
    """Leave threads behind that keep a process alive, for ever."""
    threading.Thread(target=threading.Event().wait, daemon=False).start()
    ThreadPoolExecutor(1).submit(threading.Event().wait)


final = Workflow("final")


@final.task(retry=Retry(lost=0))
def leave() -> None:
    os._exit(0)


alive = Workflow("alive")


@alive.task
def who() -> int:
    return os.getpid()
