"""Names, keys and options of a workflow; what else can be a task; and what makes two definitions one version."""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from pydantic import BaseModel, Field

from flowforge.errors import DefinitionError, ParameterError, UnstorableValue
from flowforge.workflow import Definition, Retry


@dataclass(frozen=True)
class Sales:
    day: date
    region: str = "eu"


def extract(day: date) -> list[int]:
    return [day.day]


def transform(extract: list[int]) -> int:
    return sum(extract)


@pytest.fixture
def sales() -> Definition[Any]:
    return Definition("daily-sales", Sales)


def refused(function: Callable[[], object]) -> str:
    """Return why a definition is refused."""
    with pytest.raises(DefinitionError) as caught:
        function()
    return str(caught.value)


# Names and options


@pytest.mark.parametrize("name", ["a", "0", "daily-sales", "a.b_c-d", "a" * 63])
def test_a_workflow_name_is_lower_case(name: str) -> None:
    assert Definition(name).name == name


@pytest.mark.parametrize("name", ["", "a" * 64, "Daily", "-a", ".a", "_a", "a b", "a/b", "é", "a\n", "a\x00"])
def test_another_workflow_name_is_refused(name: str) -> None:
    assert refused(lambda: Definition(name)).startswith(f"workflow name {name!r}: use 1-63 of a-z, 0-9")


@pytest.mark.parametrize("key", ["a", "A.b:c_d-0", "-", "k" * 200])
def test_a_task_key_has_few_characters(sales: Definition[Any], key: str) -> None:
    assert sales.task(extract, key=key).key == key


@pytest.mark.parametrize("key", ["", "k" * 201, "a b", "a/b", "é", "a\n", "<lambda>"])
def test_another_task_key_is_refused(sales: Definition[Any], key: str) -> None:
    assert "key must be 1-200 of" in refused(lambda: sales.task(extract, key=key))


def test_a_key_is_the_functions_name_unless_given(sales: Definition[Any]) -> None:
    assert [sales.task(extract).key, sales.task(extract, key="again").key] == ["extract", "again"]


def test_a_key_is_given_once(sales: Definition[Any]) -> None:
    sales.task(extract)

    message = refused(lambda: sales.task(extract))

    assert message.startswith("task 'extract' of workflow 'daily-sales': there is a task of that key already")


@pytest.mark.parametrize("queue", ["", "q" * 64, "a b", "é"])
def test_a_bad_queue_is_refused(sales: Definition[Any], queue: str) -> None:
    assert f"queue={queue!r} must be 1-63 of" in refused(lambda: sales.task(extract, queue=queue))


LIMITS = ["timeout", "start_by", "lease"]
NO_LIMIT = [0, -1, "0s", "soon", "10", "1 week", float("nan"), float("inf"), "1000d", []]


@pytest.mark.parametrize("limit", NO_LIMIT, ids=repr)
@pytest.mark.parametrize("option", LIMITS)
def test_a_bad_limit_in_time_is_refused(sales: Definition[Any], option: str, limit: Any) -> None:
    options: Any = {option: limit}

    message = refused(lambda: sales.task(extract, **options))

    assert message.startswith(f"task 'extract' of workflow 'daily-sales': {option}={limit!r}")


def test_an_attempt_always_has_a_timeout(sales: Definition[Any]) -> None:
    """B063."""
    nothing: Any = None

    assert "timeout=None: write seconds" in refused(lambda: sales.task(extract, timeout=nothing))
    assert sales.task(extract).timeout == 3600


@pytest.mark.parametrize("deadline", NO_LIMIT, ids=repr)
def test_a_bad_deadline_is_refused(deadline: Any) -> None:
    message = refused(lambda: Definition[Any]("daily-sales", deadline=deadline))

    assert message.startswith(f"workflow 'daily-sales': deadline={deadline!r}")


@pytest.mark.parametrize("limit", [90, 90.0, "90s", "1.5m", timedelta(seconds=90)], ids=repr)
def test_limits_in_time_are_kept_in_seconds(limit: Any) -> None:
    options: Any = dict.fromkeys(LIMITS, limit)
    sales = Definition[Any]("daily-sales", Sales, deadline=limit)

    sales.task(extract, **options)

    (stored,) = sales.structure()
    assert (stored.timeout, stored.start_by, stored.lease, sales.deadline) == (90, 90, 90, 90)


def test_limits_that_are_not_set_are_none(sales: Definition[Any]) -> None:
    task = sales.task(extract, start_by=None, lease=None)

    assert (task.start_by, task.lease, sales.deadline) == (None, None, None)


def test_a_bad_rule_is_refused_with_the_nearest(sales: Definition[Any]) -> None:
    message = refused(lambda: sales.task(extract, when="all_succeded"))

    assert "when='all_succeded' is no rule (did you mean 'all_succeeded'?): use all_succeeded, none_failed" in message


def test_a_bad_interrupt_is_refused(sales: Definition[Any]) -> None:
    message = refused(lambda: sales.task(extract, interrupt="maybe"))  # type: ignore[call-overload]

    assert message.endswith("interrupt='maybe' must be 'raise' or 'never'")


def test_a_refused_task_is_not_in_the_workflow(sales: Definition[Any]) -> None:
    refused(lambda: sales.task(extract, queue=""))

    assert sales.tasks == {}


def test_a_workflow_without_tasks_is_refused_when_it_is_used(sales: Definition[Any]) -> None:
    remedy = "workflow 'daily-sales' has no tasks: add one with @workflow.task"

    assert [refused(sales.structure), refused(lambda: sales.digest)] == [remedy, remedy]


# Tasks


def test_calling_a_task_calls_the_plain_function(sales: Definition[Any]) -> None:
    task = sales.task(extract)

    assert task(date(2026, 11, 29)) == task(day=date(2026, 11, 29)) == [29]


def test_after_is_order_without_data(sales: Definition[Any]) -> None:
    first, second = sales.task(extract, key="first"), sales.task(extract, key="second")

    one = sales.task(extract, key="one", after=first)
    both = sales.task(extract, key="both", after=(second, first))

    assert (one.upstream, both.upstream) == (("first",), ("first", "second"))
    assert one.inputs == both.inputs == {"day": {"parameter": "day"}}


def test_an_edge_is_counted_once(sales: Definition[Any]) -> None:
    """B071: a task that is named twice is waited for once."""
    assert sales.task(transform, after=[sales.task(extract)]).upstream == ("extract",)


def test_a_coroutine_function_is_a_task(sales: Definition[Any]) -> None:
    @sales.task
    async def fetch(day: date) -> int:
        return day.day

    assert fetch.is_async
    assert fetch.inputs == {"day": {"parameter": "day"}}
    assert asyncio.run(fetch(date(2026, 11, 29))) == 29


@pytest.fixture
def broker() -> StubBroker:
    return StubBroker()


def test_an_actor_is_a_task_with_the_signature_of_its_function(sales: Definition[Any], broker: StubBroker) -> None:
    actor = dramatiq.actor(extract, broker=broker, actor_name="other_name")

    task = sales.task(actor)

    assert (task.key, task.inputs) == ("extract", {"day": {"parameter": "day"}})
    assert task(date(2026, 11, 29)) == [29]
    assert not task.is_async


def test_a_coroutine_actor_needs_no_event_loop_of_dramatiqs(sales: Definition[Any], broker: StubBroker) -> None:
    @sales.task
    @dramatiq.actor(broker=broker)
    async def fetch(day: date) -> int:
        return day.day

    assert fetch.is_async
    assert asyncio.run(fetch.function(date(2026, 11, 29))) == 29


@pytest.mark.parametrize(
    "thing", ["extract", 3, functools.partial(extract), Sales], ids=["text", "number", "partial", "class"]
)
def test_what_is_no_function_is_refused(sales: Definition[Any], thing: Any) -> None:
    message = refused(lambda: sales.task(thing))

    assert message == f"workflow 'daily-sales': a task is a function or Dramatiq actor, not {thing!r}"


# on_failure and on_success


def alert(day: date) -> None: ...


def test_a_handler_is_a_task_that_waits_for_all_that_are_required_and_is_not_so_itself(sales: Definition[Any]) -> None:
    sales.task(extract)
    sales.task(lambda: None, key="extra", required=False)
    sales.task(transform)

    failure, success = sales.on_failure(alert), sales.on_success(alert, key="praise")

    assert [task.key for task in sales.structure()] == ["extract", "extra", "transform", "alert", "praise"]
    assert (failure.upstream, success.upstream) == (("extract", "transform"), ("extract", "transform"))
    assert (failure.when, success.when) == ("any_failed", "none_failed")
    assert (failure.required, success.required) == (False, False)
    assert failure.inputs == {"day": {"parameter": "day"}}


def test_a_handler_has_the_options_of_a_task_and_their_defaults(sales: Definition[Any]) -> None:
    first = sales.task(extract)

    @sales.on_failure
    def plain() -> None: ...

    @sales.on_failure(
        key="other", inputs={"rows": first}, retry=Retry(attempts=3), timeout="1m", queue="mail", start_by="1h"
    )
    def spelled_out(rows: list[int] | None = None) -> None: ...

    defaults = Definition[Any]("other").task(plain.function)
    for name in ("retry", "timeout", "start_by", "lease", "queue", "interrupt"):
        assert getattr(plain, name) == getattr(defaults, name)
    assert (spelled_out.key, spelled_out.inputs) == ("other", {"rows": {"task": "extract"}})
    assert (spelled_out.retry.attempts, spelled_out.timeout, spelled_out.queue) == (3, 60, "mail")
    assert spelled_out.start_by == 3600
    assert plain() is None


def test_handlers_stand_below_the_tasks(sales: Definition[Any]) -> None:
    early = [refused(lambda: sales.on_failure(alert)), refused(lambda: sales.on_success(alert, key="praise"))]
    sales.task(extract)
    sales.on_success(alert)

    late = refused(lambda: sales.task(transform))

    assert early == ["workflow 'daily-sales': write on_failure and on_success below the required tasks"] * 2
    assert late == f"workflow 'daily-sales': write {transform!r} above on_failure and on_success, which wait for all"
    assert list(sales.tasks) == ["extract", "alert"]


@pytest.mark.parametrize("option", [{"when": "all_done"}, {"after": []}, {"required": True}], ids=repr)
def test_what_a_handler_is_cannot_be_changed(sales: Definition[Any], option: Any) -> None:
    sales.task(extract)

    message = refused(lambda: sales.on_failure(alert, **option))

    (name,) = option
    assert message == (
        f"workflow 'daily-sales': on_failure and on_success decide {name!r}: leave it out, or write a task"
    )
    assert list(sales.tasks) == ["extract"]


HANDLERS_REFUSED = {
    "an option that is none": ({"retires": 3}, "a task has no option 'retires' (did you mean 'retry'?)"),
    "a key that is taken": ({"key": "extract"}, "there is a task of that key already"),
    "a queue that cannot be": ({"queue": ""}, "queue='' must be 1-63 of"),
}


@pytest.mark.parametrize(("options", "words"), HANDLERS_REFUSED.values(), ids=HANDLERS_REFUSED)
@pytest.mark.parametrize("kind", ["on_failure", "on_success"])
def test_a_handler_is_checked_like_a_task(sales: Definition[Any], kind: str, options: Any, words: str) -> None:
    sales.task(extract)

    message = refused(lambda: getattr(sales, kind)(alert, **options))

    assert words in message
    assert list(sales.tasks) == ["extract"]


@pytest.mark.parametrize("kind", ["on_failure", "on_success"])
def test_a_handler_has_a_default_for_a_result_that_may_not_be_there(sales: Definition[Any], kind: str) -> None:
    sales.task(extract)

    def report(extract: list[int]) -> None: ...

    assert "argument 'extract' needs a default" in refused(lambda: getattr(sales, kind)(report))


def test_a_handler_that_was_refused_leaves_room_for_tasks(sales: Definition[Any]) -> None:
    sales.task(extract)
    refused(lambda: sales.on_failure(alert, queue=""))

    assert sales.task(transform).key == "transform"


# Versions


def digest(
    build: Callable[[Definition[Any]], object], description: str = "", deadline: str | float | None = None
) -> str:
    """Return the digest of a workflow that was built so."""
    definition = Definition[Any]("daily-sales", Sales, description=description, deadline=deadline)
    build(definition)
    return definition.digest


def plain(sales: Definition[Any]) -> None:
    sales.task(extract, key="left")
    sales.task(extract, key="right")


def reordered(sales: Definition[Any]) -> None:
    sales.task(extract, key="right")
    sales.task(extract, key="left")


def spelled_out(sales: Definition[Any]) -> None:
    sales.task(extract, key="left", when="all_succeeded", timeout="60m", retry=Retry(1, 2, "1000ms", 2, 300))
    sales.task(extract, key="right", interrupt="never")


def with_another_body(sales: Definition[Any]) -> None:
    def extract(day: date, *, batch: int = 500) -> str:
        return f"{day}/{batch}"

    sales.task(extract, key="left")
    sales.task(extract, key="right")


def with_a_constant(sales: Definition[Any], day: str = "2026-11-29") -> None:
    sales.task(extract, key="left")
    sales.task(extract, key="right", inputs={"day": day})


def with_an_edge(sales: Definition[Any]) -> None:
    sales.task(extract, key="right", after=sales.task(extract, key="left"))


def with_another_edge(sales: Definition[Any]) -> None:
    sales.task(extract, key="left", after=sales.task(extract, key="right"))


def with_a_handler(sales: Definition[Any], kind: str = "on_failure") -> None:
    plain(sales)
    getattr(sales, kind)(extract, key="handler")


def with_another_key(sales: Definition[Any]) -> None:
    sales.task(extract, key="left")
    sales.task(extract, key="Right")


def with_option(**options: Any) -> Callable[[Definition[Any]], None]:
    """Return how to build the plain workflow with options for one of its tasks."""

    def build(sales: Definition[Any]) -> None:
        sales.task(extract, key="left")
        sales.task(extract, key="right", **options)

    return build


def test_a_digest_is_stable() -> None:
    """The versions that are stored already must be found again by every later release."""
    assert digest(plain) == "b23dd08c6b2211155d1d9929d457ce6840f765cf5f80e1f85d1ddb877839a5a6"


@pytest.mark.parametrize("build", [plain, reordered, spelled_out, with_another_body])
def test_what_the_engine_treats_alike_is_one_version(build: Callable[[Definition[Any]], None]) -> None:
    assert digest(build, description="Load yesterday's orders") == digest(plain)


DIFFERENT = {
    "plain": plain,
    "key": with_another_key,
    "input": with_a_constant,
    "constant": functools.partial(with_a_constant, day="2026-11-30"),
    "edge": with_an_edge,
    "direction": with_another_edge,
    "when": with_option(when="all_done"),
    "required": with_option(required=False),
    "queue": with_option(queue="cpu"),
    "attempts": with_option(retry=Retry(attempts=2)),
    "lost": with_option(retry=Retry(lost=3)),
    "delay": with_option(retry=Retry(delay="2s")),
    "factor": with_option(retry=Retry(factor=3)),
    "max_delay": with_option(retry=Retry(max_delay="6m")),
    "timeout": with_option(timeout="2h"),
    "start_by": with_option(start_by="2h"),
    "lease": with_option(lease="2h"),
    "handler": with_a_handler,
    "other handler": functools.partial(with_a_handler, kind="on_success"),
}


def test_each_part_of_a_structure_makes_another_version() -> None:
    digests = {name: digest(build) for name, build in DIFFERENT.items()}
    digests |= {f"deadline {hours}": digest(plain, deadline=f"{hours}h") for hours in (1, 2)}

    assert len(set(digests.values())) == len(DIFFERENT) + 2, digests


def test_the_same_deadline_is_the_same_version() -> None:
    assert digest(plain, deadline="1h") == digest(plain, deadline=3600)


def test_a_task_more_changes_a_digest_that_was_read_before(sales: Definition[Any]) -> None:
    plain(sales)
    before = sales.digest

    sales.task(extract, key="late")

    assert sales.digest != before


# A run's parameters


def test_parameters_are_stored_by_field_with_their_defaults(sales: Definition[Any]) -> None:
    assert sales.encode(date(2026, 11, 29)) == '{"day": "2026-11-29", "region": "eu"}'
    assert sales.encode(region="us", day="2026-11-29") == '{"day": "2026-11-29", "region": "us"}'


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "missing a required argument: 'day'"),
        ({"day": "soon"}, "parameter 'day': Input should be a valid date or datetime, input is too short (got 'soon')"),
        ({"day": "2026-11-29", "region": 5}, "parameter 'region': Input should be a valid string (got 5)"),
        ({"day": "2026-11-29", "regoin": "eu"}, "has no parameter 'regoin' (did you mean 'region'?)"),
    ],
)
def test_wrong_parameters_are_named(sales: Definition[Any], given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ParameterError) as caught:
        sales.encode(**given)

    assert str(caught.value).startswith("workflow 'daily-sales'")
    assert str(caught.value).endswith(reason)


def test_a_message_about_parameters_is_short(sales: Definition[Any]) -> None:
    with pytest.raises(ParameterError) as caught:
        sales.encode(day="x" * 1_000_000)

    assert len(str(caught.value)) < 300


def test_parameters_that_cannot_be_stored_are_refused(sales: Definition[Any]) -> None:
    with pytest.raises(
        UnstorableValue, match=r"parameters of workflow 'daily-sales', at \['region'\], holds the character U\+0000"
    ):
        sales.encode(date(2026, 11, 29), region="e\x00u")


def test_a_workflow_without_parameters_takes_none() -> None:
    bare = Definition[Any]("bare")

    assert bare.encode() == "{}"
    with pytest.raises(ParameterError, match="workflow 'bare' takes no parameters: give it a parameters class"):
        bare.encode(day=1)


def test_a_pydantic_model_checks_more_than_types() -> None:
    class Page(BaseModel):
        size: int = Field(gt=0)
        number: int = 1

    pages = Definition[Any]("pages", Page)

    assert pages.encode(size=5) == '{"size": 5, "number": 1}'
    with pytest.raises(ParameterError, match=r"parameter 'size': Input should be greater than 0 \(got 0\)"):
        pages.encode(size=0)


def test_a_field_is_stored_under_its_name_and_given_under_its_alias() -> None:
    class Page(BaseModel):
        size: int = Field(alias="pageSize")

    def show(size: int) -> None: ...

    pages = Definition[Any]("pages", Page)

    assert pages.encode(pageSize=5) == '{"size": 5}'
    assert pages.task(show).inputs == {"size": {"parameter": "size"}}


def test_a_check_in_the_parameters_class_is_told_as_a_parameter_error() -> None:
    @dataclass
    class Span:
        first: int
        last: int

        def __post_init__(self) -> None:
            if self.first > self.last:
                raise ValueError("first comes after last")

    with pytest.raises(ParameterError, match="first comes after last"):
        Definition[Any]("spans", Span).encode(2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"after": "extract"}, r"task 'load' of workflow 'w': after='extract' must be a task, or a list of tasks"),
        ({"after": print}, r"after=<built-in function print> must be a task"),
        ({"after": ["extract"]}, r"after=\['extract'\] must be a task"),
        ({"retry": 3}, r"task 'load' of workflow 'w': retry=3 must be a Retry: write retry=Retry\(attempts=3\)"),
        ({"retries": 3}, r"workflow 'w': a task has no option 'retries' \(did you mean 'retry'\?\): use key, inputs"),
    ],
)
def test_an_option_that_cannot_be_is_named_where_it_is_written(options: dict[str, Any], message: str) -> None:
    def load() -> None: ...

    with pytest.raises(DefinitionError, match=message):
        Definition[Any]("w").task(load, **options)
