"""The arguments of an attempt: each from its source, read by its annotation, or left to its default."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

import pytest

from flowforge.errors import UnreadableValue
from flowforge.workflow import Context, Definition, Hooks, Task
from flowforge.workflow.arguments import arguments, data_upstream


@dataclass(frozen=True)
class Sales:
    day: date
    region: str = "eu"


@dataclass(frozen=True)
class Totals:
    amount: int


class NoHooks(Hooks):
    """Nobody watches."""


ID = UUID("00000000-0000-4000-8000-000000000000")
CONTEXT = Context(ID, ID, ID, "daily-sales", "load", 1, 1, NoHooks())
PARAMETERS = {"day": "2026-11-29", "region": "us"}


@pytest.fixture
def sales() -> Definition[Any]:
    """A workflow with the tasks `left` and `right` in it."""
    sales = Definition[Any]("daily-sales", Sales)
    for key in ("left", "right"):
        sales.task(total, key=key)
    return sales


def total(day: date) -> Totals: ...


def given(task: Task[..., Any], parameters: dict[str, Any] = PARAMETERS, **results: Any) -> dict[str, Any]:
    """Return the arguments when these upstreams have succeeded."""
    return arguments(task, task.inputs, parameters, results, CONTEXT)


def test_each_argument_is_read_from_its_source(sales: Definition[Any]) -> None:
    def load(day: date, left: Totals, batch: float, context: Context, note: str = "") -> None: ...

    task = sales.task(load, inputs={"batch": 500})

    expected = {"day": date(2026, 11, 29), "left": Totals(5), "batch": 500.0, "context": CONTEXT}
    assert given(task, left={"amount": 5}) == expected


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (lambda left, right: [right, left], [Totals(2), Totals(1)]),
        (lambda left, right: {"a": left, "b": right}, {"a": Totals(1), "b": Totals(2)}),
    ],
    ids=["list", "dict"],
)
def test_many_tasks_are_many_results(sales: Definition[Any], form: Callable[..., Any], expected: object) -> None:
    def load(parts: list[Totals] | dict[str, Totals]) -> None: ...

    task = sales.task(load, inputs={"parts": form(*sales.tasks.values())})

    assert given(task, left={"amount": 1}, right={"amount": 2}) == {"parts": expected}


def test_a_result_is_read_by_the_consumers_annotation(sales: Definition[Any]) -> None:
    def load(left: dict[str, float]) -> None: ...

    assert given(sales.task(load), left={"amount": 5}) == {"left": {"amount": 5.0}}


def test_an_upstream_without_result_leaves_the_default(sales: Definition[Any]) -> None:
    def load(left: Totals | None = None, right: Totals | None = None, both: list[Totals] | None = None) -> None: ...

    task = sales.task(load, when="all_done", inputs={"both": list(sales.tasks.values())})

    assert given(task, right={"amount": 2}) == {"right": Totals(2)}
    assert given(task) == {}


def test_a_result_of_none_is_a_result(sales: Definition[Any]) -> None:
    def load(left: Totals | None = Totals(0)) -> None: ...

    assert given(sales.task(load, when="all_done"), left=None) == {"left": None}


def test_a_parameter_that_the_run_was_started_without_leaves_the_default(sales: Definition[Any]) -> None:
    def load(region: str = "eu") -> None: ...

    assert given(sales.task(load), {"day": "2026-11-29"}) == {}


@pytest.mark.parametrize("results", [{"left": {"amount": "many"}}, {"left": None}, {"left": []}], ids=str)
def test_a_value_that_does_not_fit_is_named(sales: Definition[Any], results: dict[str, Any]) -> None:
    def load(left: Totals) -> None: ...

    with pytest.raises(UnreadableValue, match="argument 'left' of task 'load' does not fit its annotation"):
        given(sales.task(load), **results)


def test_an_annotation_that_cannot_be_read_is_named(sales: Definition[Any]) -> None:
    class Frame:
        """Like a data frame: nothing that pydantic knows."""

    def load(left: Frame) -> None: ...

    with pytest.raises(UnreadableValue, match="argument 'left' of task 'load' does not fit its annotation"):
        given(sales.task(load), left={})


def test_the_tasks_whose_results_are_needed_are_named_once(sales: Definition[Any]) -> None:
    left, right = sales.tasks.values()

    def load(day: date, left: Totals, both: list[Totals], context: Context) -> None: ...

    task = sales.task(load, inputs={"both": [right, left]}, after=sales.task(total, key="before"))

    assert data_upstream(task.inputs) == ["left", "right"]
    assert task.upstream == ("before", "left", "right")
