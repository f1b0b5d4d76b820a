"""Cron against an oracle that looks at every minute around clock changes."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from flowforge.errors import DefinitionError
from flowforge.schedule import Cron
from flowforge.schedule.sequence import between
from tests.unit.schedule import walker

#: Where clocks are set in every way there is: by half an hour, by two, at midnight, backwards in winter, for Ramadan.
ZONES = """
    Africa/Cairo Africa/Casablanca Africa/El_Aaiun America/Adak America/Anchorage America/Asuncion America/Boise
    America/Chicago America/Chihuahua America/Coyhaique America/Denver America/Detroit America/Godthab
    America/Goose_Bay America/Halifax America/Havana America/Los_Angeles America/Mazatlan America/Mexico_City
    America/Miquelon America/Moncton America/New_York America/Nuuk America/Port-au-Prince America/Santiago
    America/Scoresbysund America/St_Johns America/Thule America/Tijuana America/Toronto America/Vancouver
    America/Winnipeg Antarctica/Casey Antarctica/Macquarie Antarctica/Troll Asia/Almaty Asia/Amman Asia/Beirut
    Asia/Damascus Asia/Gaza Asia/Hebron Asia/Jerusalem Asia/Kathmandu Asia/Nicosia Asia/Tehran Atlantic/Azores
    Atlantic/Bermuda Atlantic/Canary Australia/Adelaide Australia/Hobart Australia/Lord_Howe Australia/Sydney
    Europe/Berlin Europe/Chisinau Europe/Dublin Europe/Helsinki Europe/Lisbon Europe/London Europe/Volgograd
    Pacific/Auckland Pacific/Chatham Pacific/Easter Pacific/Fiji Pacific/Norfolk
""".split()  # noqa: SIM905 - a list would have a line for each
_WINDOW = timedelta(hours=8)


def expressions(seed: int, count: int) -> list[str]:
    """Return expressions that occur."""
    dice, found = random.Random(seed), list[str]()
    while len(found) < count:
        text = walker.expression(dice)
        try:
            Cron(text)
        except DefinitionError:
            continue
        found.append(text)
    return found


def check(zone: str, first_year: int, last_year: int, texts: list[str], dice: random.Random) -> int:
    """Compare every expression around every clock change, from a random point before it too; return how often."""
    compared = 0
    ordinary = [datetime(2026, 11, 30, tzinfo=UTC)]
    for changed in walker.changes(zone, first_year, last_year) or ordinary:
        start, end = changed - _WINDOW, changed + _WINDOW
        shown = walker.minutes(zone, start, end)
        for text in texts:
            expected = walker.walk(text, shown)
            other = start + timedelta(seconds=dice.randrange(int(_WINDOW.total_seconds()) * 2))
            for point in (start, other):
                after = [slot for slot in expected if slot > point]
                assert list(between(Cron(text, zone), point, end)) == after, (zone, text, changed, point)
            compared += 1
    return compared


def test_a_sample_of_zones_and_expressions_fires_when_a_walk_by_minutes_says() -> None:
    """B004, B005, B007, B022: around clock changes, from any starting point."""
    seed = random.randrange(1_000_000)
    dice = random.Random(seed)
    zones = {"Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", *dice.sample(ZONES, 3)}

    compared = sum(check(zone, 2026, 2027, expressions(seed, 25), dice) for zone in sorted(zones))

    assert compared > 150, seed


@pytest.mark.soak
@pytest.mark.parametrize("zone", ZONES)
def test_every_zone_and_expression_fires_when_a_walk_by_minutes_says(zone: str) -> None:
    """B004, B005, B007, B022: 300 expressions around every clock change from 2020 to 2040."""
    compared = check(zone, 2020, 2040, expressions(1, 300), random.Random(1))

    assert compared >= 300
