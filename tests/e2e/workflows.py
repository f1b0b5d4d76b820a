"""Workflows for tests with real worker processes, which import this module."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import dramatiq
import psycopg2

from flowforge import Context, NonRetryable, Retry, Skip, Workflow


@dataclass(frozen=True)
class Numbers:
    """Parameters of most workflows here."""

    n: int = 3


numbers = Workflow("numbers", Numbers)


@numbers.task
def count(n: int) -> list[int]:
    return list(range(n))


@numbers.task
async def double(count: list[int]) -> list[int]:
    await asyncio.sleep(0)
    return [2 * number for number in count]


@numbers.task(retry=Retry(attempts=3, delay="50ms"))
def total(double: list[int], context: Context) -> int:
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")
    return sum(double)


@dramatiq.actor(max_retries=3, min_backoff=10, max_backoff=10, queue_name="ordinary")
def ordinary(file: str) -> None:
    """An actor of the user's own: fails until its third try, then says so in a file."""
    with Path(file).open("a") as lines:
        lines.write("tried\n")
    if len(Path(file).read_text().splitlines()) < 3:
        raise ValueError("not yet")


@dramatiq.actor
def square(n: int) -> int:
    return n * n


numbers.task(square)

outcomes = Workflow("outcomes")


@outcomes.task
def skipped() -> None:
    raise Skip("nothing to load")


@outcomes.task(retry=Retry(attempts=5, delay="10ms"))
def final() -> None:
    raise NonRetryable("never again")


@outcomes.task(required=False)
def optional() -> None:
    raise SystemExit(3)


@outcomes.task
def unstorable() -> float:
    return float("nan")


@outcomes.task
def unprintable() -> None:
    raise UnprintableError("x\x00y\udc80")


class UnprintableError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@outcomes.task(after=final, when="any_failed")
def clean_up() -> str:
    return "cleaned"


@outcomes.task(after=final)
def never() -> None: ...


slow = Workflow("slow", Numbers)


@slow.task
def sleep(n: int, context: Context) -> int:
    for nap in range(n * 100):
        if nap % 10 == 0:
            context.progress(nap, n * 100, "naps [/]")
        time.sleep(0.01)
    return os.getpid()


@slow.task
def after_sleep(sleep: int) -> int:
    return sleep


stubborn = Workflow("stubborn")


@stubborn.task(timeout="300ms")
def interruptible() -> None:
    while True:
        time.sleep(0.01)


@stubborn.task(timeout="300ms")
async def awaiting() -> None:
    await asyncio.sleep(3600)


stuck = Workflow("stuck")


@stuck.task(timeout="300ms")
def in_c() -> None:
    ctypes.CDLL(None).usleep(60_000_000)


careless = Workflow("careless")


@careless.task(timeout="300ms")
def keeps_a_lock() -> None:
    logging.getLogger().handlers[0].acquire()
    while True:
        time.sleep(0.01)


leaky = Workflow("leaky")
_left_open = []


@leaky.task
def leaves_its_guard_open(context: Context) -> None:
    _left_open.append(psycopg2.connect(os.environ["DATABASE_URL"]))
    context.guard(_left_open[0])


many = Workflow("many", Numbers)


@many.task
def one(n: int) -> int:
    return n


wide = Workflow("wide")


def nothing() -> None: ...


parts = [wide.task(nothing, key=f"part_{number}") for number in range(200)]
