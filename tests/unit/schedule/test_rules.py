"""Every, Calendar and At; and what holds for every kind of rule."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowforge.errors import DefinitionError
from flowforge.schedule import At, Calendar, Cron, Every, Rule
from flowforge.schedule.sequence import between, latest, slots
from flowforge.schedule.stored import load, store
from tests.unit.schedule.test_cron_walker import ZONES

RULES: dict[str, Rule] = {
    "daily in the hour that is left out": Cron("30 2 * * *", "America/New_York"),
    "every half hour": Cron("*/30 * * * *", "Australia/Lord_Howe"),
    "every 7 s": Every("7s"),
    "every 36 h from an anchor": Every("36h", datetime(2026, 3, 1, 5, tzinfo=UTC), "Europe/Berlin"),
    "the 31st": Calendar(date(2026, 1, 31), months=1, at=time(2, 30), timezone="Europe/Berlin"),
    "each other day": Calendar(date(2020, 1, 1), days=2, at=time(2, 30), timezone="America/New_York"),
    "leap days": Calendar(date(2024, 2, 29), years=1),
    "once": At(datetime(2026, 11, 1, 5, 30, tzinfo=UTC), "America/New_York"),
}
_NAIVE = datetime(2020, 1, 1)  # noqa: DTZ001 - what is refused
INSTANTS = st.datetimes(_NAIVE, _NAIVE.replace(year=2040), timezones=st.just(UTC))


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=40, deadline=None)
@given(start=INSTANTS, part=st.floats(0, 1, exclude_max=True))
def test_slots_follow_each_other_and_are_the_same_from_any_point(name: str, start: datetime, part: float) -> None:
    """B007."""
    rule = RULES[name]

    found = list(islice(slots(rule, start), 12))

    assert all(slot > start and slot.utcoffset() == timedelta() for slot in found)
    for before, after in pairwise([start, *found]):
        assert rule.after(before + (after - before) * part * 0.999) == after


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25, deadline=None)
@given(end=INSTANTS, count=st.integers(1, 5))
def test_the_last_slots_are_those_after_which_no_other_comes_in_time(name: str, end: datetime, count: int) -> None:
    rule = RULES[name]

    found = latest(rule, end, count, start=datetime(2015, 1, 1, tzinfo=UTC))

    assert len(found) <= count
    assert found == (list(between(rule, found[0] - timedelta(microseconds=1), end)) if found else [])


def test_the_last_slots_end_where_they_are_told_to() -> None:
    minutely, end = Cron("* * * * *"), datetime(2026, 11, 30, 12, tzinfo=UTC)

    assert len(latest(minutely, end, 50, start=end - timedelta(minutes=31))) == 30
    assert latest(minutely, end, 2) == [end - timedelta(minutes=2), end - timedelta(minutes=1)]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_stored_and_read_back(name: str) -> None:
    assert load(store(RULES[name])) == RULES[name]


def test_the_spaces_of_an_expression_do_not_matter() -> None:
    assert store(Cron("0  0\t* * *")) == store(Cron("0 0 * * *"))


@pytest.mark.parametrize(
    ("kind", "data", "told"),
    [
        ("cron", {}, "KeyError"),
        ("every", {"seconds": 5, "anchor": "soon"}, "soon"),
        ("solar", {}, "unknown kind"),
        ("cron", {"expression": "* *"}, "2 fields"),
    ],
)
def test_what_is_stored_and_no_rule_is_refused(kind: str, data: dict[str, Any], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        load((kind, data, "UTC"))


def test_every_counts_from_its_anchor() -> None:
    """B021: a restart or another time zone of the process moves nothing."""
    rule = Every("90m", datetime(2026, 11, 30, 0, 15, tzinfo=timezone(timedelta(hours=5, minutes=45))))

    found = list(islice(slots(rule, datetime(2026, 11, 30, tzinfo=UTC)), 2))

    assert found == [datetime(2026, 11, 30, 0, 30, tzinfo=UTC), datetime(2026, 11, 30, 2, tzinfo=UTC)]


def test_an_anchor_may_lie_in_the_future() -> None:
    rule = Every("1h", datetime(2030, 1, 1, 0, 20, tzinfo=UTC))

    assert rule.after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 1, 0, 20, tzinfo=UTC)


def test_a_calendar_keeps_the_day_and_leaves_out_months_without_it() -> None:
    rule = Calendar(date(2026, 1, 31), months=1)

    found = [slot.date().isoformat() for slot in islice(slots(rule, datetime(2026, 1, 1, tzinfo=UTC)), 4)]

    assert found == ["2026-01-31", "2026-03-31", "2026-05-31", "2026-07-31"]


def test_a_calendar_comes_right_after_the_hour_that_clocks_leave_out_and_once_in_one_that_comes_twice() -> None:
    """B004, B005: APScheduler's own trigger leaves that day out."""
    rule = Calendar(date(2026, 3, 1), days=1, at=time(2, 30), timezone="Europe/Berlin")

    spring = [slot.isoformat() for slot in islice(slots(rule, datetime(2026, 3, 28, 12, tzinfo=UTC)), 2)]
    autumn = [slot.isoformat() for slot in islice(slots(rule, datetime(2026, 10, 24, 12, tzinfo=UTC)), 2)]

    assert spring == ["2026-03-29T01:00:00+00:00", "2026-03-30T00:30:00+00:00"]
    assert autumn == ["2026-10-25T00:30:00+00:00", "2026-10-26T01:30:00+00:00"]


def test_at_fires_once() -> None:
    rule = At(datetime(2026, 11, 30, 1, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))))

    assert list(slots(rule, datetime(2020, 1, 1, tzinfo=UTC))) == [datetime(2026, 11, 29, 19, 45, tzinfo=UTC)]
    assert rule.after(rule.moment) is None


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: At(_NAIVE), "moment=.*give a datetime with an offset"),
        (lambda: At("2026-11-30"), "give a datetime with an offset"),  # type: ignore[arg-type]
        (lambda: Every("1h", _NAIVE), "anchor=.*with an offset"),
        (lambda: Every("999ms"), "at least a second"),
        (lambda: Every("soon"), "interval='soon'"),
        (lambda: Every("1h", timezone="Mars"), "timezone='Mars'"),
        (lambda: Calendar(date(2026, 1, 1)), "needs years, months, weeks or days"),
        (lambda: Calendar(date(2026, 1, 1), days=-1), "days=-1"),
        (lambda: Calendar(date(2026, 1, 1), years=101), "years=101"),
        (lambda: Calendar(date(2026, 1, 1), months=True), "months=True"),
        (lambda: Calendar(datetime(2026, 1, 1, tzinfo=UTC), days=1), "give a date"),
        (lambda: Calendar(date(2026, 1, 1), days=1, at=time(1, tzinfo=UTC)), "without an offset"),
        (lambda: Calendar(date(2026, 1, 1), days=1, timezone="Moon"), "timezone='Moon'"),
    ],
)
def test_what_makes_no_rule_is_refused_with_its_option(make: Any, told: str) -> None:
    """B021: a naive time means another instant in each process."""
    with pytest.raises(DefinitionError, match=told):
        make()


@pytest.mark.parametrize("name", RULES)
def test_each_says_itself_in_words(name: str) -> None:
    assert RULES[name].words


def test_a_step_takes_no_time_to_speak_of() -> None:
    """B007: however far it has to look, in whatever zone; a hang would show."""
    far = Cron("0 0 29 2 *", ZONES[0])

    assert far.after(datetime(2096, 3, 1, tzinfo=UTC)) is not None
    assert Calendar(date(1990, 1, 1), days=1).after(datetime(2200, 1, 1, tzinfo=UTC)) is not None
