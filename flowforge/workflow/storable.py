"""What JSON in PostgreSQL cannot hold, or would hold as something else: found in a value before it is written."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretBytes, SecretStr

from flowforge.errors import UnstorableValue

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTS = (list, tuple, set, frozenset, deque)
_SECRETS = (SecretStr, SecretBytes)


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
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}, which JSON does not have: give None, or a text"
    if isinstance(value, datetime) and value.utcoffset() is None:
        return f"is a datetime without an offset ({value.isoformat()}): give it one, as datetime.now(UTC) has"
    if isinstance(value, str) and "\x00" in value:
        return "holds the character U+0000, which PostgreSQL cannot store: remove it"
    if isinstance(value, _SECRETS):
        return "is a secret, of which only asterisks would be stored: give its name, and read it where it is used"
    return _problem_of_keys(value) if isinstance(value, dict) else None


def _problem_of_keys(value: dict[Any, Any]) -> str | None:
    if composite := next((key for key in value if isinstance(key, tuple | frozenset)), None):
        return f"has the key {composite!r}, and JSON's keys are texts: give a list of pairs"
    if all(isinstance(key, str) for key in value) or len({str(key) for key in value}) == len(value):
        return None
    return "has two keys that are one text in JSON, as 1 and '1' are: give a list of pairs"


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
        yield from ((f".{name}", part) for name, part in vars(value).items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
