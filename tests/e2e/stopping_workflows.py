"""Workflows that are told to stop, and heed it or not; that run out of time; that kill their worker."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import re
import signal
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge import AttemptCancelled, Context, Retry, Workflow, watch
from flowforge.actors import ledger
from flowforge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.actors.ledger import Left

LONG = 60.0  # seconds
if "HUNG" in os.environ:
    watch.HANG = float(os.environ["HUNG"])


def sleep_in_c(seconds: float) -> None:
    """Be in a call into C from which no exception leads out; the others may go on."""
    ctypes.CDLL(None).usleep(int(seconds * 1e6))


def hog(seconds: float) -> None:
    """Keep the interpreter's lock: no other thread of this process does anything."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def match_for_long() -> None:
    """Keep the interpreter's lock too, for some four seconds: each `a` more doubles the ways that the match tries."""
    began = time.perf_counter()
    re.match(r"(a+)+$", "a" * 18 + "b")
    doubled = math.ceil(math.log2(4 / (time.perf_counter() - began)))
    re.match(r"(a+)+$", "a" * (18 + doubled) + "b")


# Told to stop

polite = Workflow("polite")
polite_async = Workflow("polite-async")
stubborn = Workflow("stubborn")
waiting = Workflow("waiting")
deaf = Workflow("deaf")
hogging = Workflow("hogging")
steps = Workflow("steps")
retrying = Workflow("retrying")


@polite.task
def poll(context: Context) -> None:
    """Look now and then whether to stop."""
    while not context.cancelled:
        time.sleep(0.02)
    raise AttemptCancelled("told to stop")


@polite_async.task(key="poll")
async def poll_async(context: Context) -> None:
    """Look now and then whether to stop, and leave the event loop to others meanwhile."""
    while not context.cancelled:  # noqa: ASYNC110 - there is nobody who would set an event
        await asyncio.sleep(0.02)
    raise AttemptCancelled("told to stop")


@stubborn.task(key="ignore")
def ignore() -> None:
    """Go on, in steps so short that an exception finds its way in."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        time.sleep(0.02)


@waiting.task(key="ignore")
async def wait() -> None:
    """Wait on the event loop."""
    await asyncio.sleep(LONG)


@deaf.task(interrupt="never")
def sleep() -> None:
    """Hear nothing."""
    sleep_in_c(LONG)


@hogging.task
def keep() -> None:
    """Let nobody hear anything, for a while."""
    hog(7)


@steps.task
def one() -> int:
    """Begin."""
    return 1


@steps.task
def two(one: int) -> int:
    """Take a second, and end well whatever was asked."""
    time.sleep(1)
    return one + 1


@steps.task
def three(two: int) -> int:
    """Follow."""
    return two + 1


@steps.task(after=two, when="all_done", required=False)
def clean_up() -> str:
    """Clean up, whatever became of `two`."""
    return "clean"


@retrying.task(retry=Retry(attempts=2, delay="1h", max_delay="1h"))
def try_later() -> None:
    """Fail, and wait for long."""
    raise ConnectionError("not today")


@dataclass(frozen=True)
class Moment:
    """A moment on this machine's clock."""

    at: float


timed = Workflow("timed", Moment)


@timed.task
def until(at: float) -> None:
    """Return at that moment."""
    time.sleep(max(0.0, at - time.time()))


# Out of time

unserved = Workflow("unserved")
patient = Workflow("patient")
hurried = Workflow("hurried", deadline="2s")
late_once = Workflow("late-once")
stuck = Workflow("stuck")
healthy = Workflow("healthy")
long_lease = Workflow("long-lease")
short_lease = Workflow("short-lease")


@unserved.task(queue="nobody", start_by="1s")
def never() -> None:
    """Wait for a worker that never comes."""


@patient.task(timeout="1s")
def wait_long_for_a_worker() -> None:
    """Take no time once it is carried out."""


@hurried.task
def dawdle(context: Context) -> None:
    """Take longer than the run may."""
    while not context.cancelled:
        time.sleep(0.02)


@hurried.task(after=dawdle, when="all_done", required=False)
def tidy() -> str:
    """Clean up."""
    return "tidy"


@late_once.task(timeout="500ms", retry=Retry(attempts=2, delay="10ms"))
def dawdle_once(context: Context) -> int:
    """Take too long, the first time."""
    while context.attempt == 1:
        time.sleep(0.02)
    return context.attempt


def never_returning(key: str, body: Callable[[], object]) -> None:
    """Make a task of what no exception ends."""

    def task() -> None:
        body()

    stuck.task(task, key=key, timeout="500ms")


_sockets = socket.socketpair()
never_returning("lock", lambda: threading.Event().wait())
never_returning("socket", lambda: _sockets[0].recv(1))
never_returning("sleep", lambda: time.sleep(LONG))
never_returning("in-c", lambda: sleep_in_c(LONG))


@healthy.task
def five_leases() -> None:
    """Take five leases of a second."""
    time.sleep(5)


@healthy.task
async def block_the_loop() -> None:
    """Block the event loop for three leases."""
    time.sleep(3)  # noqa: ASYNC251 - as users do


@healthy.task
def block_an_own_loop() -> None:
    """Block an event loop of its own."""

    async def block() -> None:
        time.sleep(3)  # noqa: ASYNC251 - as users do

    asyncio.run(block())


@long_lease.task(lease="1m")
def keep_for_three_seconds() -> None:
    """Keep the interpreter's lock for several leases of a second."""
    hog(3)


@short_lease.task(lease="1s")
def stay(context: Context) -> int:
    """Stay, the first time, until its worker is killed."""
    while context.attempt == 1:
        time.sleep(0.02)
    return context.attempt


# Lost workers

deadly = Workflow("deadly")
faulty = Workflow("faulty")
short = Workflow("short")
hogging_once = Workflow("hogging-once")
matching_once = Workflow("matching-once")
hanging_once = Workflow("hanging-once")
interrupted = Workflow("interrupted")
watched_failure = Workflow("watched-failure")
watched_success = Workflow("watched-success")


def of_this_process() -> Left:
    """Return what this process owns, as its heir would find it."""
    settings = Settings.from_env()
    where = ledger.directory(settings.namespace, settings.database_url)
    (path,) = where.glob(f"*:{os.getpid()}:*")
    return ledger._read(path.name, path.read_bytes())


def wait_for_neighbours() -> None:
    """Wait until this process has claimed some that have not begun: of two at most one begins before it dies."""
    while len(of_this_process().waiting) < 2:
        time.sleep(0.001)


@deadly.task(retry=Retry(lost=1))
def kill() -> None:
    """Take the worker along, as the kernel does for want of memory."""
    wait_for_neighbours()
    os.kill(os.getpid(), signal.SIGKILL)


@faulty.task(key="kill", retry=Retry(lost=0))
def fault() -> None:
    """Take the worker along, as a fault in C does."""
    wait_for_neighbours()
    ctypes.string_at(0)


for _workflow in (deadly, faulty):

    @_workflow.task(after=_workflow.tasks["kill"])
    def follow() -> None:
        """Follow, if it ever succeeds."""

    @_workflow.on_failure
    def mourn() -> str:
        """Tell somebody."""
        return "told"


@short.task
def quick(context: Context) -> None:
    """Take so little that more are claimed ahead; say in the file BEGUN that it has begun, if there is one."""
    if "BEGUN" in os.environ:
        with Path(os.environ["BEGUN"]).open("a") as lines:
            lines.write(f"{context.run_id} {context.token}\n")
    time.sleep(0.005)


@hogging_once.task(key="keep")
def hog_once(context: Context) -> int:
    """Keep the interpreter's lock, the first time."""
    if context.attempt == 1:
        hog(4)
    return context.attempt


@hanging_once.task(key="keep")
def hang_once(context: Context) -> int:
    """Keep the interpreter's lock for ever, the first time."""
    if context.attempt == 1:
        hog(LONG)
    return context.attempt


@matching_once.task(key="keep")
def match_once(context: Context) -> int:
    """Keep the interpreter's lock, the first time."""
    if context.attempt == 1:
        match_for_long()
    return context.attempt


@interrupted.task(retry=Retry(lost=1))
def linger(context: Context) -> int:
    """Stay, the first time, until its worker is gone."""
    context.progress(0)
    while context.attempt == 1:
        time.sleep(0.02)
    return context.attempt


@watched_failure.task
def fail() -> None:
    """Fail."""
    raise ValueError("it does")


@watched_success.task
def succeed() -> None:
    """Succeed."""


for _workflow in (watched_failure, watched_success):

    @_workflow.on_failure
    def alert() -> str:
        """Tell somebody."""
        return "told"

    @_workflow.on_success
    def praise() -> str:
        """Tell somebody else."""
        return "praised"
