"""Connections that die, deadlocks, and statements that are prepared once: against a real PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest

from flowforge import db, models
from flowforge.db.database import _KEEPALIVES as KEEPALIVES
from flowforge.db.session import _preparation
from flowforge.errors import DatabaseUnreachable
from flowforge.settings import Settings
from tests.conftest import administer

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.db import Database
    from flowforge.embedded.servers import PostgresServer

QUESTION = "select %(n)s::int + %(n)s::int + %(m)s::int as answer"


def ask(connection: Any) -> int:
    """A verb."""
    (row,) = db.fetch(connection, QUESTION, {"m": 2, "n": 20})
    return int(row.answer)


def count_prepared(connection: Any) -> int:
    """Return how many statements the connection's session has prepared."""
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from pg_prepared_statements")
        return int(cursor.fetchone()[0])


def die(connection: Any) -> None:
    """A verb whose session ends in the middle."""
    db.fetch(connection, "select pg_terminate_backend(pg_backend_pid(), 5000)", {})


@pytest.fixture
def kill(database: Database, postgres: PostgresServer) -> Callable[[], None]:
    """End this thread's session behind its back; return when it is gone."""

    def kill() -> None:
        administer(postgres, f"select pg_terminate_backend({database.raw().info.backend_pid}, 5000)")

    return kill


@pytest.fixture(autouse=True)
def preparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test that ends preparing end it for itself alone."""
    monkeypatch.setattr(db.Session, "prepares", True)


# Deadlocks


def lock(connection: Any, *numbers: int) -> None:
    """Lock numbers in an order."""
    with connection.cursor() as cursor:
        for number in numbers:
            cursor.execute("select pg_advisory_xact_lock(%s)", (number,))


def test_a_deadlock_is_tried_again_and_logged(
    database: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B084: another holds two and asks for one; we hold one, ask for two, and are the first to notice."""
    both_hold, tries = threading.Barrier(2), list[int]()

    def rival() -> None:
        with closing(psycopg2.connect(database_url)) as connection, connection:
            lock(connection, 2)
            both_hold.wait(5)
            lock(connection, 1)

    def crosswise(connection: Any) -> str:
        tries.append(len(tries))
        with db.begun(connection):
            lock(connection, 1)
            if tries == [0]:
                both_hold.wait(5)
            lock(connection, 2)
        return "done"

    database.cursor().execute("set deadlock_timeout = '20ms'")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(rival)
        answer = database.perform(crosswise)
        other.result(5)

    assert (answer, tries) == ("done", [0, 1])
    assert caplog.text.count("db.deadlock verb=crosswise error=deadlock detected") == 1


def test_a_deadlock_without_end_is_raised_after_the_sixth_try(database: Database) -> None:
    tries = list[Any]()

    def hopeless(connection: Any) -> None:
        tries.append(connection)
        raise psycopg2.errors.DeadlockDetected

    with pytest.raises(psycopg2.errors.DeadlockDetected):
        database.perform(hopeless)

    assert len(tries) == 6


# Connections that die


def test_a_connection_that_dies_costs_one_operation(database: Database) -> None:
    """B098."""
    with pytest.raises(psycopg2.OperationalError):
        database.perform(die)

    assert database.perform(ask) == 42


def test_a_connection_that_dies_under_peewee_costs_one_operation_too(database: Database) -> None:
    """B098: Peewee alone would fail from then on."""
    with pytest.raises(db.GONE):
        database.execute_sql("select pg_terminate_backend(pg_backend_pid(), 5000)")

    assert models.Workflow.select().count() == 0


def test_a_connection_that_was_cut_while_idle_costs_nothing(database: Database, kill: Callable[[], None]) -> None:
    """B099: for a verb, for Peewee, and for the transaction that begins with it."""
    kill()
    assert database.perform(ask) == 42
    kill()
    assert models.Workflow.select().count() == 0
    kill()
    with database.atomic():
        assert ask(database.raw()) == 42


def test_nothing_is_replaced_inside_a_transaction(database: Database, kill: Callable[[], None]) -> None:
    """B098: the rest of the transaction must not be committed alone on another connection."""

    def lose() -> None:
        with database.atomic():
            database.raw()
            kill()
            with pytest.raises(psycopg2.OperationalError):
                ask(database.raw())
            assert database.raw().closed
            ask(database.raw())

    with pytest.raises(psycopg2.InterfaceError):
        lose()

    assert not database.in_transaction()
    with database.atomic():
        assert ask(database.raw()) == 42


def test_a_failed_statement_leaves_the_connection_clean(database: Database) -> None:
    """B101: after an error in a transaction, and outside of one."""

    def fail(connection: Any) -> None:
        with db.begun(connection):
            db.fetch(connection, "select 1 / 0", {})

    for _ in range(2):
        with pytest.raises(psycopg2.errors.DivisionByZero):
            database.perform(fail)

    assert database.perform(ask) == 42
    assert database.raw().info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE


def test_a_transaction_whose_connection_died_says_so(database: Database, kill: Callable[[], None]) -> None:
    def lose(connection: Any) -> None:
        with db.begun(connection):
            kill()
            ask(connection)

    with pytest.raises(psycopg2.OperationalError):
        database.perform(lose)

    assert database.perform(ask) == 42


@pytest.mark.parametrize("url", ["postgresql://postgres@127.0.0.1:1/none", "postgresql://postgres@/none?host=/nowhere"])
def test_a_server_that_does_not_answer_is_named_by_its_setting(url: str) -> None:
    database = db.open_database(Settings(database_url=url))

    with pytest.raises(DatabaseUnreachable, match=r"DATABASE_URL does not answer: .*(refused|No such file)"):
        database.perform(ask)


def test_the_secret_of_a_url_is_not_told(postgres: PostgresServer) -> None:
    url = postgres.url.replace("postgres@/postgres", "nobody:secret@/none")

    with pytest.raises(DatabaseUnreachable) as caught:
        db.open_database(Settings(database_url=url)).perform(ask)

    assert "secret" not in str(caught.value)


# What a session is


def test_a_silent_network_is_noticed(database: Database) -> None:
    """B103: libpq has the options, beside the name."""
    parameters = database.raw().get_dsn_parameters()

    assert {name: parameters[name] for name in KEEPALIVES} == {name: str(value) for name, value in KEEPALIVES.items()}
    assert parameters["application_name"] == "flowforge"


def test_both_schemes_of_a_url_are_taken_and_the_name_is_shown(settings: Settings) -> None:
    short = settings.database_url.replace("postgresql://", "postgres://")
    database = db.open_database(Settings(database_url=short), name="flowforge-test")

    assert database.raw().info.parameter_status("application_name") == "flowforge-test"
    database.close()


# Prepared statements


def test_a_statement_is_prepared_once_in_a_session(database: Database) -> None:
    assert [database.perform(ask), database.perform(ask), database.perform(ask)] == [42, 42, 42]

    assert count_prepared(database.raw()) == 1


def test_a_new_session_prepares_anew(database: Database, kill: Callable[[], None]) -> None:
    database.perform(ask)
    kill()

    assert database.perform(ask) == 42
    assert count_prepared(database.raw()) == 1


def test_a_preparation_in_a_transaction_survives_its_rollback(database: Database) -> None:
    with database.atomic() as transaction:
        ask(database.raw())
        transaction.rollback()

    assert (database.perform(ask), count_prepared(database.raw())) == (42, 1)


def test_a_statement_that_failed_to_prepare_is_not_taken_as_prepared(database: Database) -> None:
    for _ in range(2):
        with pytest.raises(psycopg2.errors.UndefinedTable):
            db.fetch(database.raw(), "select * from nowhere where n = %(n)s::int", {"n": 1})

    assert count_prepared(database.raw()) == 0


def test_nothing_is_prepared_on_a_callers_connection(connection: Any) -> None:
    """A pooler may stand behind it."""
    assert [ask(connection), ask(connection)] == [42, 42]

    assert count_prepared(connection) == 0


def prepare_elsewhere(connection: Any) -> None:
    """Let the session have what we are about to prepare, as behind a pooler that gives it from client to client."""
    run_plainly(connection, _preparation(QUESTION).prepare)


def lose_prepared(connection: Any) -> None:
    """Let the session lack what we have prepared, as behind a pooler that gives every transaction another."""
    ask(connection)
    run_plainly(connection, "deallocate all")


def run_plainly(connection: Any, statement: str) -> None:
    """Run a statement as it is."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def ask_in_a_transaction(connection: Any) -> int:
    """A verb of several statements."""
    with db.begun(connection):
        run_plainly(connection, "select 1")
        return ask(connection)


@pytest.mark.parametrize("misplace", [prepare_elsewhere, lose_prepared])
@pytest.mark.parametrize("verb", [ask, ask_in_a_transaction])
def test_a_misplaced_preparation_ends_preparing_and_no_verb(
    database: Database, misplace: Callable[[Any], None], verb: Callable[[Any], int], caplog: pytest.LogCaptureFixture
) -> None:
    """B104: and it is told once."""
    misplace(database.raw())

    answers = [database.perform(verb), database.perform(verb), database.perform(ask)]

    assert answers == [42, 42, 42]
    assert caplog.text.count("db.unprepared error=prepared statement") == 1
    assert not db.Session.prepares


def test_a_statement_outside_of_verbs_is_sent_again_by_itself(database: Database) -> None:
    """B104: an insight, on the connection as it is."""
    lose_prepared(database.raw())

    assert ask(database.raw()) == 42
