"""Migrating while others migrate, work, or are killed; and which databases a process refuses."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peewee
import psycopg2
import pytest

from flowforge import db, migrations
from flowforge.errors import SchemaMismatch
from flowforge.migrations import runner
from flowforge.settings import Settings
from tests import made_up
from tests.conftest import database_on
from tests.pgbouncer import PgBouncer, needs_pgbouncer
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flowforge.embedded.servers import PostgresServer

ROOT = Path(__file__).parents[2]
_EMPTY = "create table flowforge.made_up ();"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The real migrations, to be followed by made-up ones."""
    return made_up.copy(tmp_path)


def ask(url: str, question: str) -> list[tuple[Any, ...]]:
    """Ask on a connection of its own."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(question)
        return list(cursor.fetchall())


def migrate(url: str, directory: Path) -> list[str]:
    """Migrate over a database object of this thread's own."""
    with closing(db.open_database(Settings(database_url=url))) as database:
        return migrations.migrate(database, directory)


def applied(url: str) -> list[str]:
    """Return the names of the applied migrations, each as often as it was applied."""
    return [name for (name,) in ask(url, "select name from flowforge.schema_migration order by name")]


def index(url: str) -> tuple[int, bool] | None:
    """Return the made-up index's id and whether it is valid."""
    rows = ask(
        url, "select indexrelid, indisvalid from pg_index where indexrelid = to_regclass('flowforge.idx_made_up')"
    )
    return rows[0] if rows else None


@contextmanager
def transaction(url: str, statement: str) -> Iterator[None]:
    """Hold a transaction open that has seen or changed something."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.set_session(isolation_level="repeatable read")
        cursor.execute(statement)
        yield
        connection.commit()


class Expanding(subprocess.Popen[str]):
    """A process that migrates to what `made_up.expand` writes."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "tests.made_up", "expand"]
        super().__init__(command, cwd=ROOT, env={"DATABASE_URL": url}, stdout=subprocess.PIPE, text=True)

    def applied(self) -> list[str]:
        """Wait for its end; return the names that it writes."""
        said, _ = self.communicate(timeout=30)
        assert 0 == self.returncode
        return said.split()


@pytest.fixture
def expand() -> Iterator[Callable[[str], Expanding]]:
    """What starts such processes, none of which outlives the test."""
    processes: list[Expanding] = []

    def start(url: str) -> Expanding:
        processes.append(Expanding(url))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def building(url: str) -> list[tuple[int]]:
    """Return the server processes that build an index and wait for an older snapshot."""
    return ask(url, "select pid from pg_stat_progress_create_index where phase = 'waiting for old snapshots'")


def test_migrations_that_we_do_not_know_are_accepted_if_they_say_that_we_can_run_on_them(
    database: db.Database, directory: Path
) -> None:
    made_up.expand(directory)
    migrations.migrate(database, directory)

    migrations.check(database)

    assert [] == migrations.migrate(database)
    assert "0.1.0" == migrations.oldest_release(database)


@pytest.mark.parametrize("use", [migrations.check, migrations.migrate])
def test_a_database_that_needs_a_newer_release_is_refused(database: db.Database, directory: Path, use: Any) -> None:
    made_up.write(directory, "9001_wide", _EMPTY, oldest="99.2.0")
    made_up.write(directory, "9002_wider", "select;", oldest="99.10.0")
    migrations.migrate(database, directory)

    with pytest.raises(SchemaMismatch) as raised:
        use(database)

    assert str(raised.value) == (
        f"this process is FlowForge {metadata.version('flowforge')}; the database needs at least 99.10.0: "
        "deploy 99.10.0 first"
    )


@pytest.mark.parametrize("ours", ["99.9.1", "99.10.0rc1", "99.10.0", "100.0.0"])
def test_releases_are_compared_by_their_numbers(
    database: db.Database, directory: Path, monkeypatch: pytest.MonkeyPatch, ours: str
) -> None:
    made_up.write(directory, "9001_wide", _EMPTY, oldest="99.10.0")
    migrations.migrate(database, directory)
    monkeypatch.setattr(metadata, "version", lambda _: ours)

    if ours == "99.9.1":
        with pytest.raises(SchemaMismatch):
            migrations.check(database)
    else:
        migrations.check(database)


def test_a_source_tree_without_metadata_refuses_only_what_it_does_not_know(
    database: db.Database, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    migrations.check(database)

    made_up.write(directory, "9001_wide", _EMPTY)
    migrations.migrate(database, directory)

    with pytest.raises(SchemaMismatch, match="flowforge is not installed: `pip install` it"):
        migrations.check(database)
    migrations.check(database, directory)


def test_a_migration_that_fails_leaves_nothing_behind(database: db.Database, directory: Path) -> None:
    made_up.write(directory, "9001_broken", f"{_EMPTY} select 1 / 0;")

    with pytest.raises(psycopg2.errors.DivisionByZero):
        migrations.migrate(database, directory)

    assert ["9001_broken"] == migrations.pending(database, directory)
    made_up.write(directory, "9001_broken", _EMPTY)
    assert ["9001_broken"] == migrations.migrate(database, directory)


@pytest.fixture(params=["plain", "repeatable read by default", pytest.param("pooled", marks=needs_pgbouncer)])
def way(request: pytest.FixtureRequest, database_url: str, postgres: PostgresServer) -> Iterator[str]:
    """The URL of this test's database: directly, with another isolation level, or through a pooler."""
    if request.param == "pooled":
        with PgBouncer(postgres) as pooler:
            yield database_on(pooler, database_url.partition("?")[0].rpartition("/")[2])
    elif request.param == "plain":
        yield database_url
    else:
        yield f"{database_url}&options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"


def test_an_index_is_built_once_by_two_at_once_of_which_one_waits(
    database_url: str, way: str, expand: Callable[[str], Expanding]
) -> None:
    with transaction(database_url, "select 1"):
        with transaction(database_url, "select pg_advisory_xact_lock(1718382455)"):
            both = [expand(way) for _ in range(2)]
            wait_for(lambda: len(migrating(database_url)) >= (1 if "6432" in way else 2))
        wait_for(lambda: building(database_url))
        built = index(database_url)
    answers = [process.applied() for process in both]

    assert built
    assert (built[0], True) == index(database_url)
    names = applied(database_url)
    assert len(names) == len(set(names))
    assert names[1:] in answers


@pytest.mark.parametrize("left", ["building", "invalid"])
def test_what_a_killed_process_has_left_of_an_index_is_finished(
    database_url: str, expand: Callable[[str], Expanding], left: str
) -> None:
    with transaction(database_url, "select 1"):
        first = expand(database_url)
        ((pid,),) = wait_for(lambda: building(database_url))
        first.kill()
        first.wait()
        if left == "invalid":
            ask(database_url, f"select pg_terminate_backend({pid}, 10000)")
        found = index(database_url)
        again = expand(database_url)
        if left == "building":
            wait_for(lambda: looks_at_the_index(database_url))

    assert ["9103_index", "9104_valid"] == again.applied()
    assert found
    now = index(database_url)
    assert now
    assert now[1]
    assert (now[0] == found[0]) == (left == "building")


def migrating(url: str) -> list[tuple[int]]:
    """Return the sessions of FlowForge's processes; a pooler may give one to two of them by turns."""
    return ask(url, "select pid from pg_stat_activity where application_name = 'flowforge'")


def looks_at_the_index(url: str) -> list[tuple[int]]:
    """Return the sessions that asked last what has become of the index."""
    return ask(url, "select 1 from pg_stat_activity where query like '%pg_stat_progress%' and pid <> pg_backend_pid()")


def test_a_unique_index_that_the_rows_do_not_allow_fails_each_time_until_they_do(
    database: db.Database, directory: Path
) -> None:
    database.execute_sql("insert into flowforge.organization (slug, name) values ('other', 'Default')")
    sql = "create unique index concurrently if not exists idx_made_up on flowforge.organization (name);"
    made_up.write(directory, "9001_index", sql, step="build_index")

    for _ in range(2):
        with pytest.raises(psycopg2.errors.UniqueViolation):
            migrations.migrate(database, directory)

    database.execute_sql("delete from flowforge.organization where slug = 'other'")
    assert ["9001_index"] == migrations.migrate(database, directory)


def test_a_migration_gives_way_to_those_who_wait_behind_it(
    database_url: str, directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's long transaction holds a table, the migration wants it, and everyone else would wait behind both."""
    monkeypatch.setattr(runner, "_PAUSE", 0.5)
    made_up.write(directory, "9001_column", "alter table flowforge.organization add made_up text;")

    with ThreadPoolExecutor() as pool:
        with transaction(database_url, "select count(*) from flowforge.organization"):
            migrating = pool.submit(migrate, database_url, directory)
            wait_for(
                lambda: ask(database_url, "select 1 from pg_locks where not granted and mode = 'AccessExclusiveLock'")
            )

            assert ask(database_url, "set statement_timeout = '4s'; select slug from flowforge.organization")
            wait_for(lambda: "migration.gives_way name=9001_column" in caplog.text)
            assert not migrating.done()
        assert ["9001_column"] == migrating.result(20)


def test_a_migration_without_an_oldest_release_is_not_applied(database: db.Database, directory: Path) -> None:
    made_up.write(directory, "9001_table", _EMPTY)
    file = directory / "9001_table.py"
    file.write_text(file.read_text().replace("OLDEST_RELEASE", "OLDEST"))

    with pytest.raises(AttributeError, match="OLDEST_RELEASE"):
        migrations.migrate(database, directory)

    with pytest.raises(peewee.ProgrammingError, match="does not exist"):
        database.execute_sql("select from flowforge.made_up")
