"""Durations in words, and retry policies that the database can hold and the clock can carry out."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowforge.actors.execution import pause
from flowforge.durations import seconds
from flowforge.errors import DefinitionError
from flowforge.workflow import Definition, Retry, StoredTask


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (timedelta(minutes=1.5), 90),
        (2, 2),
        (0.25, 0.25),
        ("500ms", 0.5),
        ("1s", 1),
        ("1.5s", 1.5),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86400),
        (" 3 s ", 3),
        ("0s", 0),
    ],
)
def test_a_duration_is_read_in_seconds(duration: Any, expected: float) -> None:
    assert seconds(duration, "delay") == expected


@pytest.mark.parametrize("duration", ["", "1", "s", "1 sec", "-1s", "1e3s", "1s 5m", ".5s", "\x00", None, [1]])
def test_other_words_are_refused_with_the_option_and_the_value(duration: Any) -> None:
    with pytest.raises(DefinitionError) as caught:
        seconds(duration, "delay")

    assert str(caught.value).startswith(f"delay={duration!r}: write seconds as a number, or a text such as '500ms'")


@pytest.mark.parametrize("duration", [-1, "367d", math.inf, -math.inf, math.nan, 1e300, timedelta.max, -timedelta(1)])
def test_a_duration_has_bounds(duration: Any) -> None:
    """B080."""
    with pytest.raises(DefinitionError, match="it must lie between 0 and 31622400 seconds"):
        seconds(duration, "delay")


def test_the_default_is_one_attempt_and_two_lost_workers() -> None:
    assert (Retry().attempts, Retry().lost) == (1, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 1000, "lost": 1000, "factor": 100, "delay": "366d", "max_delay": "366d"},
        {"attempts": 1, "lost": 0, "factor": 1, "delay": 0, "max_delay": 0},
        {"delay": "5m", "max_delay": timedelta(minutes=5)},
    ],
    ids=["largest", "smallest", "equal"],
)
def test_bounds_belong_to_the_range(options: dict[str, Any]) -> None:
    assert Retry(**options) == Retry(**options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("attempts", 0),
        ("attempts", 1001),
        ("attempts", 2.5),
        ("attempts", "3"),
        ("lost", -1),
        ("lost", 1001),
        ("lost", None),
        ("factor", 0.5),
        ("factor", 101),
        ("factor", math.inf),
        ("factor", math.nan),
    ],
)
def test_what_the_database_would_refuse_is_refused_with_its_name(option: str, value: Any) -> None:
    """B079, B080."""
    with pytest.raises(DefinitionError, match=rf"Retry\({option}={value!r}\): it must be a .*number between"):
        Retry(**{option: value})


def test_a_delay_is_at_most_the_longest() -> None:
    with pytest.raises(DefinitionError, match=r"Retry\(delay='1h', max_delay='5m'\)"):
        Retry(delay="1h")


policies = st.builds(
    Retry,
    attempts=st.integers(1, 1000),
    factor=st.floats(1, 100),
    delay=st.floats(0, 300),
    max_delay=st.floats(300, 366 * 86400),
)


@settings(deadline=None)
@given(policies, st.data())
def test_no_pause_is_longer_than_the_longest(retry: Retry, data: st.DataObject) -> None:
    """B080: the power overflows a float long before the last attempt."""
    failures_left = data.draw(st.integers(1, retry.attempts))

    waited = pause(stored(retry), failures_left)

    assert 0 <= waited <= seconds(retry.max_delay, "max_delay")


def test_each_pause_is_longer_by_the_factor_until_the_longest() -> None:
    task = stored(Retry(attempts=6, delay="1s", factor=3, max_delay="20s"))

    pauses = [pause(task, failures_left) for failures_left in (5, 4, 3, 2, 1)]

    assert all(0.75 * most <= waited <= most for waited, most in zip(pauses, [1, 3, 9, 20, 20], strict=True))


def stored(retry: Retry) -> StoredTask:
    """Return a task with the policy as a version stores it."""
    return StoredTask.of(Definition[Any]("any").task(lambda: None, key="any", retry=retry))
