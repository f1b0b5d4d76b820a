"""The keeper, turn by turn on a clock that it moves itself: what it asks, whom it tells, whom it gives up, and when."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from flowforge.actors import execution, holding, keeper, runtime
from flowforge.actors.holding import Phase
from flowforge.errors import AttemptCancelled, AttemptTimeout
from flowforge.states import TaskState
from flowforge.transitions import Outcome, Release, Renewal
from tests.unit.actors import attempts
from tests.unit.actors.attempts import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from flowforge.actors.holding import Attempt
    from flowforge.actors.runtime import Runtime

GRACE = 8.0
#: The longest that a turn lasts: nothing is earlier than it should be, and nothing later by more than this.
TURN = 0.05


class Clock:
    """The time of the actors' modules: only their own sleep lets it pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Engine:
    """The database as the keeper sees it: it answers as the test says, and notes what it was asked, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.cancelled, self.taken, self.gone = set[Any](), set[Any](), set[Any]()
        self.answers: defaultdict[Any, str] = defaultdict(lambda: "renewed")
        self.renewals: list[tuple[float, Sequence[Renewal]]] = []
        self.questions: list[tuple[float, Sequence[UUID]]] = []
        self.limits: list[float] = []

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        self.limits.append(seconds)
        yield

    def perform(self, verb: Callable[..., Any], *args: Any) -> Any:
        return getattr(self, verb.__name__)(*args)

    def renew(self, renewals: Sequence[Renewal]) -> dict[Any, str]:
        self.renewals.append((self._clock.now, renewals))
        return {(one.id, one.token): self.answers[one.id] for one in renewals}

    def orders(self, ids: Sequence[UUID]) -> dict[Any, tuple[int, bool]]:
        self.questions.append((self._clock.now, ids))
        return {id_: (1 + (id_ in self.taken), id_ in self.cancelled) for id_ in ids if id_ not in self.gone}


class Probe(keeper._Probe):
    """A probe that has had real time for the locks, whatever the clock says."""

    def __init__(self, until: float) -> None:
        super().__init__(until)
        self.thread.join(1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keeper, "_Probe", Probe)
    for module in (execution, holding, keeper, runtime):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def engine(clock: Clock) -> Engine:
    return Engine(clock)


@pytest.fixture
def process(engine: Engine) -> Runtime:
    """A process of which nothing but the keeper is there; it is told to end by a flag."""
    process = attempts.runtime(engine, cancel_grace=GRACE)
    process.end_process = lambda: None
    return process


def run(process: Runtime, **options: Any) -> Attempt:
    """Return an attempt whose code runs, and on which every exception that is raised into it is noted."""
    one = attempt(**{"timeout": "1h", **options})
    process.holding.add([one])
    process.holding.begin(one)
    one.interrupt = raised_into(one).append
    return one


def raised_into(one: Attempt) -> list[type[BaseException]]:
    """Return what was raised into an attempt's code."""
    noted: list[type[BaseException]] = one.__dict__.setdefault("raised", [])
    return noted


def told_to_stop(process: Runtime, one: Attempt) -> bool:
    """Return what the attempt's context says."""
    context: Any = None
    return process.hooks(one).cancelled(context)


def turns(process: Runtime, clock: Clock, *, until: float | Callable[[], object]) -> float:
    """Take turns until that is true, or for so many seconds; return how many passed."""
    began = clock.now
    is_over = until if callable(until) else lambda: clock.now >= began + until
    while not is_over():
        process.keeper.turn()
        assert clock.now < began + 3600, "it never came true"
    return clock.now - began


def endings(process: Runtime) -> list[Outcome | Release]:
    """Return what was given to the committer, and take it from there."""
    items, taken = process.committer._items, list[Outcome | Release]()
    while not items.empty():
        taken.append(items.get_nowait().ending)
    return taken


# Who is told


HOW = {"cancelled": "cancel", "taken": "lost", "gone": "lost"}


@pytest.mark.parametrize("how", HOW)
def test_what_was_cancelled_or_lost_is_told_within_a_second(
    process: Runtime, engine: Engine, clock: Clock, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = run(process), run(process)
    turns(process, clock, until=2)
    before = [told_to_stop(process, each) for each in (one, other)]
    getattr(engine, how).add(one.claim.id)

    passed = turns(process, clock, until=lambda: told_to_stop(process, one))

    assert passed <= 1 + TURN
    assert (before, told_to_stop(process, other)) == ([False, False], False)
    assert f"task_run.lease_{HOW[how]} task_run={one.claim.id} token=1" in caplog.text
    assert raised_into(one) == []


@pytest.mark.parametrize("answer", ["cancel", "lost"])
def test_a_renewal_tells_it_too(process: Runtime, engine: Engine, clock: Clock, answer: str) -> None:
    """Its lease is so short that it is renewed before the next question."""
    one = run(process, lease="0.6s")
    process.keeper.turn()
    engine.answers[one.claim.id] = answer

    assert turns(process, clock, until=lambda: told_to_stop(process, one)) <= 0.2 + TURN
    assert len(engine.questions) == 1


def test_one_question_a_second_is_for_all_that_run(process: Runtime, engine: Engine, clock: Clock) -> None:
    running, waiting = [run(process), run(process)], attempt()
    waiting.claimed_at += 60
    process.holding.add([waiting])

    turns(process, clock, until=10)

    assert 10 <= len(engine.questions) <= 11
    assert {frozenset(ids) for _, ids in engine.questions} == {frozenset(one.claim.id for one in running)}
    assert engine.limits.count(2.0) == len(engine.questions)


def test_nothing_is_asked_while_nothing_runs(process: Runtime, engine: Engine, clock: Clock) -> None:
    turns(process, clock, until=10)

    assert (engine.questions, engine.renewals) == ([], [])


def test_it_is_told_once(process: Runtime, engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    engine.cancelled.add(run(process).claim.id)

    turns(process, clock, until=3)

    assert caplog.text.count("task_run.lease_cancel") == 1


# Who does not stop


@pytest.mark.parametrize("how", HOW)
def test_after_half_the_grace_an_exception_and_after_the_grace_the_end(
    process: Runtime, engine: Engine, clock: Clock, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B052: its thread is lost, and the process is replaced; the others go on."""
    one, other = run(process), run(process)
    getattr(engine, how).add(one.claim.id)
    turns(process, clock, until=lambda: told_to_stop(process, one))

    to_exception = turns(process, clock, until=lambda: raised_into(one))
    before = (one.phase, process.retired)
    to_end = turns(process, clock, until=lambda: one.phase is Phase.OVER)

    assert GRACE / 2 <= to_exception <= GRACE / 2 + TURN
    assert GRACE / 2 <= to_end <= GRACE / 2 + TURN
    assert (raised_into(one), before) == ([AttemptCancelled], (Phase.RUNNING, False))
    (ending,) = endings(process)
    assert isinstance(ending, Outcome)
    assert (ending.id, ending.token, ending.state) == (one.claim.id, one.claim.token, TaskState.CANCELLED)
    assert json.loads(ending.error or "")["type"] == "AttemptCancelled"
    assert (process.retired, process.lost_threads, other.phase) == (True, 1, Phase.RUNNING)
    assert "worker.retired reason=task 'only' does not return after it was told to stop" in caplog.text


def test_a_thread_that_returns_after_it_was_given_up_ends_nothing(
    process: Runtime, engine: Engine, clock: Clock
) -> None:
    one = run(process)
    engine.cancelled.add(one.claim.id)
    turns(process, clock, until=lambda: one.phase is Phase.OVER)
    given_up = endings(process)

    late = process.holding.end(one)
    turns(process, clock, until=60)

    assert (len(given_up), late, endings(process), process.lost_threads) == (1, False, [], 1)


@pytest.mark.parametrize("stage", ["told", "raised"])
def test_who_stops_in_time_is_not_given_up(process: Runtime, engine: Engine, clock: Clock, stage: str) -> None:
    one = run(process)
    engine.cancelled.add(one.claim.id)
    turns(process, clock, until=lambda: told_to_stop(process, one) if stage == "told" else raised_into(one))

    ended = process.holding.end(one)
    turns(process, clock, until=60)

    assert (ended, process.retired, endings(process)) == (True, False, [])
    assert len(raised_into(one)) == (stage == "raised")


def test_nothing_is_raised_into_what_must_not_be_interrupted(process: Runtime, engine: Engine, clock: Clock) -> None:
    one = run(process, interrupt="never")
    engine.cancelled.add(one.claim.id)
    turns(process, clock, until=lambda: told_to_stop(process, one))

    passed = turns(process, clock, until=lambda: one.phase is Phase.OVER)

    assert GRACE <= passed <= GRACE + 2 * TURN
    assert (raised_into(one), process.retired) == ([], True)


@pytest.mark.parametrize(("failures_left", "ending"), [(0, Outcome), (1, Release)], ids=["last", "another"])
def test_who_is_out_of_time_is_told_at_once_and_given_up_after_five_seconds(
    process: Runtime, clock: Clock, failures_left: int, ending: type
) -> None:
    """B052."""
    one = run(process, timeout="30s", failures_left=failures_left)

    to_exception = turns(process, clock, until=lambda: raised_into(one))
    said = told_to_stop(process, one)
    to_end = turns(process, clock, until=lambda: one.phase is Phase.OVER)

    assert 30 <= to_exception <= 30 + TURN
    assert 5 <= to_end <= 5 + TURN
    assert (raised_into(one), said, process.retired) == ([AttemptTimeout], True, True)
    (given,) = endings(process)
    assert isinstance(given, ending)
    told = json.loads(given.error or "")
    assert (told["type"], told["message"]) == ("AttemptTimeout", "task 'only' ran longer than its timeout of 30 s")


def test_who_is_out_of_time_and_then_cancelled_gets_no_second_exception(
    process: Runtime, engine: Engine, clock: Clock
) -> None:
    one = run(process, timeout="30s")
    turns(process, clock, until=lambda: raised_into(one))
    engine.cancelled.add(one.claim.id)

    turns(process, clock, until=lambda: one.phase is Phase.OVER)

    assert raised_into(one) == [AttemptTimeout]


def test_a_lock_of_logging_that_an_exception_left_held_retires_the_process(
    process: Runtime, engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    one = run(process)
    engine.cancelled.add(one.claim.id)
    caplog.handler.acquire()
    turns(process, clock, until=lambda: raised_into(one))
    process.holding.end(one)
    turns(process, clock, until=3)
    caplog.handler.release()

    assert process.retired
    assert "worker.retired reason=a lock of logging is held since an attempt was interrupted" in caplog.text


# Renewals


def test_each_lease_is_renewed_by_its_own_length_and_all_with_the_shortest(
    process: Runtime, engine: Engine, clock: Clock
) -> None:
    short, long = run(process, lease="3s", timeout="1m"), run(process, lease="1m", timeout="2h")
    began = clock.now

    turns(process, clock, until=10)

    assert [moment - began for moment, _ in engine.renewals] == pytest.approx(
        range(1, len(engine.renewals) + 1), abs=0.5
    )
    assert 9 <= len(engine.renewals) <= 10
    assert {frozenset(renewals) for _, renewals in engine.renewals} == {
        frozenset([Renewal(short.claim.id, 1, 3.0, span=70.0), Renewal(long.claim.id, 1, 60.0, span=7210.0)])
    }
    assert engine.limits.count(1.0) == len(engine.renewals)


def test_a_long_lease_alone_is_renewed_seldom(process: Runtime, engine: Engine, clock: Clock) -> None:
    """A connection that does not answer is replaced long before the next all the same."""
    run(process, lease="2m")

    turns(process, clock, until=121)

    assert len(engine.renewals) == 3
    assert set(engine.limits) == {2.0, 20.0}


@pytest.mark.parametrize(("answer", "own"), [("renewed", True), ("busy", True), ("cancel", True), ("lost", False)])
def test_what_is_not_lost_counts_from_its_renewal(
    process: Runtime, engine: Engine, clock: Clock, answer: str, *, own: bool
) -> None:
    """A guard of the user's own transaction may lock it: busy is not lost."""
    one = run(process, lease="3s")
    engine.answers[one.claim.id] = answer
    claimed = one.renewed_at

    turns(process, clock, until=lambda: engine.renewals)

    assert one.renewed_at == (clock.now if own else claimed)


def test_an_attempt_that_nobody_renews_is_told_to_stop_by_its_own_lease(process: Runtime, clock: Clock) -> None:
    """B103."""
    short, long = run(process, lease="3s"), run(process, lease="1m")

    clock.now += 2.8

    assert (told_to_stop(process, short), told_to_stop(process, long)) == (True, False)
