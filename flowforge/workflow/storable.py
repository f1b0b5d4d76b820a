"""What JSON in PostgreSQL cannot hold, or would hold as something else: found in a value before it is written."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from flowforge.errors import UnstorableValue

_LISTS = (list, tuple, set, frozenset, deque)


def check(value: Any, what: str, path: str = "") -> None:
    """
    Raise `UnstorableValue` that says where in the value the problem is, and what to give instead.

    Raises RecursionError for a value that holds itself, or is nested beyond reason.
    """
    if found := _problem(value):
        where = f"{what}, at {path.removeprefix('.')}," if path else what
        raise UnstorableValue(f"{where} {found}")
    for name, part in _parts(value):
        check(part, what, path + name)


def _problem(value: Any) -> str | None:
    for kind, find in _FINDERS:
        if isinstance(value, kind):
            return find(value)
    return None


def _problem_of_float(value: float) -> str | None:
    return None if math.isfinite(value) else f"is {value}, which JSON does not have: give None, or a text"


def _problem_of_decimal(value: Decimal) -> str | None:
    return None if value.is_finite() else f"is the decimal {value}, which is no number: give None, or a text"


def _problem_of_text(value: str) -> str | None:
    return "holds the character U+0000, which PostgreSQL cannot store: remove it" if "\x00" in value else None


def _problem_of_iterator(_: object) -> str:
    return "is an iterator, which can be read only once: give a list of what it yields"


def _problem_of_secret(_: object) -> str:
    return "is a secret, of which only asterisks would be stored: give its name, and read it where it is used"


def _problem_of_instant(value: datetime) -> str | None:
    offset = value.utcoffset()
    if offset is None:
        return f"is a datetime without an offset ({value.isoformat()}): give it one, as datetime.now(UTC) has"
    if offset % timedelta(minutes=1):
        return (
            f"has an offset with seconds ({value.isoformat()}), which is not kept: give it in UTC, by astimezone(UTC)"
        )
    return None


def _problem_of_keys(value: dict[Any, Any]) -> str | None:
    if composite := next((key for key in value if isinstance(key, tuple | frozenset)), None):
        return f"has the key {composite!r}, and JSON's keys are texts: give a list of pairs"
    if all(type(key) is str for key in value) or len(to_jsonable_python(dict.fromkeys(value))) == len(value):
        return None
    return "has two keys that are one text in JSON, as 1 and '1' are: give a list of pairs"


_FINDERS: tuple[tuple[Any, Callable[[Any], str | None]], ...] = (
    (float, _problem_of_float),
    (str, _problem_of_text),
    (dict, _problem_of_keys),
    (datetime, _problem_of_instant),
    (Decimal, _problem_of_decimal),
    (Iterator, _problem_of_iterator),
    ((SecretStr, SecretBytes), _problem_of_secret),
)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value of what a value consists of."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", key
            yield f"[{key!r}]", part
    elif isinstance(value, _LISTS):
        for number, part in enumerate(value):
            yield f"[{number}]", part
    elif isinstance(value, BaseModel):
        yield from ((f".{name}", part) for name, part in {**vars(value), **(value.model_extra or {})}.items())
    elif isinstance(value, Enum):
        yield "", value.value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
