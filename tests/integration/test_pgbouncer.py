"""B104: everything through a real PgBouncer in transaction mode, which has two sessions for all of us."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest

import flowforge
from flowforge import db
from flowforge.states import RunState
from tests.conftest import database_on
from tests.contract.conftest import another_database
from tests.e2e import workflows
from tests.e2e.conftest import ROOT, Fleet
from tests.pgbouncer import POOL, PgBouncer, needs_pgbouncer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge.embedded.servers import PostgresServer
    from flowforge.settings import Settings

pytestmark = needs_pgbouncer

#: What a verb or a duty sets for its transaction.
SETTINGS = ("statement_timeout", "lock_timeout", "synchronous_commit", "plan_cache_mode", "search_path")


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[PgBouncer]:
    """One PgBouncer."""
    with PgBouncer(postgres) as pooler:
        yield pooler


@pytest.fixture
def through(settings: Settings, pooler: PgBouncer) -> Settings:
    """Settings for this test's database, through the pooler."""
    return replace(settings, database_url=database_on(pooler, name_of(settings.database_url)))


@pytest.fixture
def fleet(through: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """Processes, and a client in this one, through the pooler."""
    engine = flowforge.configure(through)
    fleet = Fleet(through, tmp_path)
    yield fleet
    fleet.stop()
    fleet.tell()
    engine.database.close()


def name_of(url: str) -> str:
    """Return the name of a URL's database."""
    return url.partition("?")[0].rpartition("/")[2]


def command(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command of FlowForge's."""
    return subprocess.Popen(
        [sys.executable, "-m", "flowforge", *words],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def asked(url: str, question: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Ask on a connection of its own."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(question, parameters)
        return list(cursor.fetchall())


def in_every_session(url: str, question: str) -> list[Any]:
    """Ask in each of the pooler's sessions, by transactions that are open at once."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(psycopg2.connect(url))) for _ in range(POOL)]
        cursors = [stack.enter_context(connection.cursor()) for connection in connections]
        for cursor in cursors:
            cursor.execute(question)
        rows = [row for cursor in cursors for row in cursor.fetchall()]
        for connection in connections:
            connection.rollback()  # a session that is left within a transaction, the pooler would not keep
        return rows


def test_more_clients_than_sessions_are_answered_and_nothing_is_prepared(
    through: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    databases = [db.open_database(through) for _ in range(2 * POOL)]
    question = "select %(n)s::int as answer"

    answers = [one.perform(db.fetch, question, {"n": n})[0].answer for n in range(20) for one in databases]

    assert answers == [n for n in range(20) for _ in databases]
    assert in_every_session(through.database_url, "select count(*) from pg_prepared_statements") == [(0,)] * POOL
    assert caplog.text == ""
    for one in databases:
        one.close()


def test_two_migrate_at_once(postgres: PostgresServer, pooler: PgBouncer, fleet: Fleet) -> None:
    with another_database(postgres) as empty:
        url = database_on(pooler, name_of(empty))
        both = [command("migrate", **{**fleet.environment(), "DATABASE_URL": url}) for _ in range(2)]
        said = [process.communicate(timeout=60)[0] for process in both]

        assert [process.returncode for process in both] == [0, 0], said
        assert asked(empty, "select count(*) - count(distinct name), count(*) > 0 from flowforge.schema_migration") == [
            (0, True)
        ]


def test_a_deployment_works_and_leaves_no_trace_in_its_sessions(fleet: Fleet, settings: Settings) -> None:
    deploying = command("deploy", **fleet.environment())
    assert "numbers version 1 is current" in deploying.communicate(timeout=60)[0]
    fleet.scheduler()
    fleet.worker()
    fleet.worker()

    runs = [workflows.numbers.start(n=4), *(workflows.many.start(n=n) for n in range(30))]
    with closing(psycopg2.connect(fleet.settings.database_url)) as caller, caller:
        runs.append(workflows.many.options(connection=caller, idempotency_key="one").start(n=30))

    assert {run.wait(timeout=60) for run in runs} == {RunState.SUCCEEDED}
    assert runs[0].result(workflows.total) == 12
    for process in fleet.processes:
        assert "Traceback" not in fleet.log(process)
        assert "unprepared" not in fleet.log(process)
    url, direct = fleet.settings.database_url, settings.database_url
    shown = "select " + ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    assert in_every_session(url, shown) == asked(direct, shown) * POOL
    assert in_every_session(url, "select count(*) from pg_prepared_statements") == [(0,)] * POOL
    assert asked(direct, "select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]
    sessions = "select count(*) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()"
    assert asked(direct, sessions, name_of(direct)) == [(POOL,)]
