"""Every index serves a query of the product, which is dearer without it, on 100,000 rows in each table."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest
from peewee import fn

from flowforge import db, insights, models, transitions
from flowforge.models import Task, TaskRun, Workflow, WorkflowRun
from flowforge.tenancy import audit
from flowforge.transitions import Mark, NewRun
from tests.contract import catalogue
from tests.contract.conftest import another_database
from tests.contract.crowd import DECISION, Busy, add, filling, queue, without_indexes
from tests.contract.plans import explain, indexes_in, recorded, run, sent_by, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flowforge.embedded.servers import PostgresServer

ORGANIZATION = models.DEFAULT_ORGANIZATION


class Crowd(NamedTuple):
    """A full database, and one row of each kind to ask about."""

    database: db.Database
    busy: Busy
    chain: Any
    run: Any
    wide: Any


def start(crowd: Crowd) -> None:
    """Start a run of a long workflow."""
    crowd.database.perform(transitions.start_run, [NewRun(uuid4(), crowd.chain.id, "{}")])


def referring(field: Any, row: Any) -> None:
    """Read the rows that refer to a row, as PostgreSQL does when that is deleted."""
    list(field.model.select(field.model.id).where(field == row.id))


#: index -> what is served by it.
SERVES: dict[str, Callable[[Crowd], Any]] = {
    "uniq_organization_slug": lambda _: models.Organization.get(slug="org-500"),
    "uniq_workflow_name_version": lambda _: (
        Workflow.select(fn.max(Workflow.version)).filter(organization=ORGANIZATION, name="version-500").scalar()
    ),
    "uniq_workflow_name_digest": lambda c: insights.version_of(ORGANIZATION, "version-500", c.chain.digest),
    "uniq_task_workflow_key": lambda c: Task.get(workflow=c.chain, key="task-50"),
    "task_dependency_pkey": start,
    "idx_dependency_downstream": start,
    "idx_deployment_workflow": lambda c: insights.current_version(ORGANIZATION, c.chain.name),
    "idx_wfrun_wf_recent": lambda _: insights.list_runs(ORGANIZATION, workflow="crowd-50"),
    "idx_wfrun_org_recent": lambda _: insights.list_runs(ORGANIZATION),
    "idx_wfrun_state_age": lambda _: insights.list_runs(ORGANIZATION, state="pending"),
    "idx_wfrun_parent": lambda c: referring(WorkflowRun.parent_task_run, c.wide),
    "idx_taskrun_state_age": lambda _: TaskRun.select().filter(state="ready").order_by(TaskRun.created_at).first(),
    "idx_taskrun_run_state": lambda c: insights.run_summary(ORGANIZATION, c.run.id),
    "uniq_taskrun_per_run_task": lambda c: insights.upstream_results([(c.wide.workflow_run_id, c.wide.task_id)]),
    "idx_taskrun_task": lambda c: referring(TaskRun.task, c.chain.tasks.get()),
    "idx_taskrun_lease_expiry": lambda c: c.database.perform(transitions.expire, limit=10).taken,
    "idx_outbox_pending": lambda c: c.database.perform(transitions.take, "backlog", limit=10, after=Mark()),
    "idx_taskrun_cancel_requested": lambda c: c.database.perform(insights.asked_before, 5.0, limit=10),
    "idx_wfrun_deadline": lambda c: c.database.perform(insights.past_deadline, limit=10),
    "idx_outbox_held": lambda c: c.database.perform(transitions.unhold, limit=10),
    "idx_outbox_start_by": lambda c: c.database.perform(insights.unstarted, limit=10),
    "idx_outbox_published": lambda c: c.database.perform(insights.published_before, 5.0, limit=10),
    "idx_outbox_run": lambda c: referring(models.OutboxMessage.workflow_run, c.run),
    "uniq_outbox_per_taskrun_generation": lambda c: c.database.perform(
        transitions.claim, c.busy.published[:10], owner="me", lease=15
    ),
    "idx_wfrun_event_run_created": lambda c: insights.run_events(ORGANIZATION, c.run.id),
    "idx_event_taskrun_created": lambda c: insights.run_events(ORGANIZATION, c.run.id),
    "uniq_pause_organization_kind_subject": lambda c: c.database.perform(transitions.resume, queue("other"), DECISION),
    "idx_audit_log_org_recent": lambda _: audit.entries(ORGANIZATION),
    "idx_audit_log_subject": lambda c: audit.entries(ORGANIZATION, subject=str(c.run.id)),
    "idx_idempotency_expiry": lambda c: c.database.perform(transitions.forget, limit=10),
}

#: Constraints that no read relies upon: what they make certain, which no other index could.
ENFORCES = {
    "uniq_task_workflow_position": "start_run finds the task runs of a new run by their tasks' positions",
    "uniq_idempotency_organization_user_key": "start_run is told by it that a key stands for a run already",
}

#: Every row is reached by its primary key.
BY_ID = {f"{model._meta.table_name}_pkey": model for model in models.MODELS if model is not models.TaskDependency}


@pytest.fixture(scope="module")
def crowd(postgres: PostgresServer, crowded: tuple[str, Busy]) -> Iterator[Crowd]:
    """A database with 100,000 rows in each table, analyzed."""
    template, busy = crowded
    with another_database(postgres, template) as url:
        with filling(url) as connection, without_indexes(connection):
            add(connection, "workflows", name="chain-", workflows=1000, tasks=100)
            add(connection, "workflows", name="version-", workflows=1000, versions=100, tasks=0)
            add(connection, "workflows", name="wide", workflows=1, tasks=1000)
            add(connection, "runs", name="wide", runs=1, finished=True)
            add(connection, "records", rows=100_000)
            add(connection, "decisions", rows=100_000)
        with filling(url) as connection:
            db.fetch(connection, "analyze", {})
        with closing(recorded(url)) as database:
            db.proxy.initialize(database)
            last_of_wide = TaskRun.select().join(Task).where(Task.key == "task-1000").get()
            run = WorkflowRun.get(state="succeeded")
            yield Crowd(database, busy, Workflow.get(name="chain-500"), run, last_of_wide)


def drop(connection: Any, index: str) -> None:
    """Drop an index, or the constraint that it belongs to."""
    [row] = [row for row in catalogue.rows(connection, "index") if row.name == index]
    what = "index flowforge." if index.startswith("idx_") else f"flowforge.{row.table} drop constraint "
    run(connection, f"{'drop' if index.startswith('idx_') else 'alter table'} {what}{index} cascade")


def assert_dearer_without(crowd: Crowd, index: str, statements: list[bytes]) -> None:
    """See that one of the statements uses the index, and what it costs when there is none."""
    connection = crowd.database.raw()
    plans = [(statement, explain(connection, statement)) for statement in statements]
    served = [(statement, plan) for statement, plan in plans if index in indexes_in(plan)]
    assert served, f"no plan uses {index}, but {[indexes_in(plan) for _, plan in plans]}"
    with crowd.database.atomic() as transaction:
        drop(connection, index)
        dearer = [explain(connection, statement)["Total Cost"] > plan["Total Cost"] for statement, plan in served]
        transaction.rollback()
    assert any(dearer)


@pytest.mark.parametrize("index", SERVES)
def test_an_index_serves_a_query_that_is_dearer_without_it(crowd: Crowd, index: str) -> None:
    statements = sent_by(crowd.database, lambda: SERVES[index](crowd))

    assert_dearer_without(crowd, index, statements)


@pytest.mark.parametrize("index", BY_ID)
def test_a_row_is_reached_by_its_primary_key(crowd: Crowd, index: str) -> None:
    model = BY_ID[index]
    some = model.select().get()

    assert_dearer_without(crowd, index, sent_by(crowd.database, lambda: model.get_by_id(some.id)))


def pauses_read(crowd: Crowd) -> int:
    """Return how many pauses this session has read by walking over the table."""
    query = "select seq_tup_read as number from pg_stat_xact_user_tables where relname = 'pause'"
    [row] = db.fetch(crowd.database.raw(), query, {})
    return int(row.number)


@pytest.mark.parametrize(
    ("index", "walked"),
    [("idx_outbox_pending", 1), ("uniq_outbox_per_taskrun_generation", 1), ("idx_wfrun_state_age", 1)],
)
def test_of_100_000_pauses_those_alone_are_read_that_are_asked_for(crowd: Crowd, index: str, walked: int) -> None:
    """One is seen, to know that there are any; the look-up of a take and a claim is in a function: no plan shows it."""
    with crowd.database.atomic() as transaction:
        before = pauses_read(crowd)
        SERVES[index](crowd)
        read = pauses_read(crowd) - before
        transaction.rollback()

    assert read == walked


def test_what_is_held_is_looked_up_among_100_000_pauses_and_not_compared_with_each(crowd: Crowd) -> None:
    *_, statement = sent_by(crowd.database, lambda: SERVES["idx_outbox_held"](crowd))
    plan = explain(crowd.database.raw(), statement)
    [condition] = [node["Filter"] for node in walk(plan) if "SubPlan" in node.get("Filter", "")]

    assert len(set(re.findall(r"hashed SubPlan \d+", condition))) == 2  # workflows, queues
    assert "uniq_pause_organization_kind_subject" in indexes_in(plan)  # runs


@pytest.mark.usefixtures("crowd")
def test_every_table_holds_100_000_rows() -> None:
    sizes = {model.__name__: model.select().count() for model in models.MODELS}

    assert {} == {name: size for name, size in sizes.items() if size < 99_000}


def test_every_index_serves_a_query(crowd: Crowd) -> None:
    assert {*SERVES, *BY_ID, *ENFORCES} == catalogue.indexes(crowd.database.raw())
