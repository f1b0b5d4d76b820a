"""docs/operations.md says which privileges are needed, and these are enough."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg2
import pytest

import flowforge
from flowforge import client
from flowforge.broker import Runway, connect_redis
from flowforge.errors import LeaseLost
from flowforge.monitor import Turns
from flowforge.scheduler.duties import JOBS, Post, take_turn
from flowforge.states import Paused, RunState
from tests.conftest import administer, database_on
from tests.e2e import workflows
from tests.e2e.conftest import ROOT, Fleet, the_task_run
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge import models
    from flowforge.embedded.servers import PostgresServer, ValkeyServer
    from flowforge.settings import Settings

OWNER, RUNTIME, GUARD, DATABASE = "flowforge_owner", "flowforge_runtime", "flowforge_guard", "mydb"

#: What the role of all processes shall not be able to do, even by an injected statement.
FORBIDDEN = [
    "create table flowforge.mine (id integer)",
    "alter table flowforge.task_run add column mine integer",
    "alter table flowforge.task disable trigger all",
    "drop table flowforge.task_run_event",
    "create index on flowforge.task_run (state)",
    "create or replace function flowforge.clock() returns timestamptz language sql as 'select now()'",
    "truncate flowforge.workflow_run cascade",
    "update flowforge.workflow set name = 'mine'",
    "update flowforge.task set queue = 'mine'",
    "update flowforge.task_dependency set upstream_id = downstream_id",
    "update flowforge.deployment set deployed_by = 'nobody'",
    "update flowforge.task_run_event set kind = 'succeeded'",
    "update flowforge.workflow_run_event set kind = 'succeeded'",
    "update flowforge.organization set slug = 'mine'",
    "update flowforge.audit_log set principal = 'nobody'",
    "update flowforge.pause set paused_by = 'nobody'",
    "delete from flowforge.workflow_run",
    "delete from flowforge.task_run_event",
    "delete from flowforge.audit_log",
    "truncate flowforge.audit_log",
    "insert into flowforge.organization (slug, name) values ('mine', 'Mine')",
]


def documented() -> tuple[str, str]:
    """Return the two blocks of SQL: the administrator's, and the owner's."""
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.split("\n## Privileges\n")[1].split("\n## ")[0]
    administrators, owners = re.findall(r"^```sql\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return administrators, owners


def apply(url: str, statements: str) -> None:
    """Run statements, as psql would."""
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statements)


@pytest.fixture
def urls(postgres: PostgresServer) -> Iterator[dict[str, str]]:
    """Role -> URL of a database that was set up as documented."""
    administrators, owners = documented()
    administer(postgres, f"create database {DATABASE}")
    whole = database_on(postgres, DATABASE)
    urls = {role: whole.replace("postgres@", f"{role}@") for role in (OWNER, RUNTIME, GUARD)}
    apply(whole, f"{administrators}; create role {GUARD} login")
    environment = {"DATABASE_URL": urls[OWNER]}
    subprocess.run([sys.executable, "-m", "flowforge", "migrate"], cwd=ROOT, env=environment, check=True)
    apply(urls[OWNER], owners)
    apply(urls[OWNER], owners)
    yield urls
    administer(postgres, f"drop database {DATABASE} with (force)")
    administer(postgres, f"drop role {OWNER}, {RUNTIME}, {GUARD}")


@pytest.fixture
def settings(urls: dict[str, str], valkey: ValkeyServer) -> Settings:
    """Settings of a process of the runtime's."""
    return flowforge.Settings(database_url=urls[RUNTIME], redis_url=valkey.url, namespace="privileges")


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """Processes of the runtime's, and a client in this one."""
    engine = flowforge.configure(settings)
    fleet = Fleet(settings, tmp_path)
    yield fleet
    fleet.stop()
    fleet.tell()
    engine.database.close()


def guard(url: str, row: models.TaskRun) -> None:
    """Guard a running task run, from Python and in SQL."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        client.guard(connection, row.id, row.fencing_token)
        cursor.execute("select flowforge.guard(%s, %s)", (str(row.id), row.fencing_token))


def decide(ended: flowforge.Run) -> None:
    """Pause, resume, cancel and rerun."""
    for kind, name in ((Paused.WORKFLOW, "slow"), (Paused.QUEUE, "default")):
        assert flowforge.pause(kind, name)
        assert flowforge.resume(kind, name)
    assert flowforge.pause(Paused.WORKFLOW, "numbers", reason="for a moment")
    run = workflows.numbers.start(n=6)
    assert run.pause()
    assert run.cancel(now=True) is RunState.CANCELLED
    assert flowforge.resume(Paused.WORKFLOW, "numbers")
    assert run.rerun()
    assert run.wait(timeout=60) is RunState.SUCCEEDED
    assert ended.rerun(tasks=["after_sleep"]) == ["after_sleep"]
    assert ended.wait(timeout=60) is RunState.SUCCEEDED


def test_the_documented_privileges_are_enough(
    fleet: Fleet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Deploying, starting, working in every way, a lost worker, every duty and decision, a guard, the doctor."""
    command = [sys.executable, "-m", "flowforge"]
    subprocess.run([*command, "deploy"], cwd=ROOT, env=fleet.environment(), check=True)
    fleet.scheduler()
    lost = fleet.worker()
    held = workflows.slow.start(n=1)
    wait_for(lambda: the_task_run(held, "sleep").state == "running")
    guard(settings.database_url, the_task_run(held, "sleep"))
    lost.kill()
    fleet.worker()

    ended = [workflows.numbers.start(n=4), workflows.numbers.options(idempotency_key="one").start(n=5), held]
    assert {run.wait(timeout=60) for run in ended} == {RunState.SUCCEEDED}
    assert workflows.outcomes.start().wait(timeout=60) is RunState.FAILED
    decide(held)
    with closing(connect_redis(settings)) as redis:
        post = Post(flowforge.client.engine().database, Runway(redis, settings.namespace), settings.cancel_grace)
        for job in JOBS:
            take_turn(job, post, Turns(redis, settings.namespace))
        post.runway._waker.close()
    assert caplog.text == ""
    doctor = subprocess.run([*command, "doctor"], cwd=ROOT, env=fleet.environment(), capture_output=True, check=False)
    assert doctor.returncode == 0, doctor.stdout
    assert "permission denied" not in "".join(map(fleet.log, fleet.processes))


def test_more_than_the_documented_privileges_is_refused(urls: dict[str, str]) -> None:
    """Schema, definitions, history."""
    with closing(psycopg2.connect(urls[RUNTIME])) as connection, connection.cursor() as cursor:
        for statement in FORBIDDEN:
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute(statement)
            connection.rollback()


def test_whoever_only_guards_needs_little(urls: dict[str, str]) -> None:
    """As the page says: USAGE on the schema, SELECT and UPDATE on one column."""
    apply(urls[OWNER], f"grant usage on schema flowforge to {GUARD}")
    apply(urls[OWNER], f"grant select, update (deferred_because) on flowforge.task_run to {GUARD}")

    with closing(psycopg2.connect(urls[GUARD])) as connection, connection.cursor() as cursor:
        with pytest.raises(LeaseLost):
            client.guard(connection, uuid4(), 1)
        with pytest.raises(psycopg2.errors.SerializationFailure):
            cursor.execute("select flowforge.guard(gen_random_uuid(), 1)")
