"""Clients that die, or stand still, around the commit of a start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg2
import pytest

from flowforge import client
from flowforge.models import DEFAULT_ORGANIZATION, OutboxMessage, WorkflowRun
from flowforge.states import RunState
from tests.e2e import fault_workflows as workflows
from tests.e2e.fault_client import RUNS
from tests.e2e.nursery import Nursery, nursing
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis as redis_client

    from flowforge.settings import Settings


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Nursery]:
    """Processes of this test, a table for what tasks do, and the workflow stored."""
    with nursing(settings, tmp_path) as nursery:
        client.engine().database.execute_sql(workflows.EFFECT)
        client.ensure_stored(workflows.single, DEFAULT_ORGANIZATION)
        yield nursery


def states() -> list[str]:
    """Return the states of all runs."""
    return [run.state for run in WorkflowRun.select()]


def let_pass(seconds: float) -> None:
    """Let some turns of a publisher pass: that there is nothing to see has no sign."""
    until = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() > until)


def test_a_client_that_dies_right_after_its_commit_has_started_its_run(fleet: Nursery) -> None:
    """B026: a hundred times; nobody was told, and each run is found and carried out."""
    starting = fleet.start("tests.e2e.fault_client", ACT="start_100")
    assert starting.wait(timeout=30) == 0
    assert states() == [RunState.PENDING] * RUNS

    fleet.scheduler()
    fleet.worker()

    wait_for(lambda: states() == [RunState.SUCCEEDED] * RUNS)


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "is killed"])
def test_nothing_of_a_start_is_seen_before_its_commit(
    fleet: Nursery, redis: redis_client.Redis, tmp_path: Path, *, commits: bool
) -> None:
    """B025: a client stands still between its insert and COMMIT; then it goes on, or is killed."""
    fleet.scheduler()
    pause = f"transaction.before_commit={tmp_path}/go"
    starting = fleet.start("tests.e2e.fault_client", ACT="start_two", FLOWFORGE_PAUSE_AT=pause)
    wait_for((tmp_path / "go.reached").exists)
    let_pass(0.5)  # the server ends the transaction after one second of silence

    assert (states(), OutboxMessage.select().count()) == ([], 0)
    assert redis.keys(f"{fleet.settings.namespace}:dispatch:*") == []

    if commits:
        (tmp_path / "go").touch()
        assert starting.wait(timeout=10) == 0
        fleet.worker()
        wait_for(lambda: states() == [RunState.SUCCEEDED] * 2)
    else:
        starting.kill()
        let_pass(0.5)
        assert (states(), OutboxMessage.select().count()) == ([], 0)
        assert redis.keys(f"{fleet.settings.namespace}:dispatch:*") == []


def test_a_start_whose_commit_fails_never_was(fleet: Nursery, redis: redis_client.Redis) -> None:
    """B025: a deferred constraint of the caller's own table."""
    client.engine().database.execute_sql(
        "create table public.orders (id integer primary key, parent integer references public.orders deferrable"
        " initially deferred)"
    )
    fleet.scheduler()
    connection = psycopg2.connect(fleet.settings.database_url)
    with connection.cursor() as cursor:
        cursor.execute("insert into public.orders values (1, 2)")
    workflows.single.options(connection=connection).start()

    with pytest.raises(psycopg2.errors.ForeignKeyViolation):
        connection.commit()

    connection.close()
    let_pass(0.5)
    assert (states(), OutboxMessage.select().count()) == ([], 0)
    assert redis.keys(f"{fleet.settings.namespace}:dispatch:*") == []
