"""A value is written by what it is, and read by an annotation; what JSON in PostgreSQL cannot hold is refused."""

import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from flowforge.errors import UnstorableValue
from flowforge.workflow import values


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Mode(Enum):
    FAST = "fast"


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Order:
    id: UUID
    amount: Decimal
    placed: datetime
    colour: Colour = Colour.RED


class Page(BaseModel):
    number: int = Field(alias="pageNumber")
    orders: list[Order] = []


@dataclass
class Tree:
    value: int
    children: list["Tree"] = field(default_factory=list)


ID = UUID("00000000-0000-4000-8000-000000000000")
KATHMANDU = timezone(timedelta(hours=5, minutes=45))
ORDER = Order(ID, Decimal("9.90"), datetime(2026, 11, 29, 1, 30, 0, 123456, KATHMANDU))

WRITTEN: list[tuple[Any, Any]] = [
    (None, None),
    (date, date(2026, 11, 29)),
    (datetime, datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    (datetime, datetime(2026, 11, 29, 1, 30, tzinfo=KATHMANDU)),
    (time, time(1, 30)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (UUID, ID),
    (Decimal, Decimal("0.1000")),
    (Colour, Colour.RED),
    (Size, Size.SMALL),
    (Mode, Mode.FAST),
    (Path, Path("/data/orders.parquet")),
    (bytes, b"text"),
    (Point, Point(1, 2)),
    (Order, ORDER),
    (Page, Page(pageNumber=3, orders=[ORDER])),
    (Tree, Tree(1, [Tree(2), Tree(3, [Tree(4)])])),
    (list[Order], [ORDER, ORDER]),
    (dict[date, Order], {date(2026, 11, 29): ORDER}),
    (dict[int, set[str]], {1: {"a", "b"}}),
    (tuple[int, str, Order], (1, "a", ORDER)),
    (tuple[Mode, ...], (Mode.FAST, Mode.FAST)),
    (frozenset[UUID], frozenset([ID])),
    (Order | None, None),
    (int | str, "7"),
    (int, 10**100),
    (str, "\\u0000 in words, \\\\ and \u20ac \U0001f600"),
]


@pytest.mark.parametrize(("annotation", "value"), WRITTEN, ids=[str(annotation) for annotation, _ in WRITTEN])
def test_a_value_comes_back_as_its_annotation_says(annotation: Any, value: Any) -> None:
    read = values.decode(values.as_json(value, "it"), annotation)

    assert read == value
    assert type(read) is type(value)


def test_an_instant_keeps_its_offset() -> None:
    """B115."""
    read = values.decode(values.as_json(ORDER, "it"), Order)

    assert read.placed.utcoffset() == timedelta(hours=5, minutes=45)
    assert values.encode(ORDER.placed, "it") == '"2026-11-29T01:30:00.123456+05:45"'


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
plain = st.recursive(leaves | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)


@settings(deadline=None, max_examples=60)
@given(plain)
def test_plain_data_is_json_as_it_is(value: Any) -> None:
    assert values.decode(values.as_json(value, "it"), Any) == value


instants = st.datetimes(timezones=st.just(UTC) | st.just(KATHMANDU))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.builds(Order, st.uuids(), st.decimals(allow_nan=False, allow_infinity=False), instants)))
def test_any_orders_come_back(orders: list[Order]) -> None:
    assert values.decode(values.as_json(orders, "it"), list[Order]) == orders


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("\\u0", max_size=12))
def test_a_text_is_refused_if_and_only_if_it_holds_nul(text: str) -> None:
    """B111."""
    for value in (text, {text: 1}, [{"a": text}]):
        if "\x00" in text:
            with pytest.raises(
                UnstorableValue, match=r"^it.* holds the character U\+0000, which PostgreSQL cannot store"
            ):
                values.encode(value, "it")
        else:
            assert json.loads(values.encode(value, "it")) == value


def circle() -> object:
    inner: list[object] = []
    inner.append({"again": inner})
    return inner


def tower() -> object:
    value: object = 1
    for _ in range(100_000):
        value = [value]
    return value


UNSTORABLE: dict[str, Callable[[], object]] = {
    "lone surrogate": lambda: "\ud800",
    "lone surrogate as key": lambda: {"\udfff": 1},
    "object": object,
    "object in a dataclass": lambda: Tree(1, [object()]),  # type: ignore[list-item]
    "function": lambda: circle,
    "class": lambda: Order,
    "exception": ValueError,
    "bytes that are no text": lambda: b"\xff",
    "a number of 5,000 digits": lambda: 10**5_000,
}


@pytest.mark.parametrize("name", UNSTORABLE)
def test_what_cannot_be_stored_is_refused_with_the_name_of_what_it_is(name: str) -> None:
    """B111, B112."""
    with pytest.raises(UnstorableValue, match=r"^the result of task 'load' cannot be stored as JSON"):
        values.encode(UNSTORABLE[name](), "the result of task 'load'")


NOON = datetime(2026, 11, 29, 12, 0)  # noqa: DTZ001 - the naive one


class Noon(Enum):
    NAIVE = NOON


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


PLACES: list[tuple[object, str]] = [
    (float("nan"), "it is nan, which JSON does not have: give None, or a text"),
    ({"a": [1, -float("inf")]}, "it, at ['a'][1], is -inf, which"),
    (Tree(1, [Tree(float("inf"))]), "it, at children[0].value, is inf, which"),  # type: ignore[arg-type]
    (
        Page(pageNumber=3, orders=[replace(ORDER, placed=NOON)]),
        "it, at orders[0].placed, is a datetime without an offset",
    ),
    (
        [NOON],
        "it, at [0], is a datetime without an offset (2026-11-29T12:00:00): give it one, as datetime.now(UTC) has",
    ),
    ({NOON: 1}, "it, at [datetime.datetime(2026, 11, 29, 12, 0)], is a datetime without an offset"),
    ({"a\x00": 1}, r"it, at ['a\x00'], holds the character U+0000, which PostgreSQL cannot store: remove it"),
    ([Point("\x00", 1)], "it, at [0][0], holds the character U+0000"),  # type: ignore[arg-type]
    (deque([NOON]), "it, at [0], is a datetime without an offset"),
    (circle(), "it holds itself, or is nested too deeply: give plain data without a circle"),
    (tower(), "it holds itself, or is nested too deeply: give plain data without a circle"),
    ([SecretStr("x")], "it, at [0], is a secret, of which only asterisks would be stored: give its name"),
    (Decimal("NaN"), "it is the decimal NaN, which is no number: give None, or a text"),
    (
        datetime(1930, 1, 1, tzinfo=ZoneInfo("Europe/Amsterdam")),
        "it has an offset with seconds (1930-01-01T00:00:00+00:19:32)",
    ),
    ([iter([1])], "it, at [0], is an iterator, which can be read only once: give a list of what it yields"),
    (Noon.NAIVE, "it is a datetime without an offset"),
    (Open(at=NOON), "it, at at, is a datetime without an offset"),  # type: ignore[call-arg]
    ({True: 1, "true": 2}, "it has two keys that are one text in JSON"),
    ({Mode.FAST: 1, "fast": 2}, "it has two keys that are one text in JSON"),
    ({b"a": 1, "a": 2}, "it has two keys that are one text in JSON"),
    ({(1, 2): 3}, "it has the key (1, 2), and JSON's keys are texts: give a list of pairs"),
    ({1: "a", "1": "b"}, "it has two keys that are one text in JSON, as 1 and '1' are: give a list of pairs"),
]


@pytest.mark.parametrize(("value", "message"), PLACES, ids=range(len(PLACES)))
def test_what_would_be_lost_or_changed_is_refused_with_its_place_and_the_remedy(value: object, message: str) -> None:
    """B111, B112, B115."""
    with pytest.raises(UnstorableValue, match="^" + re.escape(message)):
        values.encode(value, "it")


def test_not_a_number_in_a_model_does_not_become_nothing() -> None:
    """B112: pydantic alone would write null."""

    class Measure(BaseModel):
        level: float

    with pytest.raises(UnstorableValue, match="it, at level, is nan"):
        values.encode(Measure(level=float("nan")), "it")


def test_what_is_too_large_is_refused_by_its_bytes() -> None:
    """B116: six bytes between quotes."""
    text = values.encode("\u20ac\u20ac", "it")

    values.check_size(text, 8, "it")
    with pytest.raises(UnstorableValue, match="it has 8 bytes of JSON, and FLOWFORGE_VALUE_LIMIT is 7: keep the data"):
        values.check_size(text, 7, "it")


@pytest.mark.parametrize(("annotation", "data"), [(int, "a"), (date, "soon"), (Order, {}), (tuple[int, int], [1])])
def test_what_does_not_fit_the_annotation_is_not_read(annotation: Any, data: Any) -> None:
    with pytest.raises(ValidationError):
        values.decode(data, annotation)
