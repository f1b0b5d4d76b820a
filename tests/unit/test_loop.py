"""A loop goes on after a turn that failed, says so, and ends when it is told to."""

from __future__ import annotations

import logging
import threading
from itertools import count
from typing import TYPE_CHECKING

import pytest

from flowforge import loop
from flowforge.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(loop, "_LONGEST_PAUSE", 0.004)


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[], object]], Loop]]:
    """Start loops that are stopped after the test."""
    loops: list[Loop] = []

    def start(turn: Callable[[], object]) -> Loop:
        loops.append(Loop("test-loop", turn))
        loops[-1].start()
        return loops[-1]

    yield start
    for started in loops:
        started.stop(5)
        assert not started.is_alive()


def test_turns_are_taken_one_after_another_until_stop(start: Callable[[Callable[[], object]], Loop]) -> None:
    taken, third = count(1), threading.Event()
    looping = start(lambda: third.set() if next(taken) == 3 else None)

    assert third.wait(5)
    looping.stop(5)

    assert not looping.is_alive()
    after = next(taken)
    assert next(taken) == after + 1


def test_a_failing_turn_is_logged_and_taken_again(
    start: Callable[[Callable[[], object]], Loop], caplog: pytest.LogCaptureFixture
) -> None:
    """B009."""
    turns, recovered = iter([ValueError("one"), ValueError("two"), None]), threading.Event()

    def turn() -> None:
        if error := next(turns, None):
            raise error
        recovered.set()

    with caplog.at_level(logging.ERROR, logger="flowforge.loop"):
        start(turn)
        assert recovered.wait(5)

    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("one",), ("two",)]
    assert all(record.message.startswith("loop.turn_failed loop=test-loop pause=") for record in caplog.records)


def test_the_pause_doubles_up_to_the_longest_and_begins_anew_after_a_good_turn(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B126."""
    monkeypatch.setattr(loop, "_FIRST_PAUSE", 0.1)
    monkeypatch.setattr(loop, "_LONGEST_PAUSE", 0.3)
    bad, turns, done = ValueError("bad"), iter("bbbgb"), threading.Event()

    def turn() -> None:
        kind = next(turns, None)
        if kind == "b":
            raise bad
        if kind is None:
            done.set()

    looping = Loop("test-loop", turn)
    monkeypatch.setattr(looping._stopped, "wait", lambda _: None)
    looping.start()
    assert done.wait(5)
    looping.stop(5)

    pauses = [record.message.rpartition("=")[2] for record in caplog.records]
    assert pauses == ["0.1", "0.2", "0.3", "0.1"]


def test_stop_ends_a_pause_at_once(
    start: Callable[[Callable[[], object]], Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_FIRST_PAUSE", 60)
    failed = threading.Event()

    def turn() -> None:
        failed.set()
        raise ValueError

    looping = start(turn)
    assert failed.wait(5)
    looping.stop(5)

    assert not looping.is_alive()


def test_a_loop_does_not_keep_its_process_alive() -> None:
    assert Loop("test-loop", lambda: None).daemon
