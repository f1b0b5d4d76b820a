"""JSON as it comes back from a column of PostgreSQL's type jsonb, for what never was in one."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def returned(text: str) -> str:
    """Return JSON text that parses to what a worker would read: keys and numbers change their form on the way."""
    return json.dumps(json.loads(text, parse_float=_numeric, object_pairs_hook=_by_length))


def _numeric(text: str) -> float | int:
    """Return a number as `numeric` writes it: 1e22 is a whole number then, and there is no negative zero."""
    number = Decimal(text)
    is_whole = int(number.as_tuple().exponent) >= 0
    return int(number) if is_whole else float(number) + 0.0


def _by_length(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return dict(sorted(pairs, key=lambda pair: (len(pair[0].encode()), pair[0].encode())))
