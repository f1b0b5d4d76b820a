"""The cases of faults.md: what crontab means, and what is refused with the field, the value and a remedy."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import islice

import pytest

from flowforge.errors import DefinitionError
from flowforge.schedule import Cron
from flowforge.schedule.sequence import latest, slots


def fires(expression: str, start: str, count: int, timezone: str = "UTC") -> list[str]:
    """Return the next slots in UTC, as short as they can be written."""
    found = islice(slots(Cron(expression, timezone), datetime.fromisoformat(start)), count)
    return [slot.strftime("%Y-%m-%dT%H:%MZ") for slot in found]


def days(expression: str, start: str, count: int) -> list[str]:
    return [fire.removesuffix("T00:00Z") for fire in fires(expression, start, count)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("0 0 * * 0", ["2026-12-06", "2026-12-13"]), ("0 0 * * sun", ["2026-12-06", "2026-12-13"])],
)
def test_zero_is_sunday(expression: str, expected: list[str]) -> None:
    """B001."""
    assert days(expression, "2026-11-30T00:00Z", 2) == expected


@pytest.mark.parametrize("number", range(8))
def test_the_number_and_the_name_of_a_weekday_agree_in_any_case(number: int) -> None:
    """B001, B002: 7 is Sunday too."""
    name = ["sun", "Mon", "TUE", "wed", "tHu", "fri", "SAT", "SUN"][number]

    by_number, by_name = (fires(f"30 7 * * {day}", "2026-11-30T00:00Z", 3) for day in (number, name))

    assert by_number == by_name
    assert all(datetime.fromisoformat(fire).isoweekday() % 7 == number % 7 for fire in by_number)


def test_one_to_five_is_monday_to_friday() -> None:
    """B001."""
    fired = fires("0 9 * * 1-5", "2026-11-28T00:00Z", 6)

    assert [datetime.fromisoformat(fire).isoweekday() for fire in fired] == [1, 2, 3, 4, 5, 1]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("15 10,12 * * 1,7", ["2026-12-06T10:15Z", "2026-12-06T12:15Z", "2026-12-07T10:15Z"]),
        ("0 0 * * 5-7", ["2026-12-04T00:00Z", "2026-12-05T00:00Z", "2026-12-06T00:00Z"]),
        ("0 0 * * 0,7", ["2026-12-06T00:00Z", "2026-12-13T00:00Z", "2026-12-20T00:00Z"]),
    ],
)
def test_seven_is_sunday_and_fires_once(expression: str, expected: list[str]) -> None:
    """B002."""
    assert fires(expression, "2026-12-01T00:00Z", 3) == expected


def test_day_of_month_or_weekday_where_both_are_restricted() -> None:
    """B003."""
    expected = ["2026-11-06", "2026-11-13", "2026-11-20", "2026-11-27", "2026-12-04", "2026-12-11"]

    assert days("0 0 13 * 5", "2026-11-01T00:00Z", 6) == expected


def test_day_of_month_and_weekday_where_one_begins_with_a_star() -> None:
    """B003: the rule for `*/2` is cronsim's and Debian's: a star is no restriction, so both must match."""
    assert days("0 0 */2 * 1", "2026-11-01T00:00Z", 3) == ["2026-11-09", "2026-11-23", "2026-12-07"]


def test_a_daily_job_comes_once_when_clocks_go_back() -> None:
    """B004."""
    fired = fires("30 1 * * *", "2026-10-31T12:00-04:00", 2, "America/New_York")

    assert fired == ["2026-11-01T05:30Z", "2026-11-02T06:30Z"]


def test_a_half_hourly_job_comes_every_half_hour_when_clocks_go_back() -> None:
    """B004."""
    fired = fires("*/30 * * * *", "2026-11-01T00:59-04:00", 4, "America/New_York")

    assert fired == ["2026-11-01T05:00Z", "2026-11-01T05:30Z", "2026-11-01T06:00Z", "2026-11-01T06:30Z"]


def test_a_shift_of_half_an_hour_neither_doubles_nor_loses() -> None:
    """B004: Lord Howe's clocks go back by thirty minutes."""
    fired = fires("*/30 1-2 * * *", "2026-04-04T13:59Z", 5, "Australia/Lord_Howe")

    assert fired == [f"2026-04-04T{time}Z" for time in ("14:00", "14:30", "15:00", "15:30", "16:00")]


def test_a_job_in_the_hour_that_clocks_leave_out_comes_once_right_after_it() -> None:
    """B005."""
    fired = fires("30 2 * * *", "2026-03-07T12:00-05:00", 2, "America/New_York")

    assert fired == ["2026-03-08T07:00Z", "2026-03-09T06:30Z"]


@pytest.mark.parametrize("minute", [31, 59, 61])
def test_a_slot_within_the_repeated_hour_is_no_obstacle(minute: int) -> None:
    """B022: the last slot was 01:30 of the second pass; the scheduler comes back within it, or after."""
    moment = f"2026-11-01T0{6 + minute // 60}:{minute % 60:02}Z"

    assert fires("30 1 * * *", moment, 1, "America/New_York") == ["2026-11-02T06:30Z"]


@pytest.mark.parametrize("expression", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */31 2 MON#5"])
def test_a_date_that_never_comes_is_refused(expression: str) -> None:
    """B017."""
    with pytest.raises(DefinitionError, match="never occurs"):
        Cron(expression)


def test_an_impossible_date_beside_a_weekday_is_the_weekday() -> None:
    """B017."""
    assert days("0 0 31 2 1", "2027-01-15T00:00Z", 2) == ["2027-02-01", "2027-02-08"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("2026-11-30T00:00Z", "2028-02-29"),
        ("2028-02-29T00:00Z", "2032-02-29"),
        ("2096-03-01T00:00Z", "2104-02-29"),
    ],
)
def test_leap_days_come_however_long_they_take(start: str, expected: str) -> None:
    """B018: 2100 is no leap year."""
    assert days("0 0 29 2 *", start, 1) == [expected]


@pytest.mark.parametrize(
    ("end", "expected"),
    [("2028-02-28T00:00Z", "2024-02-29"), ("2028-02-29T00:00Z", "2024-02-29"), ("2028-02-29T00:01Z", "2028-02-29")],
)
def test_the_leap_day_before_is_found(end: str, expected: str) -> None:
    """B018."""
    (found,) = latest(Cron("0 0 29 2 *"), datetime.fromisoformat(end), 1)

    assert found.date().isoformat() == expected


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("*/0 * * * *", "minute '*/0'"),
        ("*/00 * * * *", "minute '*/00'"),
        ("1/00 * * * *", "minute '1/00'"),
        ("*/60 * * * *", "minute '*/60'"),
        ("*/90 * * * *", "minute '*/90'"),
        ("0 */24 * * *", "hour '*/24'"),
        ("5-1 * * * *", "minute '5-1'"),
        ("60 * * * *", "minute '60'"),
        ("0 24 * * *", "hour '24'"),
        ("0 0 0 * *", "day-of-month '0'"),
        ("0 0 * 13 *", "month '13'"),
        ("0 0 * * 8", "day-of-week '8'"),
        ("0 8 * * FRI-MON", "day-of-week 'FRI-MON' goes backwards"),
        ("0 8 * * 5-1", "day-of-week '5-1' goes backwards"),
        ("0 22-2 * * *", "hour '22-2' goes backwards"),
        ("0 0 28-3 * *", "day-of-month '28-3' goes backwards"),
        ("0 0 * DEC-JAN *", "month 'DEC-JAN' goes backwards"),
        ("a * * * *", "minute 'a'"),
        ("-1 * * * *", "minute '-1'"),
        ("1,,2 * * * *", "minute '1,,2'"),
        ("٣ * * * *", "minute '٣'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_field(expression: str, field: str) -> None:
    """B019, B138."""
    began = time.perf_counter()

    with pytest.raises(DefinitionError) as refused:
        Cron(expression)

    assert field in str(refused.value)
    assert time.perf_counter() - began < 1  # seconds; it is microseconds, unless it hangs


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("", "has 0 fields: write five"),
        ("* * * *", "has 4 fields: write five"),
        ("0 * * * * *", "has 6 fields: write five"),
        ("@daily", "'0 0 \\* \\* \\*'"),
        ("* " * 50_000, "at most 255 characters"),
        (None, "at most 255 characters"),
    ],
)
def test_other_than_five_fields_are_refused_with_a_remedy(expression: str, remedy: str) -> None:
    """B019: seconds and nicknames are other tools' grammar."""
    with pytest.raises(DefinitionError, match=remedy):
        Cron(expression)


@pytest.mark.parametrize("weekdays", ["SUN-SAT", "0-6", "1-7"])
def test_a_whole_week_is_every_day(weekdays: str) -> None:
    """B138."""
    assert len(set(days(f"0 0 * * {weekdays}", "2026-11-30T00:00Z", 7))) == 7


@pytest.mark.parametrize(
    ("expression", "start", "zone", "expected"),
    [
        ("0 12 * * 0", "2022-03-24T12:00+01:00", "Europe/Berlin", ["2022-03-27T10:00Z"]),
        (
            "0 0 */5 * *",
            "2022-02-20T00:00Z",
            "UTC",
            ["2022-02-21T00:00Z", "2022-02-26T00:00Z", "2022-03-01T00:00Z", "2022-03-06T00:00Z"],
        ),
        ("0 0 1 * *", "2024-03-01T00:00+01:00", "Europe/Berlin", ["2024-03-31T22:00Z", "2024-04-30T22:00Z"]),
    ],
)
def test_days_are_the_calendars_and_not_86400_seconds(
    expression: str, start: str, zone: str, expected: list[str]
) -> None:
    """B137."""
    assert fires(expression, start, len(expected), zone) == expected


def test_a_zone_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        DefinitionError, match=r"'Europe/Berlni' is no IANA time zone \(did you mean 'Europe/Berlin'\?\)"
    ):
        Cron("0 0 * * *", "Europe/Berlni")


@pytest.mark.parametrize("zone", ["", "/etc/passwd", "../UTC", "\x00", None, "Local"])
def test_what_is_no_name_of_a_zone_is_refused(zone: str) -> None:
    with pytest.raises(DefinitionError, match="is no IANA time zone"):
        Cron("0 0 * * *", zone)


def test_the_last_day_and_the_second_friday_are_understood() -> None:
    assert days("0 0 L * *", "2027-01-15T00:00Z", 2) == ["2027-01-31", "2027-02-28"]
    assert days("0 0 * * FRI#2", "2027-01-01T00:00Z", 2) == ["2027-01-08", "2027-02-12"]


def test_it_is_said_in_words() -> None:
    assert Cron("30 7 * * MON-FRI", "Europe/Berlin").words == "At 07:30 on Monday through Friday, Europe/Berlin"


@pytest.mark.parametrize(
    "moment", [datetime(2026, 11, 30, 6, 30, 0, 1, UTC), datetime(2026, 11, 30, 6, 29, 59, 9, UTC)]
)
def test_a_moment_between_minutes_is_followed_by_the_next(moment: datetime) -> None:
    found = Cron("30 * * * *").after(moment)

    assert found == datetime(2026, 11, 30, 6 if moment.minute == 29 else 7, 30, tzinfo=UTC)
