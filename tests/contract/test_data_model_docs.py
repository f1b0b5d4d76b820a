"""docs/data-model.md names every table, column, constraint and index that there is, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg2.extensions import connection as Connection  # noqa: N812

TEXT = (Path(__file__).parents[2] / "docs" / "data-model.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`(\w+)`", TEXT))

#: What must be named, and how it is found in the catalogue.
NAMES: dict[str, Callable[[Connection], set[str]]] = {
    "table": catalogue.tables,
    "constraint": lambda connection: catalogue.constraints(connection, "cfpu"),
    "index": catalogue.indexes,
    "guard": lambda connection: {row.name for row in catalogue.rows(connection, "guard")},
}


def diagram() -> set[tuple[str, str]]:
    """Return (table, column) for each line of the diagram's tables."""
    tables = re.findall(r"^    (\w+) \{\n(.*?)^    \}", TEXT, re.MULTILINE | re.DOTALL)
    return {(table, line.split()[1]) for table, lines in tables for line in lines.splitlines()}


@pytest.mark.parametrize("kind", NAMES)
def test_everything_in_the_database_is_named(connection: Connection, kind: str) -> None:
    names = NAMES[kind](connection)

    assert names
    assert set() == names - NAMED


def test_no_constraint_or_index_is_named_that_is_gone(connection: Connection) -> None:
    looks_like_one = {name for name in NAMED if re.match(r"(uniq|idx)_|\w+_(fkey|pkey)$", name)}

    assert looks_like_one
    assert set() == looks_like_one - catalogue.constraints(connection, "cfpu") - catalogue.indexes(connection)


def test_the_diagram_shows_every_column(connection: Connection) -> None:
    assert {(row.table, row.name) for row in catalogue.rows(connection, "column")} == diagram()
