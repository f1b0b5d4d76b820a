"""
What a migration may not do, because processes of the release before work on the database while it is applied.

Squawk, which parses PostgreSQL's SQL, finds what locks a table for long and what takes something away. Here are what it
does not look for, and what runs across several migrations.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import playhouse.migrations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.releases import Release

_SQUAWK = [str(Path(sys.executable).with_name("squawk")), "--reporter", "json", "--pg-version", "15"]

#: Squawk's rules about what blocks readers or writers for as long as a table is scanned or written anew, or cannot run.
_REFUSED = {
    "adding-field-with-default",
    "adding-foreign-key-constraint",
    "adding-required-field",
    "adding-serial-primary-key-field",
    "ban-truncate-cascade",
    "ban-uncommitted-transaction",
    "changing-column-type",
    "constraint-missing-not-valid",
    "disallowed-unique-constraint",
    "require-concurrent-index-deletion",
    "require-concurrent-reindex",
    "syntax-error",
    "transaction-nesting",
}
#: The beginnings of its rules about what is no longer there for older processes.
_CONTRACTING = ("ban-drop-", "ban-set-schema", "renaming-")

_COMMENT_OR_BODY = re.compile(r"--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_SQL_IN_PYTHON = re.compile(r"\b(migrator\.|execute(_sql)?\()")
_CONCURRENT = re.compile(r"^(create|drop|reindex)\b.* concurrently\b")
_CREATED = re.compile(r"^create table (?:if not exists )?([\w.]+)")
_LOCKED = re.compile(
    r"\breferences ([\w.]+)"
    r"|^(?:alter|drop) table (?:if exists )?(?:only )?([\w.]+)"
    r"|^(?:create|drop) (?:or replace )?(?:constraint )?trigger .*? on ([\w.]+)"
)
#: What a statement gives itself away by, and what is wrong with it.
_SIGNS = [
    (re.compile(sign), fault)
    for sign, fault in {
        r"\bcreate (unique )?index (?!concurrently\b)": "create index without concurrently blocks writers: use "
        "steps.build_index, also for a new table",
        r"^lock\b": "lock table: nothing that old processes survive needs it",
        r"^do\b": "do hides from these rules what it does: write the statements themselves",
        r"\badd (?:column )?(?!constraint\b)\w+ [^,;]*\bcheck\b": "add column with a check reads the whole table under "
        "its lock: add the constraint, not valid",
        r"^(update|delete from)\b": "changes rows, of which there may be millions, in one transaction: the code that "
        "writes fills a new column",
    }.items()
]
_ADDED = re.compile(r"\badd constraint (\w+) (.+?) not valid\b")
_VALIDATED = re.compile(r"\bvalidate constraint (\w+)")
_SET_NOT_NULL = re.compile(r"\balter (?:column )?(\w+) set not null\b")
_TABLE = re.compile(r"^alter table (?:if exists )?(?:only )?(\S+) ")


class Migration(NamedTuple):
    """A migration as the rules see it."""

    name: str
    module: Any
    #: Its Python.
    source: str
    #: Its .sql file, and the statements in that: lower case, without comments and bodies of functions, single spaces.
    file: Path
    statements: tuple[str, ...]

    @property
    def oldest(self) -> str | None:
        """The oldest release that it names."""
        return getattr(self.module, "OLDEST_RELEASE", None)

    @property
    def atomic(self) -> bool:
        """Whether it is a transaction."""
        return getattr(self.module, "atomic", True)


def faults(directory: Path, releases: Sequence[Release]) -> list[str]:
    """Return `NAME: fault` for everything that is refused in the directory's migrations; 0001 may do what it likes."""
    first, *others = _read(directory)
    found = [(first, fault) for fault in _release_faults(first, set(), releases)]
    found += [(one, fault) for one in others for fault in _own(one, releases)]
    found += _across(others)
    return [f"{migration.name}: {fault}" for migration, fault in found]


def _read(directory: Path) -> list[Migration]:
    return [_migration(one) for one in playhouse.migrations.Migration.load_directory(str(directory))]


def _migration(one: playhouse.migrations.Migration) -> Migration:
    python = Path(one.path)
    file = python.with_suffix(".sql")
    text = _COMMENT_OR_BODY.sub(" ", file.read_text(encoding="utf-8").lower())
    statements = tuple(" ".join(statement.split()) for statement in text.split(";") if statement.strip())
    return Migration(one.name, one.load(), python.read_text(encoding="utf-8"), file, statements)


def _own(migration: Migration, releases: Sequence[Release]) -> Iterator[str]:
    """Return the faults that a migration has by itself."""
    if _SQL_IN_PYTHON.search(migration.source):
        yield "has SQL in Python: write it in the .sql file, where these rules see it"
    yield from (fault for sign, fault in _SIGNS if any(sign.search(statement) for statement in migration.statements))
    if len(tables := _locked(migration)) > 1:
        yield f"locks {', then '.join(sorted(tables))}, as verbs may in another order: write a migration for each"
    if any(_CONCURRENT.search(statement) for statement in migration.statements) == migration.atomic:
        yield "atomic = False belongs to what is done concurrently, and to nothing else"
    if not migration.atomic and len(migration.statements) > 1:
        yield "the statements of one file are one transaction, also with atomic = False: write one"
    rules = _squawk(migration)
    yield from sorted(_REFUSED & rules)
    yield from _release_faults(migration, {rule for rule in rules if rule.startswith(_CONTRACTING)}, releases)


def _locked(migration: Migration) -> set[str]:
    """Return the tables, of those that were there before, that its statements lock one after the other."""
    created = {table for statement in migration.statements for table in _CREATED.findall(statement)}
    found = [{match[match.lastindex or 0] for match in _LOCKED.finditer(one)} - created for one in migration.statements]
    locked = [tables for tables in found if tables]
    return set().union(*locked) if len(locked) > 1 else set()


def _squawk(migration: Migration) -> set[str]:
    """Return the names of the rules that Squawk finds broken."""
    command = [*_SQUAWK, *(["--assume-in-transaction"] if migration.atomic else []), str(migration.file)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode in {0, 1}, answer.stderr
    return {finding["rule_name"] for finding in json.loads(answer.stdout)}


def _release_faults(migration: Migration, contracting: set[str], releases: Sequence[Release]) -> Iterator[str]:
    """Return what is wrong with the oldest release that the migration names."""
    names = [release.name for release in releases]
    before = next((a.name for a, b in pairwise([releases[0], *releases]) if migration.name in b.migrations), None)
    if before is None:
        yield "docs/upgrades.md does not say which release it belongs to"
    elif migration.oldest not in names:
        yield f"OLDEST_RELEASE is {migration.oldest}: name a release"
    elif names.index(migration.oldest) > names.index(before):
        yield f"OLDEST_RELEASE {migration.oldest} refuses the processes of {before}, which run while it is applied"
    elif contracting and migration.oldest != before:
        yield f"{', '.join(sorted(contracting))}: OLDEST_RELEASE must be {before}, the first that does without"


def _across(migrations: Sequence[Migration]) -> Iterator[tuple[Migration, str]]:
    """Return the faults that show in several migrations: what is never validated, or needed before it is."""
    added: dict[str, tuple[Migration, str]] = {}
    validated: set[str] = set()
    for migration in migrations:
        for statement in migration.statements:
            table = match[1] if (match := _TABLE.match(statement)) else ""
            added |= {name: (migration, f"{table}: {rule}") for name, rule in _ADDED.findall(statement)}
            validated |= set(_VALIDATED.findall(statement))
            proved = {rule for name, (_, rule) in added.items() if name in validated}
            for column in _SET_NOT_NULL.findall(statement):
                if (check := f"{table}: check ({column} is not null)") not in proved:
                    yield migration, f"set not null without a validated constraint on {check}"
    for name, (migration, _) in added.items():
        if name not in validated:
            yield migration, f"{name} is added not valid, and no later migration validates it"
