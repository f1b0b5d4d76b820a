"""flowforge.start: a run started by plain SQL, in whatever language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg2
import pytest

from flowforge import Run, Workflow, deploy, models
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RunState
from tests.integration.sales import DAY, define, end, rows, written
from tests.support import racing

if TYPE_CHECKING:
    from flowforge.client import Engine

PARAMETERS = '{"day": "2026-11-29", "region": "eu"}'


@pytest.fixture(autouse=True)
def _deployed(sales: Workflow[...]) -> None:
    deploy(sales)


def start(connection: Any, arguments: str = f"'daily-sales', '{PARAMETERS}'") -> Run:
    """Call the function with arguments as they are written in SQL."""
    with connection.cursor() as cursor:
        cursor.execute(f"select flowforge.start({arguments})")
        return Run(UUID(str(cursor.fetchone()[0])), DEFAULT_ORGANIZATION)


def test_a_run_of_the_current_version_is_started(engine: Engine, connection: Any) -> None:
    newer = deploy(define("daily-sales", "later"))

    run = start(connection)
    connection.commit()

    assert run.state is RunState.PENDING
    assert models.WorkflowRun.get_by_id(run.id).workflow_id == newer.id
    end(engine.database, run, result="[]")
    assert run.state is RunState.SUCCEEDED


def test_a_rollback_leaves_nothing(engine: Engine, connection: Any) -> None:
    """B025."""
    before = rows(engine.database)

    start(connection, f"'daily-sales', '{PARAMETERS}', 'key'")
    connection.rollback()

    assert written(engine.database, before) == set()


def test_parameters_may_be_left_out_and_options_are_named(connection: Any) -> None:
    run = start(connection, "'daily-sales', priority => -5, deadline => '2 hours'")
    connection.commit()

    row = models.WorkflowRun.get_by_id(run.id)
    assert (row.parameters, row.priority) == ({}, -5)
    assert (row.deadline - row.created_at).total_seconds() == 7200


def test_the_workflows_own_deadline_counts_where_none_is_given(connection: Any) -> None:
    limited = Workflow("limited", deadline="1h")
    limited.task(lambda: None, key="only")
    deploy(limited)

    run = start(connection, "'limited'")
    connection.commit()

    row = models.WorkflowRun.get_by_id(run.id)
    assert (row.deadline - row.created_at).total_seconds() == 3600


def test_a_key_is_one_run_with_python_too(sales: Workflow[...], connection: Any) -> None:
    """B086: the two count parameters as the same by what they are, not by how they are written."""
    run = sales.options(idempotency_key="key").start(day=DAY)

    assert start(connection, '\'daily-sales\', \'{"region": "eu", "day": "2026-11-29"}\', \'key\'') == run
    connection.commit()
    assert models.WorkflowRun.select().count() == 1


def test_a_key_for_something_else_is_refused(connection: Any) -> None:
    """B086."""
    run = start(connection, f"'daily-sales', '{PARAMETERS}', 'key'")

    with pytest.raises(psycopg2.errors.UniqueViolation, match=f"idempotency_key 'key' already stands for run {run.id}"):
        start(connection, "'daily-sales', '{\"day\": \"2026-11-30\"}', 'key'")


def test_of_two_with_one_key_at_once_both_have_one_run(database_url: str) -> None:
    """B085."""

    def start_with_key(connection: Any) -> Run:
        return start(connection, f"'daily-sales', '{PARAMETERS}', 'key'")

    with racing(database_url, start_with_key, start_with_key) as (winner, loser):
        pass

    assert winner.answer == loser.answer
    assert models.WorkflowRun.select().count() == 1


_NO_DATA, _INVALID = psycopg2.errors.NoDataFound, psycopg2.errors.InvalidParameterValue


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ("'nightly-sales'", _NO_DATA, "no workflow 'nightly-sales' was deployed in organization 'default'"),
        ("'daily-sales', organization => 'acme'", _NO_DATA, "in organization 'acme': check the name"),
        ("null", _NO_DATA, "no workflow NULL was deployed"),
        ("'daily-sales', '[1]'", _INVALID, "must be a JSON object, not"),
        ("'daily-sales', null", _INVALID, "must be a JSON object, not"),
        ("'daily-sales', priority => 101", _INVALID, "priority must lie between -100 and 100"),
        ("'daily-sales', priority => null", _INVALID, "priority must lie between -100 and 100"),
        ("'daily-sales', idempotency_key => ''", _INVALID, "idempotency_key must be 1-255"),
        ("'daily-sales', deadline => '0 s'", _INVALID, "deadline must be positive, not 00:00:00"),
        ("'daily-sales', deadline => '-1 day'", _INVALID, "deadline must be positive, not -1 days"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(
    engine: Engine, connection: Any, arguments: str, error: type[Exception], message: str
) -> None:
    before = rows(engine.database)

    with pytest.raises(error, match=message):
        start(connection, arguments)

    connection.rollback()
    assert written(engine.database, before) == set()
