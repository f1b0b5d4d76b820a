"""What a process owns, and for how much more it has room."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flowforge.actors.holding import Holding, Phase
from tests.unit.actors.attempts import Unread, attempt


def tried(holding: Holding, seconds: float, times: int = 100) -> None:
    """Let attempts of that many seconds come and go."""
    for _ in range(times):
        holding.occupy()
        holding.vacate(seconds)


def test_there_is_room_for_each_free_thread() -> None:
    holding = Holding(3, Unread())
    holding.add([attempt(), attempt()])
    one = holding.room(0)
    holding.occupy()

    assert (one, holding.room(0), len(holding)) == (1, 0, 2)


def test_an_attempt_gives_its_thread_back_when_it_ends_and_is_held_until_it_is_dropped() -> None:
    holding, held = Holding(1, Unread()), attempt()
    holding.add([held])
    holding.begin(held)

    ended = holding.end(held)

    assert (ended, holding.room(0)) == (True, 1)
    assert holding.holds(held.claim.id, held.claim.token)
    holding.drop([held, held])
    assert not holding.holds(held.claim.id, held.claim.token)
    assert holding.all() == []


@pytest.mark.parametrize(("seconds", "room"), [(10.0, 4), (0.1, 4), (0.03, 6), (0.018, 8), (0.001, 20), (0.0, 20)])
def test_the_look_ahead_grows_only_while_tasks_are_short(seconds: float, room: int) -> None:
    """B036: twenty milliseconds of work, and at most four attempts for each thread."""
    holding = Holding(4, Unread())

    tried(holding, seconds, times=500)

    assert holding.room(0) == room


def test_long_tasks_take_the_look_ahead_back_at_once() -> None:
    holding = Holding(4, Unread())
    tried(holding, 0.001)

    tried(holding, 10, times=1)

    assert holding.room(0) == 4


def test_what_waits_counts_against_the_look_ahead() -> None:
    holding = Holding(2, Unread())
    tried(holding, 0.001)
    holding.add(attempt() for _ in range(10))

    assert holding.room(0) == 0


def test_actors_of_the_users_own_take_threads_and_say_nothing_of_the_pace() -> None:
    holding = Holding(2, Unread())
    holding.occupy()
    taken = holding.room(0)
    holding.vacate()

    assert (taken, holding.room(0)) == (1, 2)


def test_room_is_waited_for() -> None:
    holding, held = Holding(1, Unread()), attempt()
    holding.add([held])
    holding.begin(held)

    with ThreadPoolExecutor(1) as pool:
        room = pool.submit(holding.room, 10)
        holding.end(held)

        assert room.result(5) == 1


def test_room_is_not_waited_for_longer_than_said() -> None:
    holding = Holding(1, Unread())
    holding.occupy()

    assert holding.room(0.01) == 0


def test_a_closed_holding_has_no_room_and_lets_nobody_wait() -> None:
    holding = Holding(1, Unread())
    holding.occupy()

    with ThreadPoolExecutor(1) as pool:
        room = pool.submit(holding.room, 10)
        holding.close()

        assert room.result(5) == 0
    holding.vacate()
    assert (holding.closed, holding.room(10)) == (True, 0)


def test_only_what_has_waited_long_enough_is_withdrawn() -> None:
    holding, early, late, begun = Holding(8, Unread()), attempt(), attempt(), attempt()
    holding.add([early, late, begun])
    holding.begin(begun)
    early.claimed_at -= 1
    begun.claimed_at -= 1

    withdrawn = holding.withdraw(older_than=0.5)

    assert withdrawn == [early]
    assert [one.phase for one in (early, late, begun)] == [Phase.OVER, Phase.WAITING, Phase.RUNNING]
    assert (holding.running(), holding.room(0)) == ([begun], 6)


def test_of_a_begin_and_a_withdrawal_at_once_exactly_one_wins() -> None:
    """B062: what is handed back is not carried out, and what is carried out is not handed back."""
    holding = Holding(1, Unread())
    attempts = [attempt() for _ in range(300)]
    holding.add(attempts)
    ready = threading.Barrier(2)

    def begin() -> list[bool]:
        ready.wait(5)
        return [holding.begin(one) for one in reversed(attempts)]

    def withdraw() -> set[int]:
        ready.wait(5)
        return {id(one) for one in holding.withdraw()}

    with ThreadPoolExecutor(2) as pool:
        beginning, withdrawing = pool.submit(begin), pool.submit(withdraw)
        begun = dict(zip(map(id, reversed(attempts)), beginning.result(5), strict=True))

    assert all(begun[one] != (one in withdrawing.result(5)) for one in begun)
    assert len(holding.running()) == sum(begun.values())


def test_of_two_that_end_an_attempt_the_first_counts() -> None:
    holding, held = Holding(1, Unread()), attempt()
    holding.add([held])
    waiting = holding.end(held)
    holding.begin(held)

    assert (waiting, holding.end(held), holding.end(held)) == (False, True, False)
    assert holding.room(0) == 1


def test_the_successor_of_a_lost_attempt_is_held_beside_it() -> None:
    holding, lost = Holding(2, Unread()), attempt()
    successor = attempt()
    successor.claim = lost.claim._replace(token=3)
    holding.add([lost, successor])

    holding.drop([lost])

    assert holding.all() == [successor]


def test_idle_is_when_no_thread_is_busy_but_for_the_lost_ones() -> None:
    holding, stuck, short = Holding(2, Unread()), attempt(), attempt()
    holding.add([stuck, short])
    holding.begin(stuck), holding.begin(short)
    before = holding.wait_idle(lost=1, seconds=0.01)

    with ThreadPoolExecutor(1) as pool:
        idle = pool.submit(holding.wait_idle, lost=1, seconds=10)
        holding.end(short)

        assert idle.result(5)
    assert (before, holding.wait_idle(lost=0, seconds=0.01)) == (False, False)


def test_an_attempts_time_begins_when_it_does() -> None:
    holding, held = Holding(1, Unread()), attempt(timeout=60)
    holding.add([held])
    before = time.monotonic()

    holding.begin(held)

    assert before + 60 <= held.deadline <= time.monotonic() + 60
