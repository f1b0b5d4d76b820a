"""Whatever is raised, what is kept of it is bounded text that PostgreSQL can hold, and making it never raises."""

from __future__ import annotations

import time

import pytest

from flowforge.workflow.failure import describe

MESSAGE, TRACEBACK = 4_200, 16_200  # characters, with the note of what was left out


def caught(error: BaseException) -> BaseException:
    """Return the exception with a traceback."""
    try:
        raise error  # noqa: TRY301 - for its traceback
    except BaseException as raised:  # noqa: BLE001 - whatever was given
        return raised


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class RecursiveError(Exception):
    def __str__(self) -> str:
        return str(self)

    __repr__ = __str__


class NotTextError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307 - that is the point


class TwoArgumentsError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)

    def __reduce__(self) -> str:
        raise TypeError("cannot be pickled")


def in_a_circle() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def with_junk_notes() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = [5, UnprintableError(), "\x00"]
    return error


def deeply_nested() -> BaseException:
    error: Exception = ValueError("innermost")
    for _ in range(5_000):
        error = ExceptionGroup("layer", [error])
    return error


def long_chain() -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(5_000):
        following = ValueError(f"number {number}")
        following.__cause__, error = error, following
    return error


NASTY = {
    "unprintable": UnprintableError(),
    "recursive": RecursiveError(),
    "not text": NotTextError(),
    "two arguments": TwoArgumentsError(1, 2),
    "50 MB": ValueError("x" * 50_000_000),
    "NUL": ValueError("a\x00b"),
    "surrogate": ValueError("a\ud800b"),
    "bytes": ValueError(b"\xff\x00"),
    "circle": in_a_circle(),
    "junk notes": with_junk_notes(),
    "group": ExceptionGroup("many", [ValueError(str(n)) for n in range(10_000)]),
    "nested": deeply_nested(),
    "chain": long_chain(),
    "name": type("N" * 10_000, (Exception,), {})("named"),
    "exit": SystemExit(3),
    "empty": Exception(),
}


@pytest.mark.parametrize("name", NASTY)
def test_anything_raised_becomes_bounded_text_that_can_be_stored(name: str) -> None:
    """B110, B111."""
    error = caught(NASTY[name])

    began = time.monotonic()
    described = describe(error)

    assert time.monotonic() - began < 5
    assert sorted(described) == ["message", "traceback", "type"]
    assert len(described["type"]) < 300
    assert len(described["message"]) <= MESSAGE
    assert len(described["traceback"]) <= TRACEBACK
    assert b"\x00" not in "".join(described.values()).encode()


def test_an_ordinary_error_is_told_whole() -> None:
    described = describe(caught(KeyError("order 7")))

    assert (described["type"], described["message"]) == ("KeyError", "'order 7'")
    assert described["traceback"].startswith("Traceback (most recent call last):")
    assert described["traceback"].endswith("KeyError: 'order 7'\n")
    assert "in caught" in described["traceback"]


@pytest.mark.parametrize(
    ("error", "type_"), [(UnprintableError(), "RuntimeError"), (RecursiveError(), "RecursionError")]
)
def test_a_message_that_cannot_be_read_says_why(error: Exception, type_: str) -> None:
    """B110."""
    assert describe(error)["message"] == f"<its message cannot be read: {type_}>"


def test_nul_and_lone_surrogates_stay_visible() -> None:
    """B111."""
    assert describe(ValueError("a\x00b\ud800c"))["message"] == "a\\x00b\\ud800c"


def test_both_ends_of_a_long_message_are_kept() -> None:
    message = describe(ValueError("begin" + "x" * 10_000 + "end"))["message"]

    assert message.startswith("beginxxx")
    assert message.endswith("xxxend")
    assert "\n… 6008 characters left out …\n" in message


def test_of_a_deep_stack_the_frames_nearest_to_the_fault_are_kept() -> None:
    """B116."""

    def sink(depth: int) -> None:
        if depth:
            sink(depth - 1)
        else:
            raise_at_the_bottom()

    def raise_at_the_bottom() -> None:
        raise ValueError("bottom")

    with pytest.raises(ValueError, match="bottom") as raised:
        sink(500)

    assert "in raise_at_the_bottom" in describe(raised.value)["traceback"]


def test_the_cause_is_told_with_the_error() -> None:
    error = ValueError("outer")
    error.__cause__ = caught(KeyError("inner"))

    traceback = describe(caught(error))["traceback"]

    assert "KeyError: 'inner'" in traceback
    assert "direct cause of the following exception" in traceback


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, RecursionError])
@pytest.mark.parametrize("method", ["__str__", "__repr__"])
def test_an_exception_that_ends_the_process_when_it_is_printed_is_kept_all_the_same(
    raised: type[BaseException], method: str
) -> None:
    """B110."""

    def fail(_: object) -> str:
        raise raised

    error = type("Broken", (Exception,), {method: fail})("x")
    error.__notes__ = type("Notes", (), {"__iter__": fail})()

    told = describe(error)

    assert told["type"].endswith("Broken")
    assert told["message"]
