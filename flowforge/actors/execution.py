"""One attempt on a worker's thread: the user's function is called, and whatever it does becomes an outcome."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dramatiq.middleware.threading import raise_thread_exception

from flowforge.actors.holding import Attempt, Phase
from flowforge.errors import AttemptCancelled, NonRetryable, Skip, UnstorableValue
from flowforge.states import TaskState
from flowforge.transitions import Outcome, Release
from flowforge.workflow import Context, values
from flowforge.workflow.arguments import arguments
from flowforge.workflow.failure import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.actors.runtime import Runtime
    from flowforge.errors import AttemptTimeout
    from flowforge.workflow import StoredTask

logger = logging.getLogger(__name__)

#: The function cannot do better next time.
_FINAL = (NonRetryable, UnstorableValue)


def execute(runtime: Runtime, attempt: Attempt) -> None:
    """Carry an attempt out and hand its outcome to the committer. Never raises."""
    if not runtime.holding.begin(attempt):
        return
    ending = carry_out(runtime, attempt)
    if runtime.holding.end(attempt):
        runtime.committer.put(attempt, ending)


def carry_out(runtime: Runtime, attempt: Attempt) -> Outcome | Release:
    """Call the user's function; return how the attempt ended."""
    claim, task = attempt.claim, attempt.task
    try:
        given = arguments(
            task, attempt.known.stored.inputs, json.loads(claim.parameters), attempt.results, _context(runtime, attempt)
        )
        returned = _call_async(attempt, given) if task.is_async else _call(attempt, given)
        result = values.encode(returned, f"the result of task {task.key!r}")
        values.check_size(result, runtime.settings.value_limit, f"the result of task {task.key!r}")
    except BaseException as error:  # noqa: BLE001 - SystemExit and the like are outcomes too: the worker goes on
        return ending_of(attempt, error)
    return Outcome(claim.id, claim.run_id, claim.token, TaskState.SUCCEEDED, result=result)


def ending_of(attempt: Attempt, error: BaseException) -> Outcome | Release:
    """Return what an exception makes of an attempt: skipped, failed, or due again."""
    claim = attempt.claim
    if attempt.reason is not None:
        error = attempt.reason.with_traceback(error.__traceback__)
    told = describe(error)
    described = json.dumps(told)
    logger.warning(
        "task_run.raised workflow=%s task=%s run=%s attempt=%d error=%s: %s",
        *(attempt.task.workflow, attempt.task.key, claim.run_id, claim.attempt, told["type"], told["message"]),
    )
    if isinstance(error, Skip):
        return Outcome(claim.id, claim.run_id, claim.token, TaskState.SKIPPED, error=described)
    if isinstance(error, AttemptCancelled):
        return Outcome(claim.id, claim.run_id, claim.token, TaskState.CANCELLED, error=described)
    if claim.failures_left and not isinstance(error, _FINAL):
        return Release(claim.id, claim.token, pause(attempt.known.stored, claim.failures_left), described)
    return Outcome(claim.id, claim.run_id, claim.token, TaskState.FAILED, error=described)


def pause(stored: StoredTask, failures_left: int) -> float:
    """Return the seconds before the next retry; the jitter only shortens, so that the cap is a cap."""
    return stored.pause(stored.attempts - failures_left) * random.uniform(0.75, 1)  # noqa: S311 - spreads load


def interrupt(attempt: Attempt, reason: AttemptCancelled | AttemptTimeout) -> None:
    """Have an attempt stop: its context says so, and at most one exception is raised into its user code."""
    with attempt.lock:
        attempt.reason, attempt.interrupted_at, attempt.stopping = reason, time.monotonic(), True
        into, attempt.interrupt = attempt.interrupt, None
        if into and attempt.phase is Phase.RUNNING and attempt.task.interrupt == "raise":
            into(type(reason))


def _context(runtime: Runtime, attempt: Attempt) -> Context:
    claim, task = attempt.claim, attempt.task
    hooks = runtime.hooks(attempt)
    return Context(
        claim.run_id, claim.id, claim.organization_id, task.workflow, task.key, claim.attempt, claim.token, hooks
    )


def _call(attempt: Attempt, given: dict[str, Any]) -> Any:
    thread = threading.get_ident()
    with _interruptible(attempt, lambda kind: raise_thread_exception(thread, kind)):
        return attempt.task.function(**given)


def _call_async(attempt: Attempt, given: dict[str, Any]) -> Any:
    with asyncio.Runner() as runner:
        return runner.run(_await(attempt, given, runner.get_loop()))


async def _await(attempt: Attempt, given: dict[str, Any], loop: asyncio.AbstractEventLoop) -> Any:
    task = asyncio.current_task()
    assert task is not None
    with _interruptible(attempt, lambda _: loop.call_soon_threadsafe(task.cancel)):
        return await attempt.task.function(**given)


@contextmanager
def _interruptible(attempt: Attempt, interrupt: Any) -> Iterator[None]:
    """Let `interrupt` end the block, and nothing after it: under the lock the way in is closed again."""
    with attempt.lock:
        attempt.interrupt = interrupt
    try:
        yield
    finally:
        with attempt.lock:
            attempt.interrupt = None
