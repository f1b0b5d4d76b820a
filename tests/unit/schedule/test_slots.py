"""The slot as a parameter, triggers and their options, and previews."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

import pytest

from flowforge.errors import DefinitionError
from flowforge.schedule import SLOT, At, Cron, Every, SlotValue, Trigger, preview
from flowforge.schedule.zones import zone

BERLIN = zone("Europe/Berlin")
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
#: 02:30 of the day on which Berlin's clocks go forward, which is 03:00 then.
SPRING = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
NIGHTLY = Trigger("nightly", "sales", Cron("30 2 * * *", "Europe/Berlin"))


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (date, SLOT, date(2026, 3, 29)),
        (date | None, SLOT - DAY, date(2026, 3, 28)),
        (Annotated[date, "local"], SLOT + DAY, date(2026, 3, 30)),
        (datetime, SLOT, datetime(2026, 3, 29, 3, tzinfo=BERLIN)),
        (datetime, SLOT - HOUR, datetime(2026, 3, 29, 1, tzinfo=BERLIN)),
        (datetime, SLOT - DAY, datetime(2026, 3, 28, 3, tzinfo=BERLIN)),
        (datetime, SLOT - DAY - HOUR, datetime(2026, 3, 28, 2, tzinfo=BERLIN)),
        (str, SLOT, "2026-03-29T03:00:00+02:00"),
        (Any, SLOT - DAY, "2026-03-28T03:00:00+01:00"),
    ],
)
def test_a_parameter_gets_the_slot_as_it_is_annotated_and_by_local_clocks(
    annotation: Any, value: SlotValue, expected: Any
) -> None:
    taken = value.taken_by(annotation, "day")

    assert taken.at(SPRING, BERLIN) == expected
    assert SlotValue.of(taken.data()) == taken


def test_the_local_date_is_not_the_date_in_utc() -> None:
    just_after_midnight = datetime(2026, 7, 31, 22, 30, tzinfo=UTC)

    assert SLOT.taken_by(date, "day").at(just_after_midnight, BERLIN) == date(2026, 8, 1)


def test_a_parameter_that_takes_no_slot_is_refused() -> None:
    with pytest.raises(DefinitionError, match="parameter 'count' is <class 'int'>, which takes no slot"):
        SLOT.taken_by(int, "count")


def test_a_slot_is_not_moved_out_of_the_calendar() -> None:
    with pytest.raises(DefinitionError, match="it may be moved by 3660 days"):
        SLOT - timedelta(days=3661)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SLOT", SlotValue(form="text")),
        ("SLOT-1d", SlotValue(-DAY, "text")),
        ("SLOT+90m", SlotValue(HOUR * 1.5, "text")),
        ("SLOT.date", SlotValue(form="date")),
        ("SLOT.date-1d", SlotValue(-DAY, "date")),
        ("SLOTS", None),
        ("slot", None),
        ("eu", None),
    ],
)
def test_a_command_line_can_say_it(text: str, expected: SlotValue | None) -> None:
    assert SlotValue.parse(text) == expected


@pytest.mark.parametrize("text", ["SLOT-", "SLOT-x", "SLOT.date1d", "SLOT+-1d", "SLOT-1000000d"])
def test_a_command_line_that_says_it_wrongly_is_told_so(text: str) -> None:
    with pytest.raises(DefinitionError, match="SLOT"):
        SlotValue.parse(text)


def test_a_trigger_fires_between_its_bounds() -> None:
    hourly = Trigger("hourly", "sales", Every("1h"), start_at=SPRING, end_at=SPRING + 2 * HOUR)

    assert hourly.after(SPRING - DAY) == SPRING
    assert hourly.after(SPRING) == SPRING + HOUR
    assert hourly.after(SPRING + HOUR) == SPRING + 2 * HOUR
    assert hourly.after(SPRING + 2 * HOUR) is None


def test_jitter_delays_a_start_by_the_same_part_everywhere() -> None:
    spread = replace(NIGHTLY, jitter="10m")

    delays = {spread.delay(SPRING + n * DAY) for n in range(50)}

    assert len(delays) == 50
    assert all(timedelta() <= delay < timedelta(minutes=10) for delay in delays)
    assert spread.delay(SPRING) == replace(NIGHTLY, jitter=600).delay(SPRING)
    assert NIGHTLY.delay(SPRING) == timedelta()


def test_the_parameters_of_a_run_are_those_of_its_slot() -> None:
    trigger = replace(NIGHTLY, parameters={"region": "eu"}, slot_parameters={"day": (SLOT - DAY).taken_by(date, "day")})

    assert trigger.parameters_at(SPRING) == {"region": "eu", "day": "2026-03-28"}


def test_triggers_that_do_the_same_have_one_revision_and_others_do_not() -> None:
    changes: list[dict[str, Any]] = [
        {"slug": "daily"},
        {"workflow": "orders"},
        {"rule": Cron("30 2 * * *")},
        {"parameters": {"region": "us"}},
        {"slot_parameters": {"day": SlotValue(form="date")}},
        {"version": 2},
        {"start_at": SPRING},
        {"end_at": SPRING},
        {"jitter": 1},
        {"catch_up": 2},
        {"overlap": "skip"},
        {"pause_after": 3},
    ]

    revisions = {NIGHTLY.revision, *(replace(NIGHTLY, **change).revision for change in changes)}

    assert len(revisions) == len(changes) + 1
    assert replace(NIGHTLY, rule=Cron("30  2 * * *", "Europe/Berlin"), catch_up=1).revision == NIGHTLY.revision


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"slug": "Nightly"}, "trigger 'Nightly': use 1-63"),
        ({"slug": "a/b"}, "trigger 'a/b': use 1-63"),
        ({"slug": ""}, "trigger '': use 1-63"),
        ({"start_at": SPRING.replace(tzinfo=None)}, "start_at=.*with an offset"),
        ({"start_at": SPRING, "end_at": SPRING - DAY}, "before it starts"),
        ({"jitter": "soon"}, "jitter='soon'"),
        ({"catch_up": "all"}, "catch_up='all' must be 'none', 'latest', or a number up to 10000"),
        ({"catch_up": -1}, "catch_up=-1"),
        ({"catch_up": True}, "catch_up=True"),
        ({"overlap": "maybe"}, "overlap='maybe' must be one of allow, skip, queue_one, queue_all, cancel_running"),
        ({"pause_after": 0}, "pause_after=0"),
        ({"version": "1"}, "version='1'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_its_name(change: dict[str, Any], told: str) -> None:
    """B021: a naive bound is another instant in each process."""
    with pytest.raises(DefinitionError, match=told):
        replace(NIGHTLY, **change)


def test_a_preview_marks_what_clock_changes_do() -> None:
    spring = preview(NIGHTLY, SPRING - DAY, NIGHTLY.timezone, count=3)
    autumn = preview(
        Cron("0 * * * *", "Europe/Berlin"), datetime(2026, 10, 24, 23, tzinfo=UTC), "Europe/Berlin", count=3
    )

    assert [one.local.strftime("%d. %H:%M %z") for one in spring] == [
        "28. 02:30 +0100",
        "29. 03:00 +0200",
        "30. 02:30 +0200",
    ]
    assert [one.note for one in spring] == ["", "clocks have just gone forward", ""]
    assert [one.note.rpartition(" ")[2] for one in autumn] == ["first", "second", ""]
    assert [one.slot.hour for one in autumn] == [0, 1, 2]


def test_a_preview_ends_with_the_last_slot() -> None:
    assert len(preview(At(SPRING), SPRING - DAY, "UTC", count=5)) == 1
