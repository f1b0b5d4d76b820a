"""The audit log: a row for each decision, in its transaction; rows are neither changed nor deleted."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psycopg2
import pytest
from peewee import IntegrityError

import flowforge
from flowforge import client, models
from flowforge.client import Run
from flowforge.errors import FlowForgeError
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import Paused, TaskState
from flowforge.tenancy import audit
from tests import factories
from tests.factories import Node
from tests.integration.sales import define
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.client import Engine
    from flowforge.db import Database

TASKS = {"extract": Node(), "load": Node(["extract"])}

#: What the log calls a decision -> how somebody makes it about a run.
DECISIONS: dict[str, Callable[[Run, str], object]] = {
    "run.cancel": lambda run, by: run.cancel(by=by),
    "task_run.cancel": lambda run, by: run.cancel_task("load", by=by),
    "run.rerun": lambda run, by: run.rerun(tasks=["extract"], by=by),
    "run.pause": lambda run, by: run.pause(by=by),
    "run.resume": lambda run, by: run.resume(by=by),
    "run.move": lambda run, by: client.move(run, by=by),
    "workflow.pause": lambda _, by: flowforge.pause(Paused.WORKFLOW, "sales", by=by),
    "workflow.resume": lambda _, by: flowforge.resume(Paused.WORKFLOW, "sales", by=by),
    "workflow.deploy": lambda _, by: flowforge.deploy(define("sales"), by=by),
    "queue.pause": lambda _, by: flowforge.pause(Paused.QUEUE, "default", by=by),
    "queue.resume": lambda _, by: flowforge.resume(Paused.QUEUE, "default", by=by),
}


@pytest.fixture
def database(engine: Engine) -> Database:
    """The engine's own database: decisions go through the client."""
    return engine.database


def ready_for(database: Database, action: str) -> Run:
    """Return a run about which this may be decided."""
    workflow = factories.make_workflow(TASKS)
    run = Run(factories.start(database, workflow), DEFAULT_ORGANIZATION)
    models.Deployment.create(organization=DEFAULT_ORGANIZATION, workflow=workflow, deployed_by="me")
    if action == "run.rerun":
        situation.complete(database, factories.task_run(run.id, "extract"), TaskState.FAILED)
    if action.endswith(".resume"):
        DECISIONS[action.replace("resume", "pause")](run, "before")
    return run


def made(action: str) -> list[models.AuditLog]:
    """Return the rows of an action."""
    return list(models.AuditLog.select().where(models.AuditLog.action == action))


@pytest.mark.parametrize("action", DECISIONS)
def test_each_decision_leaves_one_row_of_its_subject(database: Database, action: str) -> None:
    run = ready_for(database, action)

    DECISIONS[action](run, "cli:me@here")

    (row,) = made(action)
    kind, _, _ = action.partition(".")
    subjects = {"queue": ("queue", "default"), "workflow": ("workflow", "sales")}
    assert row.principal == "cli:me@here"
    assert (row.subject_kind, row.subject) == subjects.get(kind, ("run", str(run.id)))
    assert row.organization_id == DEFAULT_ORGANIZATION


@pytest.mark.parametrize("action", DECISIONS)
def test_without_its_row_nothing_is_decided(database: Database, action: str) -> None:
    """The log takes no principal without a name: whatever keeps it from its row keeps the decision from being made."""
    run = ready_for(database, action)
    before, deployed = situation.picture(), models.Deployment.select().count()

    with pytest.raises(IntegrityError, match="audit_log_principal_not_blank"):
        DECISIONS[action](run, " ")

    assert situation.changed_since(before) == set()
    assert models.Deployment.select().count() == deployed


@pytest.mark.parametrize("action", DECISIONS)
def test_in_the_callers_block_row_and_change_go_together(database: Database, database_url: str, action: str) -> None:
    run = ready_for(database, action)
    before, deployed = situation.picture(), models.Deployment.select().count()

    with database.atomic() as transaction:
        DECISIONS[action](run, "me")
        inside, outside = len(made(action)), seen_by_others(database_url, action)
        transaction.rollback()

    assert (inside, outside, made(action)) == (1, 0, [])
    assert situation.changed_since(before) == set()
    assert models.Deployment.select().count() == deployed


def seen_by_others(url: str, action: str) -> int:
    """Return how many rows of an action are committed."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from flowforge.audit_log where action = %s", (action,))
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("action", [action for action in DECISIONS if "run." in action])
def test_what_is_refused_leaves_no_row(database: Database, action: str) -> None:
    run = ready_for(database, "run.cancel")
    for key in TASKS:
        situation.complete(database, factories.task_run(run.id, key))
    before = situation.picture()

    with suppress(FlowForgeError):
        refused = {**DECISIONS, "run.rerun": lambda run, by: run.rerun(by=by)}
        refused[action](run, "me")

    assert situation.changed_since(before) == set()


def test_a_move_that_is_only_tried_leaves_no_row(database: Database) -> None:
    run = ready_for(database, "run.move")

    client.move(run, dry_run=True)

    assert models.AuditLog.select().count() == 0


def test_the_details_say_what_was_decided(database: Database) -> None:
    run = ready_for(database, "run.move")
    later = factories.make_workflow({**TASKS, "report": Node(["load"])})
    models.Deployment.create(organization=DEFAULT_ORGANIZATION, workflow=later, deployed_by="me")

    client.move(run)
    run.cancel_task("report", reason="not today")
    flowforge.deploy(define("sales"), repository="acme/sales", commit="abc")

    rows = models.AuditLog.select().order_by(models.AuditLog.created_at)
    assert [row.detail for row in rows] == [
        {"from": 1, "to": 2},
        {"task": "report", "reason": "not today"},
        {"repository": "acme/sales", "commit": "abc", "version": 3},
    ]


@pytest.mark.parametrize(
    "change",
    [
        "update flowforge.audit_log set principal = 'cli:somebody@else'",
        "delete from flowforge.audit_log",
        "truncate flowforge.audit_log",
    ],
)
def test_rows_are_neither_changed_nor_deleted(database: Database, change: str) -> None:
    run = ready_for(database, "run.cancel")
    run.cancel(by="me")

    with pytest.raises(IntegrityError, match=r"flowforge.audit_log rows are immutable"):
        database.execute_sql(change)

    assert [row.principal for row in made("run.cancel")] == ["me"]


def test_an_organization_keeps_its_log(database: Database) -> None:  # noqa: ARG001 - configured
    other = factories.make_organization()
    audit.record(other, "me", "queue.pause", ("queue", "cpu"))

    with pytest.raises(IntegrityError, match="audit_log"):
        models.Organization.delete().where(models.Organization.id == other).execute()

    assert len(audit.entries(other)) == 1


def test_the_log_is_read_latest_first_and_by_subject(database: Database) -> None:  # noqa: ARG001 - configured
    other = factories.make_organization()
    for number in range(3):
        audit.record(DEFAULT_ORGANIZATION, f"me {number}", "queue.pause", ("queue", "cpu"))
    audit.record(DEFAULT_ORGANIZATION, "you", "queue.pause", ("queue", "gpu"))
    audit.record(other, "they", "queue.pause", ("queue", "cpu"))

    whole, cpu, two, theirs = (
        audit.entries(DEFAULT_ORGANIZATION),
        audit.entries(DEFAULT_ORGANIZATION, subject="cpu"),
        audit.entries(DEFAULT_ORGANIZATION, limit=2),
        audit.entries(other),
    )

    assert [row.principal for row in whole] == ["you", "me 2", "me 1", "me 0"]
    assert [row.principal for row in cpu] == ["me 2", "me 1", "me 0"]
    assert [row.principal for row in two] == ["you", "me 2"]
    assert [row.principal for row in theirs] == ["they"]
