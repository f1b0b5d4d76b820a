"""A property that is computed once, and that no fork can leave locked."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from flowforge.once import once


class Slow:
    """Something whose value takes as long as the test wants."""

    def __init__(self, begun: threading.Event, go_on: threading.Event) -> None:
        self.begun, self.go_on, self.computed = begun, go_on, 0

    @once
    def value(self) -> int:
        """A value."""
        self.begun.set()
        assert self.go_on.wait(20)
        self.computed += 1
        return 42


def free() -> Slow:
    go_on = threading.Event()
    go_on.set()
    return Slow(threading.Event(), go_on)


def test_it_is_computed_once_for_each_object() -> None:
    one, other = free(), free()

    assert (one.value, one.value, other.value) == (42, 42, 42)
    assert (one.computed, other.computed) == (1, 1)
    assert Slow.value.__doc__ == "A value."


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_is_forked_while_another_thread_computes_it_can_compute_it_too() -> None:
    """B100: with functools' own, of Python 3.11, it waits for ever."""
    slow = Slow(threading.Event(), threading.Event())
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.begun.wait(20)

    child = multiprocessing.get_context("fork").Process(target=lambda: free().value)
    child.start()
    child.join(20)
    code = child.exitcode
    child.kill()
    slow.go_on.set()
    thread.join()

    assert code == 0
