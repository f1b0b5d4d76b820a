"""
How values are written as JSON and read back.

Written by what they are (plain data, date, datetime, UUID, Decimal, Enum, dataclass, pydantic model), read by the
annotation of the parameter that takes them; both through pydantic.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flowforge.errors import UnstorableValue
from flowforge.workflow import storable

# An escaped NUL with an even number of backslashes before it: PostgreSQL holds no U+0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def encode(value: object, what: str) -> str:
    """
    Return the value as JSON text that PostgreSQL can hold.

    Raises `UnstorableValue` that names `what` and says what to return instead.
    """
    try:
        storable.check(value, what)
        text = json.dumps(to_jsonable_python(value), allow_nan=False, ensure_ascii=False)
        text.encode()
    except RecursionError:
        raise UnstorableValue(
            f"{what} holds itself, or is nested too deeply: give plain data without a circle"
        ) from None
    except (PydanticSerializationError, TypeError, ValueError) as error:
        raise UnstorableValue(f"{what} cannot be stored as JSON ({error}): use plain data or a dataclass") from error
    if _NUL.search(text):
        raise UnstorableValue(f"{what} holds the character U+0000, which PostgreSQL cannot store: remove it")
    return text


def check_size(text: str, limit: int, what: str) -> None:
    """Raise `UnstorableValue` unless the JSON text has at most `limit` bytes."""
    if (size := len(text.encode())) > limit:
        raise UnstorableValue(
            f"{what} has {size:,} bytes of JSON, and FLOWFORGE_VALUE_LIMIT is {limit:,}: "
            "keep the data elsewhere, and give its path or key instead"
        )


def as_json(value: object, what: str) -> Any:
    """Return the value as parsed JSON. Raises `UnstorableValue` like `encode`."""
    return json.loads(encode(value, what))


def decode(data: object, annotation: object) -> Any:
    """Read parsed JSON as the annotation says. Raises pydantic's ValidationError."""
    return data if annotation is Any else adapter(annotation).validate_python(data)


@lru_cache(maxsize=1024)
def adapter(annotation: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader of an annotation, made once."""
    return TypeAdapter(annotation)
