"""docs/faults.md: each fault has a row, and each row a test that names it and a line that is there."""

from __future__ import annotations

import ast

import pytest

from tests.faults import DOCUMENT, Fault, faults, not_ours, plain
from tests.trial import ROOT

_TEXT = DOCUMENT.read_text()
_ROWS = faults(_TEXT)
#: The faults of areas B (outbox and broker), C (workers, leases), D (states and graphs) and F (database).
_ASKED = {*range(25, 67), *range(68, 85), *range(98, 107)}
#: Numbers that the collection does not hold.
_MISSING = {29, 39, 53, 56, 59, 78, 82, 102}


def test_each_fault_has_a_row_or_a_reason() -> None:
    answered = [*(row.id for row in _ROWS), *not_ours(_TEXT)]

    assert sorted(answered) == [f"B{number:03d}" for number in sorted(_ASKED - _MISSING)]


def test_a_bar_in_a_line_is_escaped() -> None:
    (row,) = faults("| B026 | `tests/a.py::test_b` | `c.py` | `a \\| b` | `` `a` `` |")

    assert (row.code, row.instead, plain("x")) == ("a | b", "`a`", "x")


@pytest.mark.parametrize("row", _ROWS, ids=[row.id for row in _ROWS])
def test_the_test_of_a_row_names_the_fault(row: Fault) -> None:
    file, _, name = row.test.partition("::")
    functions = [one for one in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(one, ast.FunctionDef)]

    (docstring,) = [ast.get_docstring(one) for one in functions if one.name == name.partition("[")[0]]

    assert row.id in (docstring or "")


@pytest.mark.parametrize("row", _ROWS, ids=[row.id for row in _ROWS])
def test_the_line_of_a_row_is_there_once(row: Fault) -> None:
    assert row.apply() != (ROOT / row.file).read_text()
