"""What this process makes of a database that was away, or takes no writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest

from flowforge import db, models
from flowforge.broker import Runway
from flowforge.db.outage import Outage
from flowforge.errors import DatabaseUnreachable
from flowforge.scheduler.duties import Post, expire_leases
from tests import factories
from tests.support import wait_for

if TYPE_CHECKING:
    import redis as redis_client

    from flowforge.settings import Settings


def test_an_outage_echoes_for_as_long_as_it_lasted_and_no_longer_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("flowforge.db.outage.time.monotonic", lambda: now[0])
    outage = Outage()

    def echoes_at(moment: float, at_most: float = 10) -> bool:
        now[0] = moment
        return outage.echoes(at_most)

    outage.end()
    assert not echoes_at(100)
    outage.begin()
    now[0] = 103
    outage.begin()
    assert echoes_at(105)
    outage.end()
    outage.end()
    assert [echoes_at(moment) for moment in (105, 109.9, 110)] == [True, True, False]
    assert [echoes_at(moment, at_most=2) for moment in (106.9, 107)] == [True, False]


def fail(_: Any) -> None:
    raise psycopg2.OperationalError("the server is away")


def take_too_long(connection: Any) -> None:
    db.fetch(connection, "select pg_sleep(5)", {})


def test_leases_are_left_alone_until_their_owners_have_had_the_time_to_renew_them(
    database: db.Database, redis: redis_client.Redis, settings: Settings
) -> None:
    """B057."""
    post = Post(database, Runway(redis, settings.namespace), settings.cancel_grace)
    factories.claim(database, factories.start_single(database))
    models.TaskRun.update({models.TaskRun.lease_expires_at: models.TaskRun.started_at}).execute()

    with pytest.raises(psycopg2.OperationalError):
        database.perform(fail)
    while_away = expire_leases(post)
    time.sleep(0.3)
    factories.start_single(database)
    just_after = expire_leases(post)

    assert (while_away, just_after) == (0, 0)
    assert wait_for(lambda: expire_leases(post), seconds=2) == 1


def test_a_statement_that_takes_too_long_is_no_outage(database: db.Database) -> None:
    with pytest.raises(psycopg2.errors.QueryCanceled), database.limited(0.05):
        database.perform(take_too_long)

    assert not database.outage.echoes(10)


def test_a_session_that_takes_no_writes_is_given_up(database: db.Database) -> None:
    """B098: as after a failover, when the address leads to another server and an old session does not."""
    database.execute_sql("set default_transaction_read_only = on")
    workflow = factories.make_workflow

    with pytest.raises(DatabaseUnreachable, match=r"takes no writes: .* read-only transaction.*promote it"):
        workflow({"only": factories.Node()})

    assert workflow({"only": factories.Node()}).version == 1
