"""Many runs in one statement: all of them, or none."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from flowforge import IdempotencyConflict, UnstorableValue, client, models
from flowforge.errors import OptionError, ParameterError
from flowforge.states import RunState
from tests.integration.sales import DAY, define, rows, written

if TYPE_CHECKING:
    from flowforge import Workflow
    from flowforge.client import Engine
    from flowforge.settings import Settings


def test_runs_come_back_in_the_order_of_their_starts(sales: Workflow[...]) -> None:
    days = [DAY + timedelta(days=n) for n in range(50)]

    runs = sales.start_many(sales.prepare(day=day) for day in days)

    stored = {row.id: row.parameters["day"] for row in models.WorkflowRun.select()}
    assert [stored[run.id] for run in runs] == [str(day) for day in days]
    assert {run.state for run in runs} == {RunState.PENDING}


def test_many_runs_are_one_statement(engine: Engine, sales: Workflow[...], monkeypatch: pytest.MonkeyPatch) -> None:
    sent, real_fetch = list[str](), client.callers.fetch

    def fetch(connection: Any, statement: str, parameters: Any) -> Any:
        sent.append(statement)
        return real_fetch(connection, statement, parameters)

    monkeypatch.setattr(client.callers, "fetch", fetch)

    sales.start_many(sales.prepare(day=DAY) for _ in range(1000))

    assert len(sent) == 1
    assert rows(engine.database)["workflow_run"] == 1000


def test_each_start_has_its_own_key_and_priority(sales: Workflow[...]) -> None:
    known = sales.options(idempotency_key="b").start(day=DAY)
    starts = [sales.options(idempotency_key=key, priority=n).prepare(day=DAY) for n, key in enumerate("abc")]

    runs = sales.start_many(starts)

    assert runs[1] == known
    assert [models.WorkflowRun.get_by_id(run.id).priority for run in runs] == [0, 0, 2]
    assert sales.start_many(starts[:1]) == runs[:1]


def test_no_start_is_nothing(engine: Engine, sales: Workflow[...]) -> None:
    before = rows(engine.database)

    assert sales.start_many([]) == []

    assert written(engine.database, before) == set()


def test_one_conflict_stops_them_all(engine: Engine, sales: Workflow[...]) -> None:
    """B086."""
    sales.options(idempotency_key="b").start(day=DAY)
    before = rows(engine.database)
    view = sales.options(idempotency_key="b")

    with pytest.raises(IdempotencyConflict, match="which differs in parameter 'region': choose another key"):
        sales.start_many([sales.options(idempotency_key="a").prepare(day=DAY), view.prepare(day=DAY, region="us")])

    assert written(engine.database, before) == set()


def test_another_workflow_is_named_as_what_differs(sales: Workflow[...]) -> None:
    """B086."""
    sales.options(idempotency_key="key").start(day=DAY)

    with pytest.raises(IdempotencyConflict, match="which differs in workflow 'daily-sales'") as caught:
        define("weekly-sales").options(idempotency_key="key").start(day=DAY)

    assert caught.value.differs == ("workflow 'daily-sales'",)


def test_a_conflict_with_a_run_that_is_gone_is_told_without_what_differs(sales: Workflow[...]) -> None:
    run = sales.options(idempotency_key="key").start(day=DAY)
    models.WorkflowRun.delete_by_id(run.id)

    with pytest.raises(IdempotencyConflict, match="which had another workflow or other parameters") as caught:
        sales.options(idempotency_key="key").start(day=DAY, region="us")

    assert caught.value.differs == ()


def test_one_key_twice_is_refused_before_anything_is_written(engine: Engine, sales: Workflow[...]) -> None:
    starts = [sales.options(idempotency_key="key").prepare(day=DAY, region=region) for region in ("eu", "us")]
    before = rows(engine.database)

    with pytest.raises(OptionError, match="idempotency_key='key': two starts of one start_many have it"):
        sales.start_many(starts)

    assert written(engine.database, before) == set()


def test_a_wrong_start_is_refused_before_any_is_made(engine: Engine, sales: Workflow[...]) -> None:
    sales.start(day=DAY)
    before = rows(engine.database)

    with pytest.raises(ParameterError, match="has no parameter 'regoin'"):
        sales.start_many(sales.prepare(day=DAY, **given) for given in ({}, {"regoin": "eu"}))

    assert written(engine.database, before) == set()


def test_parameters_over_the_limit_are_refused_before_anything_is_written(
    engine: Engine, sales: Workflow[...], settings: Settings
) -> None:
    """B041, B116."""
    sales.start(day=DAY, region="x" * 500)
    before = rows(engine.database)
    client.configure(replace(settings, value_limit=500))

    with pytest.raises(
        UnstorableValue, match=r"parameters of workflow 'daily-sales' has 5\d\d bytes of JSON, and FLOWFORGE_"
    ):
        sales.start(day=DAY, region="x" * 500)

    assert written(engine.database, before) == set()


def test_runs_of_several_organizations_are_each_ones_own(sales: Workflow[...]) -> None:
    other = models.Organization.create(slug="other", name="Other")
    views = [sales.options(idempotency_key="key"), sales.options(idempotency_key="key", organization=other.id)]

    ours, theirs = sales.start_many(view.prepare(day=DAY) for view in views)

    assert theirs.organization == other.id
    assert {ours.state, theirs.state} == {RunState.PENDING}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", True),
        ("priority", 1.5),
        ("idempotency_key", 7),
        ("idempotency_key", "\ud800"),
        ("idempotency_key", ""),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(sales: Workflow[...], option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"{option}="):
        sales.options(**{option: value})  # type: ignore[arg-type]


def test_a_tenant_that_is_not_there_is_named(sales: Workflow[...]) -> None:
    with pytest.raises(OptionError, match=r"organization=UUID\(.*\): there is no such tenant"):
        sales.options(organization=UUID(int=7)).start(day=DAY)
