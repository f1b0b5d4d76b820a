"""Where an argument comes from is decided, and refused with the cure, at the line that defines the task."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from flowforge.errors import DefinitionError, UnstorableValue
from flowforge.workflow import Context, Definition, Task

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True)
class Sales:
    day: date
    region: str = "eu"


def extract(day: date) -> list[int]: ...


def transform(extract: list[int]) -> int: ...


def money(amount: "Decimal") -> None: ...


#: The forms in which an argument can be data of the task `extract`.
FORMS: dict[str, Callable[[Task[..., Any]], dict[str, Any]]] = {
    "name": lambda _: {},
    "task": lambda task: {"extract": task},
    "list": lambda task: {"extract": [task]},
    "dict": lambda task: {"extract": {"a": task}},
}


@pytest.fixture
def sales() -> Definition[Any]:
    return Definition("daily-sales", Sales)


def refused(sales: Definition[Any], function: Callable[..., Any], **options: Any) -> str:
    """Return why the function cannot be a task."""
    with pytest.raises(DefinitionError) as caught:
        sales.task(function, **options)
    return str(caught.value)


# The four sources, in their order


def test_an_argument_named_as_a_field_is_the_runs_parameter(sales: Definition[Any]) -> None:
    task = sales.task(extract)

    assert task.inputs == {"day": {"parameter": "day"}}
    assert task.upstream == ()


def test_an_argument_named_as_a_task_above_is_its_result_and_depends_on_it(sales: Definition[Any]) -> None:
    sales.task(extract)

    task = sales.task(transform)

    assert task.inputs == {"extract": {"task": "extract"}}
    assert task.upstream == ("extract",)


def test_an_argument_annotated_context_is_the_context(sales: Definition[Any]) -> None:
    def tell(anything: Context) -> None: ...

    assert sales.task(tell).inputs == {"anything": {"context": True}}


def test_inputs_go_before_names(sales: Definition[Any]) -> None:
    source = sales.task(extract)
    sales.task(extract, key="other")

    def compare(other: list[int], day: date, context: Context) -> None: ...

    task = sales.task(compare, inputs={"other": source, "day": "2026-11-29", "context": None})

    assert task.inputs == {"other": {"task": "extract"}, "day": {"value": "2026-11-29"}, "context": {"value": None}}


def test_a_task_above_goes_before_the_context(sales: Definition[Any]) -> None:
    sales.task(extract, key="context")

    def tell(context: Context) -> None: ...

    assert sales.task(tell).inputs == {"context": {"task": "context"}}


def test_an_argument_with_a_default_that_nothing_gives_keeps_it(sales: Definition[Any]) -> None:
    def load(day: date, batch: int = 500) -> None: ...

    assert sales.task(load).inputs == {"day": {"parameter": "day"}}


# What inputs= takes


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_tasks_is_a_list_of_results(sales: Definition[Any], kind: Callable[..., Any]) -> None:
    shards = [sales.task(extract, key=f"shard_{n}") for n in (2, 1)]

    def merge(parts: list[list[int]]) -> None: ...

    task = sales.task(merge, inputs={"parts": kind(shards)})

    assert task.inputs == {"parts": {"tasks": ["shard_2", "shard_1"]}}
    assert task.upstream == ("shard_1", "shard_2")


def test_a_dict_of_tasks_is_a_dict_of_results(sales: Definition[Any]) -> None:
    shards = {region: sales.task(extract, key=region) for region in ("eu", "us")}

    def merge(parts: dict[str, list[int]]) -> None: ...

    task = sales.task(merge, inputs={"parts": shards})

    assert task.inputs == {"parts": {"tasks": {"eu": "eu", "us": "us"}}}
    assert task.upstream == ("eu", "us")


@pytest.mark.parametrize("constant", [None, True, 3, 0.5, "text", [], {}, [1, [2]], {"a": {"b": None}}])
def test_a_constant_is_stored_as_json(sales: Definition[Any], constant: object) -> None:
    def load(value: Any) -> None: ...

    assert sales.task(load, inputs={"value": constant}).inputs == {"value": {"value": constant}}


def test_a_constant_that_json_cannot_hold_is_refused(sales: Definition[Any]) -> None:
    def load(value: Any) -> None: ...

    with pytest.raises(UnstorableValue, match=r"task 'load' of workflow 'daily-sales': inputs\['value'\]"):
        sales.task(load, inputs={"value": object()})


def test_a_list_that_mixes_tasks_and_constants_is_refused(sales: Definition[Any]) -> None:
    task = sales.task(extract)

    def merge(parts: list[list[int]]) -> None: ...

    assert "inputs['parts']: [1] is not a task" in refused(sales, merge, inputs={"parts": [task, [1]]})


def test_a_task_of_another_workflow_is_refused(sales: Definition[Any]) -> None:
    """B071: although that has a task of the same key."""
    stranger = Definition[Any]("daily-sales", Sales).task(extract)
    sales.task(extract)

    message = refused(sales, transform, inputs={"extract": stranger})

    assert "inputs['extract']" in message
    assert message.endswith("is not a task of workflow 'daily-sales'")
    assert "after: " in refused(sales, transform, after=stranger)


def test_inputs_for_an_argument_that_is_not_there_name_the_nearest(sales: Definition[Any]) -> None:
    message = refused(sales, extract, inputs={"dya": "2026-11-29"})

    assert message.endswith("inputs name 'dya', not an argument (did you mean 'day'?)")


# What a name, an annotation and a signature must be


@pytest.mark.parametrize(("near", "right"), [("regoin", "region"), ("extrct", "extract")])
def test_a_typo_never_becomes_a_parameter(sales: Definition[Any], near: str, right: str) -> None:
    sales.task(extract)
    namespace: dict[str, Any] = {}
    exec(f"def load({near}: str) -> None: ...", namespace)

    assert refused(sales, namespace["load"]) == (
        f"task 'load' of workflow 'daily-sales': argument '{near}' is no task above, no parameter, "
        f"and has no default (did you mean '{right}'?)"
    )


def test_a_name_that_is_both_task_and_field_is_refused_unless_inputs_say_which(sales: Definition[Any]) -> None:
    def region(day: date) -> str: ...

    def load(region: str) -> None: ...

    task = sales.task(region)

    assert "'region' is both a task and a parameter: give the task another key=" in refused(sales, load)
    assert sales.task(load, inputs={"region": task}).upstream == ("region",)


def test_an_argument_without_annotation_is_refused(sales: Definition[Any]) -> None:
    def load(day) -> None: ...  # noqa: ANN001 - that is the point

    assert "argument 'day' has no annotation: say its type" in refused(sales, load)


def test_an_annotation_for_type_checkers_alone_is_refused_with_the_cure(sales: Definition[Any]) -> None:
    message = refused(sales, money, inputs={"amount": "9.99"})

    assert message == (
        "task 'money' of workflow 'daily-sales': annotation 'Decimal' is not there at run time: "
        "import it outside `if TYPE_CHECKING:`, or define it at the top level of its module"
    )


def test_a_parameters_class_annotated_for_type_checkers_alone_is_refused_with_the_cure() -> None:
    @dataclass
    class Prices:
        lowest: "Decimal"

    with pytest.raises(DefinitionError, match="workflow 'prices': annotation 'Decimal' is not there at run time"):
        Definition("prices", Prices)


@pytest.mark.parametrize("signature", ["*days: date", "**days: date", "day: date, /"])
def test_what_cannot_be_given_by_keyword_is_refused(sales: Definition[Any], signature: str) -> None:
    namespace: dict[str, Any] = {"date": date}
    exec(f"def load({signature}) -> None: ...", namespace)

    assert "cannot be given by keyword: name each argument" in refused(sales, namespace["load"])


def test_a_field_is_taken_as_the_type_that_it_has(sales: Definition[Any]) -> None:
    def load(day: list[date]) -> None: ...

    assert refused(sales, load).endswith("argument 'day' is list[datetime.date], but the parameter is date")


def test_a_field_of_a_pydantic_model_is_a_parameter_too() -> None:
    class Report(BaseModel):
        title: str

    def write(title: str) -> None: ...

    assert Definition("report", Report).task(write).inputs == {"title": {"parameter": "title"}}


@pytest.mark.parametrize("when", ["none_failed", "all_done", "any_failed"])
@pytest.mark.parametrize("form", FORMS)
def test_under_another_rule_data_needs_a_default(sales: Definition[Any], when: str, form: str) -> None:
    inputs = FORMS[form](sales.task(extract))

    def load(extract: Any = None) -> None: ...

    message = refused(sales, transform, when=when, inputs=inputs)

    assert f"with when='{when}' argument 'extract' needs a default" in message
    assert sales.task(load, when=when, inputs=inputs).upstream == ("extract",)


@pytest.mark.parametrize("when", ["none_failed", "all_done", "any_failed"])
def test_under_another_rule_parameters_and_constants_need_no_default(sales: Definition[Any], when: str) -> None:
    def load(day: date, batch: int, context: Context) -> None: ...

    assert sales.task(load, when=when, inputs={"batch": 500}, after=sales.task(extract)).upstream == ("extract",)


def test_a_cycle_cannot_be_written(sales: Definition[Any]) -> None:
    def egg(hen: int) -> int: ...

    def hen(egg: int) -> int: ...

    def itself(itself: int) -> int: ...

    assert "argument 'hen' is no task above" in refused(sales, egg)
    assert "argument 'egg' is no task above" in refused(sales, hen)
    assert "argument 'itself' is no task above" in refused(sales, itself)


@pytest.mark.parametrize("parameters", [dict, "Sales", Sales(date(2026, 11, 29)), (Sales,)], ids=repr)
def test_parameters_are_a_dataclass_or_a_pydantic_model(parameters: Any) -> None:
    with pytest.raises(DefinitionError, match="parameters must be a dataclass or pydantic model, not"):
        Definition("daily-sales", parameters)
