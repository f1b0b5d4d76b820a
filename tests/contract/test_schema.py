"""schema.sql, the migrations and the models say the same, and migrating is safe at any time, also twice at once."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest
from playhouse.schema_diff import diff_models

from flowforge import db, migrations, models
from flowforge.errors import SchemaMismatch
from flowforge.settings import Settings
from tests.contract import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg2.extensions import connection as Connection  # noqa: N812

SCHEMA = Path(__file__).parents[2] / "schema.sql"
MIGRATIONS = sorted(path.stem for path in Path(migrations.__file__).parent.glob("[0-9]*.py"))


@pytest.fixture
def by_schema_sql(empty_url: str) -> Iterator[Connection]:
    """A connection to a database made by schema.sql alone."""
    with closing(psycopg2.connect(empty_url)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(SCHEMA.read_text(encoding="utf-8"))
        yield connection


@pytest.fixture
def by_models(empty_url: str) -> Iterator[db.Database]:
    """A database whose tables Peewee made from the models."""
    database = db.connect(Settings(database_url=empty_url))
    database.execute_sql("create schema flowforge")
    database.execute_sql("create function flowforge.clock() returns timestamptz return now()")
    database.create_tables(models.MODELS)
    yield database
    database.close()


def migrate_at(url: str, barrier: threading.Barrier) -> list[str]:
    """Migrate over a database object of this thread's own, at the same moment as the others."""
    with closing(db.open_database(Settings(database_url=url))) as database:
        barrier.wait(10)
        return migrations.migrate(database)


def history(connection: Connection) -> list[str]:
    """Return the names of the applied migrations, each as often as it was applied."""
    return [row.name for row in db.fetch(connection, "select name from flowforge.schema_migration order by name", {})]


@pytest.mark.parametrize("aspect", catalogue.ASPECTS)
def test_schema_sql_equals_the_migrations(by_schema_sql: Connection, connection: Connection, aspect: str) -> None:
    expected = catalogue.describe(by_schema_sql, aspect)

    assert expected
    assert expected == catalogue.describe(connection, aspect)


def test_peewee_finds_nothing_to_change_in_the_database(database: db.Database) -> None:
    assert str(diff_models(database, models.MODELS)) == ""


def test_fields_have_the_types_lengths_and_nullability_of_their_columns(
    by_models: db.Database, connection: Connection
) -> None:
    def columns(of: Connection) -> set[tuple[str, str, str, bool]]:
        return {(row.table, row.name, row.type, row.required) for row in catalogue.rows(of, "column")}

    assert columns(connection) == columns(by_models.raw())


def test_references_go_where_the_foreign_keys_go_and_end_the_same_way(
    by_models: db.Database, connection: Connection
) -> None:
    schema: Any = models.WorkflowRun._schema  # type: ignore[attr-defined]
    schema.create_foreign_key(models.WorkflowRun.parent_task_run)  # which Peewee leaves out, because it is deferred

    def foreign_keys(of: Connection) -> set[tuple[str, str]]:
        return {(row.table, row.definition) for row in catalogue.rows(of, "constraint") if row.kind == "f"}

    assert foreign_keys(connection) == foreign_keys(by_models.raw())


def test_every_table_has_a_model(connection: Connection) -> None:
    assert catalogue.tables(connection) == {model._meta.table_name for model in models.MODELS}


def test_concurrent_migrations_of_an_empty_database_all_succeed_and_apply_each_once(empty_url: str) -> None:
    barrier = threading.Barrier(4)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(migrate_at, [empty_url] * 4, [barrier] * 4))

    assert MIGRATIONS in answers
    with closing(psycopg2.connect(empty_url)) as connection:
        assert MIGRATIONS == history(connection)


def test_migrating_again_changes_nothing(database: db.Database, connection: Connection) -> None:
    before = {aspect: catalogue.describe(connection, aspect) for aspect in catalogue.ASPECTS}
    connection.rollback()

    assert migrations.migrate(database) == []

    assert before == {aspect: catalogue.describe(connection, aspect) for aspect in catalogue.ASPECTS}
    assert MIGRATIONS == history(connection)


def test_check_refuses_a_database_that_lacks_a_migration(empty_url: str) -> None:
    with closing(db.open_database(Settings(database_url=empty_url))) as database:
        with pytest.raises(SchemaMismatch, match=MIGRATIONS[0]):
            migrations.check(database)

        migrations.migrate(database)

        migrations.check(database)
        assert migrations.pending(database) == []


def test_migrations_are_numbered_without_gaps() -> None:
    assert all(re.fullmatch(r"\d{4}_[a-z0-9_]+", name) for name in MIGRATIONS)
    assert list(range(1, len(MIGRATIONS) + 1)) == [int(name[:4]) for name in MIGRATIONS]
