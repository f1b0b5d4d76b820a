"""What the doctor and every test ask: each rule sees the damage that it is there for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.db import load_statements
from flowforge.states import TaskState
from tests import factories
from tests.factories import Node
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from flowforge.db import Database

#: Rule -> what breaks it, past guards and constraints.
DAMAGES = {
    "ready task runs without exactly one dispatch at their token": "delete from outbox_message",
    "dispatches owed for task runs that are not ready, or at another token": (
        "update outbox_message set fencing_token_snapshot = fencing_token_snapshot + 1"
    ),
    "running task runs without a lease, or leases without a running task run": (
        "update task_run set lease_owner = null where state = 'running'"
    ),
    "task runs whose upstream counters differ from a recount": (
        "update task_run set upstream_failed = 1 where state = 'pending'"
    ),
    "runs whose counters differ from a recount": "update workflow_run set tasks_remaining = tasks_remaining + 1",
    "finished runs with task runs that are not": "update workflow_run set finished_at = flowforge.clock()",
    "pending task runs that wait for nothing": "update task_run set upstream_remaining = 0",
    "task runs whose last event does not tell their state, attempt and token": "update task_run set attempt = 7",
    "events of task runs that do not begin where the one before has ended": (
        "delete from task_run_event where kind = 'claimed'"
    ),
    "events of task runs that are no step": "update task_run_event set kind = 'readied' where kind = 'claimed'",
    "runs whose last event does not tell their state": (
        "update workflow_run set state = 'failed' where state = 'succeeded'"
    ),
    "finished runs whose state does not follow from their counters": "update workflow_run set tasks_failed = 1",
    "events of runs that do not begin where the one before has ended": (
        "delete from workflow_run_event where kind = 'started'"
    ),
    "events of runs that are no step": "update workflow_run_event set kind = 'failed' where kind = 'started'",
    "attempts or tokens that went back": "update task_run_event set fencing_token = 7 where kind = 'created'",
    "rows that disagree with what they belong to about the organization": (
        "update task_run set organization_id = gen_random_uuid()"
    ),
}
_WITHOUT_CHECKS = """
do $$ declare it record; begin
    for it in select conrelid::regclass as relation, conname from pg_constraint
               where contype = 'c' and connamespace = 'flowforge'::regnamespace loop
        execute format('alter table %%s drop constraint if exists %%I', it.relation, it.conname);
    end loop;
end $$
"""


def test_every_rule_is_tried() -> None:
    assert DAMAGES.keys() == load_statements("flowforge.insights", "invariants.sql").keys()


@pytest.mark.parametrize("rule", DAMAGES)
def test_a_rule_sees_its_damage(database: Database, rule: str) -> None:
    situation.in_state(database, TaskState.RUNNING)
    situation.run_through(database, {"only": Node()})
    factories.start_single(database)
    before = situation.broken(database)

    with database.atomic():
        database.execute_sql(_WITHOUT_CHECKS)
        database.execute_sql("set local session_replication_role = replica")
        database.execute_sql("set local search_path = flowforge, public")
        database.execute_sql(DAMAGES[rule])

    assert before == []
    assert rule in situation.broken(database)
