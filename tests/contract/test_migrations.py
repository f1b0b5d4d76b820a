"""Migrations can be applied while older processes work: each rule, on one that breaks it and on one that keeps it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from flowforge import migrations
from tests import made_up
from tests.contract import lint
from tests.made_up import write
from tests.releases import Release, releases

_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

#: A history of releases, for made-up migrations: 0002 and 0003 belong to the last.
RELEASES = [
    Release("0.1.0", ("0001_initial",), "0.1.0"),
    Release("0.2.0", (), "0.1.0"),
    Release("0.3.0", ("0002_a", "0003_b"), "0.1.0"),
]

#: What is refused: (a migration that breaks the rule, what is said of it, the same change in one that keeps it).
RULES = {
    "add constraint": (
        "alter table flowforge.task add constraint c check (position > 0);",
        "constraint-missing-not-valid",
        "alter table flowforge.task add constraint c check (position > 0) not valid;",
    ),
    "add a foreign key": (
        "alter table flowforge.task add constraint c foreign key (id) references flowforge.task;",
        "adding-foreign-key-constraint",
        "alter table flowforge.task add constraint c foreign key (id) references flowforge.task not valid;",
    ),
    "add a unique constraint": (
        "alter table flowforge.task add constraint c unique (position);",
        "disallowed-unique-constraint",
        "alter table flowforge.task add constraint d unique using index idx_d;",
    ),
    "create index": (
        "create index idx on flowforge.task (position);",
        "create index without concurrently",
        None,
    ),
    "create index on a new table": (
        "create table flowforge.a (id uuid); create unique index idx on flowforge.a (id);",
        "create index without concurrently",
        "create table flowforge.a (id uuid primary key);",
    ),
    "create index concurrently in a transaction": (
        "create index concurrently idx on flowforge.task (position);",
        "atomic = False belongs to what is done concurrently",
        None,
    ),
    "drop index": ("drop index flowforge.idx;", "require-concurrent-index-deletion", None),
    "change a type": (
        "alter table flowforge.task alter column position type bigint;",
        "changing-column-type",
        "alter table flowforge.task add column place bigint;",
    ),
    "add a required column": (
        "alter table flowforge.task add column place bigint not null;",
        "adding-required-field",
        "alter table flowforge.task add column place bigint not null default 0;",
    ),
    "lock table": (
        "lock table flowforge.task in share mode;",
        "lock table",
        "create table flowforge.a () /* lock table */; -- lock table;",
    ),
    "do": (
        "do $$ begin drop table flowforge.task; end $$;",
        "do hides from these rules",
        "create function flowforge.f() returns int language plpgsql as $$ begin return 1; end $$;",
    ),
    "a column with a check": (
        "alter table flowforge.task add column place bigint check (place > 0);",
        "reads the whole table under its lock",
        "alter table flowforge.task add column place bigint;",
    ),
    "rows": (
        "update flowforge.task set queue = 'default';",
        "changes rows, of which there may be millions",
        "alter table flowforge.task add column place bigint default 0;",
    ),
    "what is no SQL": ("create tabel flowforge.a ();", "syntax-error", "create table flowforge.a ();"),
}  # fmt: skip

#: What takes something away, and so needs that no process older than the release before is left.
CONTRACTING = {
    "ban-drop-column": "alter table flowforge.task drop column inputs;",
    "ban-drop-table": "drop table flowforge.task;",
    "ban-drop-function": "drop function flowforge.clock;",
    "ban-drop-constraint": "alter table flowforge.task drop constraint task_attempts_in_range;",
    "renaming-column": "alter table flowforge.task rename column inputs to arguments;",
    "renaming-table": "alter table flowforge.task rename to step;",
    "renaming-object": "alter function flowforge.clock rename to watch;",
}

_ADD = "alter table flowforge.task add constraint c check (queue is not null) not valid;"
_VALIDATE = "alter table flowforge.task validate constraint c;"
_REQUIRE = "alter table flowforge.task alter column queue set not null;"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a first migration, which may do what it likes."""
    write(tmp_path, "0001_initial", "create index idx on flowforge.task (position);")
    return tmp_path


def faults(directory: Path, *sql: str, oldest: str = "0.1.0", step: str = "run_sql") -> list[str]:
    """Write the SQL as 0002 and 0003; return what is refused of them."""
    for name, text in zip(("0002_a", "0003_b"), sql, strict=False):
        write(directory, name, text, oldest=oldest, step=step)
    return lint.faults(directory, RELEASES)


def test_the_migrations_of_this_tree_keep_every_rule() -> None:
    assert [] == lint.faults(migrations.DIRECTORY, releases())


def test_what_old_processes_are_tested_with_keeps_every_rule(tmp_path: Path) -> None:
    made_up.expand(made_up.copy(tmp_path))
    names = {path.stem for path in tmp_path.glob("9*.py")}

    assert [] == lint.faults(tmp_path, [*releases(), Release("9.0.0", tuple(names), "0.1.0")])


def test_docs_upgrades_names_every_migration_and_the_oldest_release_that_runs_on_each_release() -> None:
    told = releases()
    migration_names = sorted(path.stem for path in migrations.DIRECTORY.glob("[0-9]*.py"))

    assert migration_names == [name for release in told for name in release.migrations]
    for number, release in enumerate(told, 1):
        files = [migrations.DIRECTORY / f"{name}.py" for one in told[:number] for name in one.migrations]
        oldest = [file.read_text().partition('OLDEST_RELEASE = "')[2].partition('"')[0] for file in files]
        assert release.oldest == max(oldest, key=migrations._numbers)


def test_the_last_release_of_docs_upgrades_is_the_one_that_this_tree_is_to_become() -> None:
    version = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]["version"]

    assert version == releases()[-1].name


@pytest.mark.parametrize("change", RULES)
def test_what_blocks_old_processes_is_refused(directory: Path, change: str) -> None:
    broken, said, kept = RULES[change]

    assert any(said in fault for fault in faults(directory, broken))

    if kept:
        assert [] == faults(directory, kept, "alter table flowforge.task validate constraint c;")


def test_a_migration_that_locks_several_tables_one_after_the_other_is_refused(directory: Path) -> None:
    column = "alter table flowforge.task add column place bigint;"
    other = "alter table flowforge.workflow add column place bigint;"
    said = "0002_a: locks flowforge.task, then flowforge.workflow, as verbs may in another order"

    for sql in (
        column + other,
        column + "create table flowforge.a (id uuid references flowforge.workflow (id));",
        column + "create trigger t before update on flowforge.workflow execute function flowforge.guard_immutable();",
    ):
        (fault,) = faults(directory, sql)
        assert fault.startswith(said)
    assert [] == faults(directory, column + column.replace("place", "area"), other)
    assert [] == faults(directory, "create table flowforge.a (id uuid references flowforge.task);" + column)
    assert [] == faults(directory, "create table flowforge.a (); alter table flowforge.a add b uuid;" + column)


def test_an_index_is_built_or_dropped_concurrently_in_a_migration_that_is_no_transaction(directory: Path) -> None:
    create = "create index concurrently if not exists idx on flowforge.task (position);"
    drop = "drop index concurrently if exists flowforge.idx;"

    assert [] == faults(directory, create, drop, step="build_index")
    (fault,) = faults(directory, create + drop, drop, step="build_index")
    assert "one transaction" in fault


@pytest.mark.parametrize("rule", CONTRACTING)
def test_what_takes_something_away_names_the_release_before_as_the_oldest(directory: Path, rule: str) -> None:
    assert [f"0002_a: {rule}: OLDEST_RELEASE must be 0.2.0, the first that does without"] == faults(
        directory, CONTRACTING[rule], oldest="0.1.0"
    )
    assert [] == faults(directory, CONTRACTING[rule], oldest="0.2.0")


def test_no_migration_refuses_the_processes_that_run_while_it_is_applied(directory: Path) -> None:
    (fault,) = faults(directory, "create table flowforge.a ();", oldest="0.3.0")

    assert "refuses the processes of 0.2.0" in fault
    assert [] == faults(directory, "create table flowforge.a ();", oldest="0.2.0")


def test_a_constraint_that_is_not_valid_is_validated_by_a_later_migration(directory: Path) -> None:
    assert ["0002_a: c is added not valid, and no later migration validates it"] == faults(directory, _ADD)
    assert ["0002_a: constraint-missing-not-valid"] == faults(directory, _ADD + _VALIDATE)
    (directory / "0002_a.sql").unlink()
    (directory / "0002_a.py").unlink()
    assert [] == faults(directory, _ADD, _VALIDATE)


def test_a_column_is_required_only_after_a_constraint_on_it_was_validated(directory: Path) -> None:
    refused = "0003_b: set not null without a validated constraint on flowforge.task: check (queue is not null)"

    assert refused in faults(directory, _ADD, _REQUIRE)
    assert refused in faults(directory, _ADD, _REQUIRE + _VALIDATE)
    assert refused in faults(directory, _ADD.replace("queue is", "inputs is"), _VALIDATE + _REQUIRE)
    assert refused in faults(directory, _ADD.replace(".task ", ".other "), _VALIDATE + _REQUIRE)
    assert [] == faults(directory, _ADD, _VALIDATE + _REQUIRE)


@pytest.mark.parametrize("oldest", ["OLDEST_RELEASE = None", "", 'OLDEST_RELEASE = "0.2"'])
def test_every_migration_names_a_release_that_there_is(directory: Path, oldest: str) -> None:
    for name in ("0001_initial", "0002_a"):
        write(directory, name, "create table flowforge.a ();")
        assert [] == lint.faults(directory, RELEASES)
        file = directory / f"{name}.py"
        file.write_text(file.read_text().replace('OLDEST_RELEASE = "0.1.0"', oldest))

        assert any(f"{name}: OLDEST_RELEASE is" in fault for fault in lint.faults(directory, RELEASES))
        write(directory, name, "create table flowforge.a ();")


def test_sql_stands_where_these_rules_see_it(directory: Path) -> None:
    write(directory, "0002_a", "create table flowforge.a ();")
    file = directory / "0002_a.py"
    file.write_text(file.read_text() + "    migrator.migrate(migrator.drop_table('task'))\n")

    assert ["0002_a: has SQL in Python: write it in the .sql file, where these rules see it"] == lint.faults(
        directory, RELEASES
    )


def test_a_migration_that_belongs_to_no_release_is_refused(directory: Path) -> None:
    write(directory, "0004_c", "create table flowforge.a ();")

    assert ["0004_c: docs/upgrades.md does not say which release it belongs to"] == lint.faults(directory, RELEASES)
