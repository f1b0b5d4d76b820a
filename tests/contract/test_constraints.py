"""PostgreSQL itself refuses every wrong row, whoever writes it; and deleting takes what it should, and nothing else."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import psycopg2
import pytest

from flowforge import models, transitions
from flowforge.db import connect, fetch
from flowforge.settings import Settings
from flowforge.tenancy import audit
from tests import factories
from tests.contract import catalogue
from tests.contract.conftest import another_database
from tests.factories import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.embedded.servers import PostgresServer


class Wrong(NamedTuple):
    """A copy of a right row that differs by `changes` and that `constraint` must refuse."""

    constraint: str
    table: str
    changes: str = ""


WRONG = [
    Wrong("uniq_organization_slug", "organization"),
    Wrong("organization_slug_valid", "organization", "slug = 'Acme Inc'"),
    Wrong("organization_slug_valid", "organization", "slug = '-acme'"),
    Wrong("organization_name_not_blank", "organization", "name = '  '"),
    Wrong("uniq_workflow_name_version", "workflow", "digest = repeat('f', 64)"),
    Wrong("uniq_workflow_name_digest", "workflow", "version = 7"),
    Wrong("workflow_version_positive", "workflow", "version = 0"),
    Wrong("workflow_name_valid", "workflow", "name = 'Daily Sales'"),
    Wrong("workflow_name_valid", "workflow", "name = ''"),
    Wrong("workflow_name_valid", "workflow", "name = 'straße'"),
    Wrong("workflow_digest_valid", "workflow", "digest = 'abc'"),
    Wrong("workflow_deadline_positive", "workflow", "deadline = '0'"),
    Wrong("uniq_task_workflow_key", "task", "position = 7"),
    Wrong("uniq_task_workflow_position", "task", "key = 'other'"),
    Wrong("task_key_valid", "task", "key = 'a b'"),
    Wrong("task_key_valid", "task", "key = ''"),
    Wrong("task_queue_valid", "task", "queue = 'a/b'"),
    Wrong("task_position_positive", "task", "position = 0"),
    Wrong("task_when_valid", "task", "\"when\" = 'sometimes'"),
    Wrong("task_inputs_object", "task", "inputs = '[]'"),
    Wrong("task_attempts_in_range", "task", "attempts = 0"),
    Wrong("task_attempts_in_range", "task", "attempts = 1001"),
    Wrong("task_lost_in_range", "task", "lost = -1"),
    Wrong("task_lost_in_range", "task", "lost = 1001"),
    Wrong("task_retry_delay_in_range", "task", "retry_delay = '-1 second'"),
    Wrong("task_retry_delay_in_range", "task", "retry_delay = '2 hours', retry_max_delay = '1 hour'"),
    Wrong("task_retry_factor_in_range", "task", "retry_factor = 0.5"),
    Wrong("task_retry_factor_in_range", "task", "retry_factor = 'nan'"),
    Wrong("task_timeout_positive", "task", "timeout = '0'"),
    Wrong("task_start_by_positive", "task", "start_by = '0'"),
    Wrong("task_lease_positive", "task", "lease = '-1 second'"),
    Wrong("task_dependency_not_itself", "task_dependency", "downstream_id = upstream_id"),
    Wrong("deployment_ref_needs_repository", "deployment", "ref = 'main'"),
    Wrong("deployment_ref_needs_repository", "deployment", "commit = 'abc'"),
    Wrong("wfrun_state_valid", "workflow_run", "state = 'suceeded'"),
    Wrong("wfrun_state_valid", "workflow_run", "state = 'ready'"),
    Wrong("wfrun_finished_at_matches_state", "workflow_run", "state = 'succeeded'"),
    Wrong("wfrun_finished_at_matches_state", "workflow_run", "finished_at = created_at, tasks_remaining = 0"),
    Wrong("wfrun_nothing_remains_iff_finished", "workflow_run", "tasks_remaining = 0"),
    Wrong("wfrun_nothing_remains_iff_finished", "workflow_run", "state = 'failed', finished_at = created_at"),
    Wrong("wfrun_started_at_matches_state", "workflow_run", "state = 'running'"),
    Wrong(
        "wfrun_finished_after_started",
        "workflow_run",
        "state = 'failed', tasks_remaining = 0, started_at = created_at, finished_at = created_at - interval '1 s'",
    ),
    Wrong("wfrun_counters_non_negative", "workflow_run", "tasks_remaining = -1"),
    Wrong("wfrun_counters_non_negative", "workflow_run", "tasks_failed = -1"),
    Wrong("wfrun_counters_non_negative", "workflow_run", "tasks_cancelled = -1"),
    Wrong("wfrun_parameters_object", "workflow_run", "parameters = '[1]'"),
    Wrong("wfrun_priority_in_range", "workflow_run", "priority = 101"),
    Wrong("wfrun_priority_in_range", "workflow_run", "priority = -101"),
    Wrong("wfrun_deadline_after_created", "workflow_run", "allowed = '1 hour', deadline = created_at"),
    Wrong("wfrun_deadline_iff_allowed", "workflow_run", "allowed = '1 hour'"),
    Wrong("wfrun_deadline_iff_allowed", "workflow_run", "deadline = created_at + interval '1 hour'"),
    Wrong("uniq_taskrun_per_run_task", "task_run"),
    Wrong("taskrun_state_valid", "task_run", "state = 'retrying'"),
    Wrong("taskrun_attempt_positive", "task_run", "attempt = 0"),
    Wrong("taskrun_fencing_non_negative", "task_run", "fencing_token = -1"),
    Wrong(
        "taskrun_finished_after_started",
        "task_run",
        "state = 'failed', started_at = created_at, finished_at = created_at - interval '1 s'",
    ),
    Wrong("taskrun_lease_iff_running", "task_run", "state = 'running', started_at = created_at"),
    Wrong("taskrun_lease_iff_running", "task_run", "lease_owner = 'me', lease_expires_at = created_at"),
    Wrong("taskrun_owner_iff_lease", "task_run", "lease_owner = 'me'"),
    Wrong(
        "taskrun_owner_iff_lease",
        "task_run",
        "state = 'running', started_at = created_at, lease_expires_at = created_at",
    ),
    Wrong("taskrun_finished_at_matches_state", "task_run", "state = 'skipped'"),
    Wrong("taskrun_finished_at_matches_state", "task_run", "finished_at = created_at"),
    Wrong(
        "taskrun_started_at_matches_state",
        "task_run",
        "state = 'running', lease_owner = 'me', lease_expires_at = created_at",
    ),
    Wrong("taskrun_budgets_non_negative", "task_run", "failures_left = -1"),
    Wrong("taskrun_budgets_non_negative", "task_run", "losses_left = -1"),
    Wrong("taskrun_upstream_non_negative", "task_run", "upstream_remaining = -1, state = 'pending'"),
    Wrong("taskrun_upstream_non_negative", "task_run", "upstream_failed = 1"),
    Wrong("taskrun_waits_only_while_pending", "task_run", "upstream_remaining = 1"),
    Wrong("taskrun_when_valid", "task_run", "\"when\" = 'never'"),
    Wrong("taskrun_result_only_if_succeeded", "task_run", "result = '1'"),
    Wrong("taskrun_cancel_requested_while_running_or_cancelled", "task_run", "cancel_requested_at = created_at"),
    Wrong(
        "taskrun_cancel_requested_while_running_or_cancelled",
        "task_run",
        "state = 'succeeded', finished_at = created_at, cancel_requested_at = created_at",
    ),
    Wrong("uniq_outbox_per_taskrun_generation", "outbox_message"),
    Wrong("outbox_payload_object", "outbox_message", "payload = '[]'"),
    Wrong("outbox_attempt_positive", "outbox_message", "attempt_snapshot = 0"),
    Wrong("outbox_fencing_non_negative", "outbox_message", "fencing_token_snapshot = -1"),
    Wrong("outbox_priority_in_range", "outbox_message", "priority = 101"),
    Wrong("outbox_held_is_not_published", "outbox_message", "held = true, published_at = created_at"),
    Wrong("outbox_start_by_after_created", "outbox_message", "start_by = created_at"),
    Wrong("wfrun_event_kind_valid", "workflow_run_event", "kind = 'readied'"),
    Wrong("taskrun_event_kind_valid", "task_run_event", "kind = 'paused'"),
    Wrong("uniq_pause_organization_kind_subject", "pause", "reason = 'another', paused_by = 'somebody else'"),
    Wrong("pause_kind_valid", "pause", "kind = 'task'"),
    Wrong("audit_log_principal_not_blank", "audit_log", "principal = ' '"),
    Wrong("audit_log_action_valid", "audit_log", "action = 'cancel'"),
    Wrong("audit_log_action_valid", "audit_log", "action = 'run.Cancel'"),
    Wrong("audit_log_detail_object", "audit_log", "detail = '\"a text\"'"),
    Wrong("uniq_idempotency_organization_user_key", "idempotency_key"),
    Wrong("idempotency_key_not_empty", "idempotency_key", "key = ''"),
    Wrong("idempotency_fingerprint_valid", "idempotency_key", "fingerprint = 'abc'"),
    Wrong("idempotency_expires_after_created", "idempotency_key", "expires_at = created_at"),
]

#: A task of which the only run has no task run.
OTHER_TASK = "task_id = (select id from flowforge.task where key = 'load')"

#: The first data model's names, kept letter for letter.
SEED = {
    "uniq_workflow_name_version", "workflow_version_positive", "uniq_task_workflow_key", "wfrun_state_valid",
    "wfrun_finished_at_matches_state", "uniq_taskrun_per_run_task", "taskrun_state_valid", "taskrun_attempt_positive",
    "taskrun_fencing_non_negative", "taskrun_finished_after_started", "taskrun_lease_iff_running",
    "uniq_outbox_per_taskrun_generation",
}  # fmt: skip

GUARDED = ["audit_log", "deployment", "task", "task_dependency", "task_run_event", "workflow", "workflow_run_event"]

#: What may not be deleted, and the foreign key that says so.
KEPT = {
    "organization": {"workflow_organization_id_fkey", "deployment_organization_id_fkey"},
    "workflow": {"workflow_run_workflow_id_fkey", "deployment_workflow_id_fkey"},
    "task": {"task_run_task_id_fkey"},
}


@pytest.fixture(scope="module")
def stocked(postgres: PostgresServer, template: str) -> Iterator[str]:
    """A database with a row in each table: a run whose only task is ready, an edge, a deployment, a key, a pause."""
    with another_database(postgres, template) as url, closing(connect(Settings(database_url=url))) as database:
        factories.make_workflow({"extract": Node(), "load": Node(("extract",))}, name="with-edge")
        workflow = factories.make_workflow({"only": Node()})
        run_id = factories.start(database, workflow)
        default = {"organization": models.DEFAULT_ORGANIZATION}
        models.Deployment.create(**default, workflow=workflow, deployed_by="me")
        models.Pause.create(**default, kind="workflow", subject="sales", paused_by="me")
        audit.record(models.DEFAULT_ORGANIZATION, "me", "workflow.pause", ("workflow", "sales"))
        models.IdempotencyKey.create(
            **default,
            key="k",
            fingerprint="0" * 64,
            workflow_run_id=run_id,
            expires_at=datetime(2100, 1, 1, tzinfo=UTC),
        )
        yield url


@pytest.fixture
def connection(stocked: str) -> Iterator[Connection]:
    """A connection whose transaction is never committed."""
    with closing(psycopg2.connect(stocked)) as connection:
        yield connection


def write_copy(connection: Connection, table: str, changes: str) -> None:
    """Insert a copy of some row, with an id of its own if it has one, and with these changes."""
    own_id = "" if table == "task_dependency" else "id = gen_random_uuid()"
    with connection.cursor() as cursor:
        cursor.execute(f"create temporary table copy on commit drop as select * from flowforge.{table} limit 1")
        for change in filter(None, (own_id, changes)):
            cursor.execute(f"update copy set {change}")
        cursor.execute(f"insert into flowforge.{table} overriding user value select * from copy")


def run(connection: Connection, statement: str, **parameters: Any) -> list[Any]:
    """Run one statement; return its rows."""
    return fetch(connection, statement, parameters)


def only_id(connection: Connection, table: str) -> UUID:
    """Return the id of the table's row that was used by the run."""
    used = {"workflow": "name = 'sales'", "task": "key = 'only'"}.get(table, "true")
    [row] = run(connection, f"select id from flowforge.{table} where {used}")
    return row.id  # type: ignore[no-any-return]


def count(connection: Connection, table: str) -> int:
    """Return the number of a table's rows."""
    return int(run(connection, f"select count(*) from flowforge.{table}")[0].count)


def new_organization(connection: Connection) -> UUID:
    """Store a second tenant; return its id."""
    [row] = run(connection, "insert into flowforge.organization (slug, name) values ('acme', 'Acme') returning id")
    return row.id  # type: ignore[no-any-return]


def delete(connection: Connection, table: str, id_: UUID) -> None:
    """Delete one row by plain SQL."""
    run(connection, f"delete from flowforge.{table} where id = %(id)s", id=id_)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.constraint}: {wrong.changes or 'a second one'}")
def test_a_wrong_row_is_refused_by_the_constraint_that_is_there_for_it(connection: Connection, wrong: Wrong) -> None:
    with pytest.raises(psycopg2.IntegrityError) as refusal:
        write_copy(connection, wrong.table, wrong.changes)

    assert wrong.constraint == refusal.value.diag.constraint_name


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        ("task_run", OTHER_TASK),
        ("outbox_message", "fencing_token_snapshot = 1"),
        ("idempotency_key", "user_id = 'someone else'"),
        ("workflow", "version = 2, digest = repeat('f', 64), deadline = '1 hour'"),
        ("task_run", f"{OTHER_TASK}, state = 'cancelled', finished_at = created_at, cancel_requested_at = created_at"),
        ("task_run", f"{OTHER_TASK}, state = 'cancelled', finished_at = created_at, upstream_remaining = 1"),
        ("workflow_run_event", "kind = 'paused'"),
        ("pause", "kind = 'queue'"),
        ("audit_log", ""),
    ],
)
def test_a_copy_that_breaks_no_rule_is_accepted(connection: Connection, table: str, changes: str) -> None:
    before = count(connection, table)

    write_copy(connection, table, changes)

    assert before + 1 == count(connection, table)


def test_an_update_is_refused_as_an_insert_is(connection: Connection) -> None:
    with pytest.raises(psycopg2.IntegrityError) as refusal:
        run(connection, "update flowforge.workflow_run set state = 'succeeded'")

    assert "wfrun_finished_at_matches_state" == refusal.value.diag.constraint_name


def test_every_check_and_unique_constraint_has_a_wrong_row(connection: Connection) -> None:
    assert {wrong.constraint for wrong in WRONG} == catalogue.constraints(connection, "cu")


def test_the_constraints_of_the_first_data_model_keep_their_names(connection: Connection) -> None:
    assert catalogue.constraints(connection, "cu") >= SEED


@pytest.mark.parametrize("table", GUARDED)
def test_definitions_and_history_are_never_updated(connection: Connection, table: str) -> None:
    column = "upstream_id" if table == "task_dependency" else "id"

    with pytest.raises(psycopg2.errors.RestrictViolation, match=f"flowforge.{table} rows are immutable"):
        run(connection, f"update flowforge.{table} set {column} = {column}")


@pytest.mark.parametrize(
    "statement",
    ["delete from flowforge.audit_log", "truncate flowforge.audit_log", "truncate flowforge.organization cascade"],
)
def test_what_people_did_is_never_deleted(connection: Connection, statement: str) -> None:
    with pytest.raises(psycopg2.errors.RestrictViolation, match=r"flowforge\.audit_log rows are immutable"):
        run(connection, statement)


def test_the_guarded_tables_are_these(connection: Connection) -> None:
    guards = catalogue.rows(connection, "guard")

    assert GUARDED == sorted(row.table for row in guards if row.name == "guard_immutable")


@pytest.mark.parametrize("table", KEPT)
def test_what_was_used_cannot_be_deleted(connection: Connection, table: str) -> None:
    used = only_id(connection, table)

    with pytest.raises(psycopg2.IntegrityError) as refusal:
        delete(connection, table, used)

    assert refusal.value.diag.constraint_name in KEPT[table]


def test_a_deployed_definition_cannot_be_deleted_even_without_runs(connection: Connection) -> None:
    delete(connection, "workflow_run", only_id(connection, "workflow_run"))
    deployed = only_id(connection, "workflow")

    with pytest.raises(psycopg2.IntegrityError) as refusal:
        delete(connection, "workflow", deployed)

    assert "deployment_workflow_id_fkey" == refusal.value.diag.constraint_name


def test_deleting_a_run_takes_its_task_runs_dispatches_and_events(connection: Connection) -> None:
    tables = ("workflow_run", "task_run", "outbox_message", "workflow_run_event", "task_run_event")
    before = {table: count(connection, table) for table in tables}

    delete(connection, "workflow_run", only_id(connection, "workflow_run"))

    assert dict.fromkeys(tables, 1) == before
    assert dict.fromkeys(tables, 0) == {table: count(connection, table) for table in tables}


def test_an_idempotency_key_outlives_its_run(connection: Connection) -> None:
    run_id = only_id(connection, "workflow_run")

    delete(connection, "workflow_run", run_id)

    assert [(run_id,)] == run(connection, "select workflow_run_id from flowforge.idempotency_key")


def test_a_child_run_outlives_its_parent(connection: Connection) -> None:
    parent, child = only_id(connection, "workflow_run"), UUID(int=1)
    transitions.start_run(connection, [transitions.NewRun(child, only_id(connection, "workflow"), "{}")])
    run(
        connection,
        "update flowforge.workflow_run r set parent_task_run_id = t.id from flowforge.task_run t"
        " where r.id = %(child)s and t.workflow_run_id = %(parent)s",
        child=child,
        parent=parent,
    )

    delete(connection, "workflow_run", parent)

    assert [(child, None)] == run(connection, "select id, parent_task_run_id from flowforge.workflow_run")


def test_deleting_a_definition_that_was_never_executed_takes_its_tasks_and_edges(connection: Connection) -> None:
    run(connection, "delete from flowforge.workflow where name = 'with-edge'")

    assert (1, 0) == (count(connection, "task"), count(connection, "task_dependency"))


@pytest.mark.parametrize("table", ["idempotency_key", "pause"])
def test_deleting_an_organization_takes_what_has_no_meaning_without_it(connection: Connection, table: str) -> None:
    acme = new_organization(connection)
    write_copy(connection, table, f"organization_id = '{acme}'")

    delete(connection, "organization", acme)

    assert 1 == count(connection, table)


def test_an_organization_for_which_something_was_ever_done_stays(connection: Connection) -> None:
    acme = new_organization(connection)
    write_copy(connection, "audit_log", f"organization_id = '{acme}'")

    with pytest.raises(psycopg2.IntegrityError) as refusal:
        delete(connection, "organization", acme)

    assert "audit_log_organization_id_fkey" == refusal.value.diag.constraint_name


def test_every_foreign_key_but_those_to_organizations_has_an_index_that_leads_with_it(connection: Connection) -> None:
    foreign_keys = catalogue.rows(connection, "foreign_key")

    assert len(foreign_keys) > 10
    assert set() == {row.name for row in foreign_keys if not row.indexes and row.parent != "flowforge.organization"}
