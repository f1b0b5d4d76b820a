"""Whatever a user's function does becomes an outcome; an interruption ends the function, and nothing after it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from flowforge.actors.execution import carry_out, ending_of, execute, interrupt, pause
from flowforge.actors.holding import Phase
from flowforge.errors import AttemptCancelled, AttemptTimeout, NonRetryable, Skip, UnreadableValue, UnstorableValue
from flowforge.states import TaskState
from flowforge.transitions import Outcome, Release
from flowforge.workflow import Context, Retry
from tests.support import wait_for
from tests.unit.actors.attempts import attempt, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flowforge.actors.holding import Attempt


def stored(**retry: Any) -> Any:
    """Return a stored task with that policy."""
    return attempt(retry=Retry(**retry)).known.stored


def carried_out(function: Callable[..., Any], **options: Any) -> Any:
    """Carry out one attempt of a function; return how it ended."""
    process, one = runtime(), attempt(function, **options)
    process.holding.add([one])
    process.holding.begin(one)
    return carry_out(process, one)


def told(ending: Outcome | Release) -> tuple[str, str]:
    """Return the type and the message that an ending tells of."""
    error = json.loads(ending.error or "{}")
    return error["type"], error["message"]


# pause


def test_the_pause_is_exponential_up_to_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _, most: most)
    policy = stored(attempts=7, delay="1s", factor=3, max_delay="1m")

    assert [pause(policy, left) for left in range(6, 0, -1)] == [1, 3, 9, 27, 60, 60]


@pytest.mark.parametrize("left", [5, 3, 1])
def test_jitter_only_shortens_and_by_a_quarter_at_most(left: int) -> None:
    policy = stored(attempts=6, delay="1s", factor=2, max_delay="4s")
    full = {5: 1, 3: 4, 1: 4}[left]

    pauses = [pause(policy, left) for _ in range(500)]

    assert 0.75 * full <= min(pauses) < 0.8 * full
    assert 0.95 * full < max(pauses) <= full


@pytest.mark.parametrize("factor", [2.0, 5.0, 100.0])
def test_a_power_too_large_for_a_float_is_the_cap(factor: float) -> None:
    """B080."""
    policy = replace(stored(max_delay="1h"), attempts=5000, retry_factor=factor)

    assert 2700 <= pause(policy, failures_left=1) <= 3600


def test_no_delay_is_no_pause() -> None:
    assert pause(stored(attempts=3, delay=0), 2) == 0


# ending_of


def test_a_failure_with_a_retry_left_is_due_again() -> None:
    """B072: it is no outcome yet, of which dependents would hear."""
    one = attempt(failures_left=2, retry=Retry(attempts=3, delay="4s"))

    ending = ending_of(one, ValueError("no"))

    assert isinstance(ending, Release)
    assert (ending.id, ending.token) == (one.claim.id, one.claim.token)
    assert 3 <= ending.delay <= 4
    assert told(ending) == ("ValueError", "no")


def test_a_failure_without_a_retry_left_fails() -> None:
    one = attempt(failures_left=0, retry=Retry(attempts=3))

    ending = ending_of(one, ValueError("no"))

    assert ending == Outcome(one.claim.id, one.claim.run_id, one.claim.token, TaskState.FAILED, None, ending.error)
    assert told(ending) == ("ValueError", "no")


@pytest.mark.parametrize("error", [NonRetryable("x"), UnstorableValue("x"), UnreadableValue("x")])
def test_what_cannot_do_better_fails_with_retries_left(error: Exception) -> None:
    ending = ending_of(attempt(failures_left=2), error)

    assert isinstance(ending, Outcome)
    assert (ending.state, told(ending)) == (TaskState.FAILED, (type(error).__name__, "x"))


def test_a_skip_is_skipped_and_says_why() -> None:
    ending = ending_of(attempt(failures_left=2), Skip("nothing to load"))

    assert isinstance(ending, Outcome)
    assert (ending.state, told(ending)) == (TaskState.SKIPPED, ("Skip", "nothing to load"))


@pytest.mark.parametrize("failures_left", [0, 2])
def test_who_says_that_it_was_cancelled_ends_cancelled_with_retries_left(failures_left: int) -> None:
    """User code raises it itself, where its context told it to stop."""
    one = attempt(failures_left=failures_left)

    ending = ending_of(one, AttemptCancelled("stopped after row 7"))

    assert ending == Outcome(one.claim.id, one.claim.run_id, one.claim.token, TaskState.CANCELLED, None, ending.error)
    assert told(ending) == ("AttemptCancelled", "stopped after row 7")


LATER = [AttemptTimeout(), AttemptCancelled(), ValueError("from a finally"), Skip("late"), NonRetryable("late")]


@pytest.mark.parametrize("error", LATER, ids=repr)
@pytest.mark.parametrize("failures_left", [0, 1])
def test_out_of_time_is_what_counts_and_may_be_tried_again(error: Exception, failures_left: int) -> None:
    one = attempt(failures_left=failures_left)
    interrupt(one, AttemptTimeout("too long"))

    ending = ending_of(one, error)

    assert isinstance(ending, Release if failures_left else Outcome)
    assert told(ending) == ("AttemptTimeout", "too long")


@pytest.mark.parametrize("error", LATER, ids=repr)
def test_that_it_was_cancelled_is_what_counts(error: Exception) -> None:
    one = attempt(failures_left=1)
    interrupt(one, AttemptCancelled("enough"))

    ending = ending_of(one, error)

    assert isinstance(ending, Outcome)
    assert (ending.state, told(ending)) == (TaskState.CANCELLED, ("AttemptCancelled", "enough"))


# carry_out


def test_what_is_returned_is_the_result() -> None:
    assert carried_out(lambda: {"rows": 3})[3:] == (TaskState.SUCCEEDED, '{"rows": 3}', None)


class Custom(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Custom, RecursionError]
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_what_is_not_an_exception_is_an_outcome_too(error: type[BaseException], *, is_async: bool) -> None:
    """B061."""

    def raise_() -> None:
        raise error("out")

    async def raise_async() -> None:
        raise_()

    ending = carried_out(raise_async if is_async else raise_)

    assert (ending.state, told(ending)[0]) == (TaskState.FAILED, error.__name__)


@pytest.mark.parametrize(
    ("result", "told_to"),
    [
        (float("nan"), "give None, or a text"),
        (datetime(2026, 11, 29, 12, 0), "give it one, as datetime.now(UTC) has"),  # noqa: DTZ001 - the naive one
        ("x" * 1_048_576, "keep the data elsewhere, and give its path or key instead"),
        (object(), "use plain data or a dataclass"),
    ],
    ids=["NaN", "naive", "over 1 MiB", "object"],
)
def test_a_result_that_cannot_be_stored_fails_for_good_and_says_what_to_return(result: object, told_to: str) -> None:
    """B111, B112, B115, B116."""
    ending = carried_out(lambda: result, failures_left=2)

    kind, message = told(ending)
    assert (ending.state, kind) == (TaskState.FAILED, "UnstorableValue")
    assert message.startswith("the result of task 'only'")
    assert told_to in message


def test_what_a_task_raises_is_in_the_workers_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("no orders")

    carried_out(fail)

    assert "task_run.raised workflow=sales task=only" in caplog.text
    assert "attempt=1 error=ValueError: no orders" in caplog.text


def test_a_result_of_just_a_mebibyte_is_kept() -> None:
    ending = carried_out(lambda: "x" * (1_048_576 - 2))

    assert ending.state == TaskState.SUCCEEDED


def test_a_withdrawn_attempt_is_not_carried_out() -> None:
    process, called = runtime(), list[int]()
    one = attempt(lambda: called.append(1))
    process.holding.add([one])
    process.holding.withdraw()

    execute(process, one)

    assert (called, process.committer._items.empty()) == ([], True)


# interrupt

REASONS = {"cancelled": AttemptCancelled("enough"), "out of time": AttemptTimeout("too long")}
ENDS = {"cancelled": TaskState.CANCELLED, "out of time": TaskState.FAILED}


@contextmanager
def carrying_out(one: Attempt, running: threading.Event) -> Iterator[Future[Any]]:
    """
    Carry an attempt out on a thread, and be there once its function runs.

    Nothing is collected meanwhile: an exception that is raised into a thread while it collects garbage may be lost. Nor
    is the thread waited for, so that a test whose function goes on fails, and does not hang.
    """
    process, ending = runtime(), Future[Any]()
    process.holding.begin(one)
    gc.disable()
    try:
        threading.Thread(target=lambda: ending.set_result(carry_out(process, one)), daemon=True).start()
        assert running.wait(20)
        yield ending
    finally:
        gc.enable()


@pytest.mark.parametrize("why", REASONS)
def test_what_waits_is_ended_by_the_reason(why: str) -> None:
    running = threading.Event()

    def forever() -> None:
        running.set()
        while True:
            threading.Event().wait(0.02)

    one = attempt(forever)
    with carrying_out(one, running) as ending:
        interrupt(one, REASONS[why])

        ended = ending.result(5)
    assert (ended.state, told(ended)) == (ENDS[why], (type(REASONS[why]).__name__, str(REASONS[why])))
    assert "forever" in json.loads(ended.error)["traceback"]


@pytest.mark.parametrize("why", REASONS)
def test_an_interrupted_attempt_gets_one_exception_and_one_word(why: str) -> None:
    """The function holds on after the first; there is no second."""
    caught, running, go_on = list[BaseException](), threading.Event(), threading.Event()

    def stubborn(context: Context) -> bool:
        running.set()
        while not go_on.is_set():
            try:
                threading.Event().wait(0.02)
            except (AttemptCancelled, AttemptTimeout) as error:
                caught.append(error)
        return context.cancelled

    one = attempt(stubborn)
    with carrying_out(one, running) as ending:
        interrupt(one, REASONS[why])
        wait_for(lambda: caught)
        interrupt(one, REASONS[why])
        threading.Event().wait(0.02)
        go_on.set()

        assert ending.result(5)[3:] == (TaskState.SUCCEEDED, "true", None)
    assert list(map(type, caught)) == [type(REASONS[why])]


@pytest.mark.parametrize("why", REASONS)
@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_a_task_that_must_not_be_interrupted_only_gets_the_word(why: str, *, raises: bool) -> None:
    running, told_to_stop = threading.Event(), threading.Event()

    def careful(context: Context) -> str:
        running.set()
        told_to_stop.wait(5)
        if context.cancelled and raises:
            raise REASONS[why]
        return "stopped" if context.cancelled else "ended"

    one = attempt(careful, interrupt="never")
    with carrying_out(one, running) as ending:
        interrupt(one, REASONS[why])
        told_to_stop.set()

        state, result, error = ending.result(5)[3:]
    assert (state, result) == ((ENDS[why], None) if raises else (TaskState.SUCCEEDED, '"stopped"'))
    assert bool(error) == raises


@pytest.mark.parametrize("why", REASONS)
def test_an_async_task_is_cancelled_where_it_awaits(why: str) -> None:
    running, cleaned_up = threading.Event(), threading.Event()

    async def forever() -> None:
        running.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned_up.set()

    one = attempt(forever)
    with carrying_out(one, running) as ending:
        interrupt(one, REASONS[why])

        ended = ending.result(5)
    assert (ended.state, told(ended)) == (ENDS[why], (type(REASONS[why]).__name__, str(REASONS[why])))
    assert cleaned_up.is_set()


@pytest.mark.parametrize("why", REASONS)
def test_an_async_task_that_must_not_be_interrupted_only_gets_the_word(why: str) -> None:
    running, told_to_stop = threading.Event(), threading.Event()

    async def careful(context: Context) -> str:
        running.set()
        await asyncio.to_thread(told_to_stop.wait, 5)
        return "stopped" if context.cancelled else "ended"

    one = attempt(careful, interrupt="never")
    with carrying_out(one, running) as ending:
        interrupt(one, REASONS[why])
        told_to_stop.set()

        assert ending.result(5)[3:] == (TaskState.SUCCEEDED, '"stopped"', None)


def test_nothing_is_raised_into_what_has_not_begun_or_is_over() -> None:
    """The thread may be another attempt's by then."""
    raised = list[type[BaseException]]()
    waiting, over = attempt(), attempt()
    over.move(Phase.WAITING, Phase.OVER)

    for one in (waiting, over):
        one.interrupt = raised.append
        interrupt(one, AttemptCancelled())

    assert (raised, waiting.stopping, over.stopping) == ([], True, True)


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def hurry(near: threading.Event, steps: int) -> Callable[[], int]:
    """Return a function that says when it is nearly done."""

    def nearly() -> int:
        near.set()
        for _ in range(10 * steps):
            pass
        return steps

    return nearly


def hurry_async(near: threading.Event, steps: int) -> Callable[[], Any]:
    """Return a coroutine function that says when it is nearly done."""

    async def nearly() -> int:
        near.set()
        for _ in range(steps // 50):
            await asyncio.sleep(0)
        return steps

    return nearly


def then_work(one: Attempt) -> Any:
    """Carry out, and go on as the worker's thread does: with code that no exception may reach."""
    process = runtime()
    process.holding.begin(one)
    ending = carry_out(process, one)
    assert sum(1 for _ in itertools.repeat(None, 300)) == 300
    return ending


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("why", REASONS)
@pytest.mark.parametrize("kind", [hurry, hurry_async], ids=["sync", "async"])
def test_an_interruption_around_the_end_hits_the_function_or_nothing(kind: Callable[..., Any], why: str) -> None:
    """B052: three hundred times; the thread goes on, and the outcome is one of the two that are legal."""
    random, seen = Random(1), set()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(300):
            near = threading.Event()
            one = attempt(kind(near, random.randrange(1000)))
            ending = pool.submit(then_work, one)
            assert near.wait(5)
            for _ in range(random.randrange(400)):
                pass
            interrupt(one, REASONS[why])
            ended = ending.result(5)
            seen.add((ended.state, told(ended)[0] if ended.error else None))
            assert (one.interrupt, one.lock.locked()) == (None, False)

        assert pool.submit(threading.active_count).result(5)
    assert seen <= {(TaskState.SUCCEEDED, None), (ENDS[why], type(REASONS[why]).__name__)}
