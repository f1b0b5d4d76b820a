"""Every verb's text keeps the rules at the head of statements.sql, and no SQL hides outside .sql files."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import flowforge
from flowforge.db import fetch
from tests.contract.shape import LOCK_ORDER, STATEMENTS, Part, needs, parts, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg2.extensions import connection as Connection  # noqa: N812

PACKAGE = Path(flowforge.__file__).parent
_ID, _SOON = UUID(int=1), timedelta(seconds=1)

#: For each statement the parameters of a call that finds nothing.
CALLS: dict[str, dict[str, Any]] = {
    "start_run": {
        "runs": [], "workflows": [], "parameters": [], "priorities": [], "keys": [], "user": None, "ttl": _SOON,
    },
    "claim": {"ids": [], "tokens": [], "runs": [], "owner": "me", "lease": _SOON},
    "renew": {"ids": [], "tokens": [], "lease": _SOON},
    "finish": {
        "ids": [], "tokens": [], "runs": [], "states": [], "results": [], "errors": [], "leaves": [], "overdue": False,
        "patience": "2s",
    },
    "release": {"ids": [], "tokens": [], "delays": [], "errors": [], "charge": 1, "kind": "retried", "patience": "2s"},
    "defer": {"ids": [], "tokens": [], "reasons": [], "delay": _SOON},
    "expire": {"limit": 1},
    "take": {"queue": "default", "limit": 1, "priority": 0, "available_at": datetime(2026, 1, 1, tzinfo=UTC)},
    "resend": {"ids": [], "published": []},
    "hold": {"run": _ID},
    "move": {"run": _ID, "workflow": _ID, "moved": "[]", "fresh": "[]", "remaining": 1, "failed": 0},
    "forget": {"limit": 1},
    "guard": {"id": _ID, "token": 1},
}  # fmt: skip

#: The updates of task runs that need no token, because the locked row alone decides.
TOKENLESS = {
    ("finish", "dependent"): "a dependent has no owner: it is told how its upstream ended, and counts",
    ("expire", "expired"): "the lease on the locked row is over, whoever holds it",
}

#: SQL that may stand in Python: (file, text) -> why.
ALLOWED = {
    ("db/statements.py", "begin"): "transaction control around several verbs",
    ("db/statements.py", "commit"): "transaction control around several verbs",
    ("db/statements.py", "rollback"): "transaction control around several verbs",
    ("db/statements.py", "set local statement_timeout = %s"): "how long a statement of this transaction may take",
    ("db/session.py", "select pg_backend_pid()"): "whether the session is the one that greeted us",
}

_LOOKS_LIKE_SQL = re.compile(
    r"""^\s*(?: begin | commit | rollback | truncate\b.* | vacuum\b.* | analyze\b.*
            | select\s.+ | with\s+\w+\s+as\b.+ | insert\s+into\b.+ | update\s+\S+\s+set\b.+ | delete\s+from\b.+
            | (?:create|alter|drop)\s+(?:or\s+replace\s+)?(?:unique\s+)?
              (?:table|schema|index|function|trigger|database|role|system|view|type|extension)\b.*
            | set\s+(?:local|session)\b.* | (?:listen|notify)\s+\w+ | lock\s+table\b.*
        )\s*;?\s*$""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def cases(table: str, *, changed: bool = False) -> list[Any]:
    """Return each part, of each statement, that locks (or changes) rows of the table."""
    return [
        pytest.param(name, part, id=f"{name}-{part.name or 'last'}")
        for name, statement in STATEMENTS.items()
        for part in parts(statement)
        if table == (part.changes if changed else part.locks and part.locks[0])
    ]


def lock_of(name: str, part: Part) -> tuple[Part, str]:
    """Return the last part that locked what this part changes, and the text of all that the change depends on."""
    before = needs(part, parts(STATEMENTS[name]))
    held = [one for one in before if one.locks and one.locks[0] == part.changes][-1]
    return held, "\n".join(one.text for one in [*before, part])


def texts(path: Path) -> Iterator[str]:
    """Return the texts in a Python file, docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def sql_in_python() -> set[tuple[str, str]]:
    """Return (file, text) for each text of the package that is SQL."""
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    files = {name: path for name, path in files.items() if not name.startswith("cli/starter/")}  # the user's own code
    return {(name, text) for name, path in files.items() for text in texts(path) if _LOOKS_LIKE_SQL.match(text)}


def test_every_statement_is_called_with_exactly_its_parameters() -> None:
    assert {name: set(re.findall(r"%\((\w+)\)s", text)) for name, text in STATEMENTS.items()} == {
        name: set(parameters) for name, parameters in CALLS.items()
    }


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_runs_on_the_server_and_qualifies_every_name(connection: Connection, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("set local search_path = ''")

    assert fetch(connection, STATEMENTS[name], CALLS[name]) == []


@pytest.mark.parametrize(("name", "part"), [*cases("workflow_run", changed=True), *cases("task_run", changed=True)])
def test_every_update_of_a_run_names_the_state_it_leaves_on_the_locked_row(name: str, part: Part) -> None:
    held, chain = lock_of(name, part)

    assert held.locks
    assert re.search(rf"\b{held.name}\.state (=|in) ", chain) or re.search(
        rf"\bwhere\b.*\b{held.locks[1]}\.state( \|\| '')? = ", held.text, re.DOTALL
    )


@pytest.mark.parametrize(("name", "part"), cases("task_run", changed=True))
def test_every_update_of_a_task_run_needs_the_token_on_the_locked_row(name: str, part: Part) -> None:
    held, chain = lock_of(name, part)

    assert ((name, part.name) in TOKENLESS) != bool(re.search(rf"\.token = {held.name}\.fencing_token\b", chain))


@pytest.mark.parametrize("table", LOCK_ORDER)
def test_rows_are_locked_in_a_part_of_their_own_before_they_are_changed(table: str) -> None:
    changes = [case.values for case in cases(table, changed=True)]
    assert changes

    for name, part in changes:
        locked = {one.locks[0] for one in needs(part, parts(STATEMENTS[name])) if one.locks}
        guarded = {table} if table != "outbox_message" else {"task_run", "outbox_message"}
        assert locked & guarded, f"{name}: {part.name or 'the last part'} changes {table} rows that it has not locked"


@pytest.mark.parametrize("name", STATEMENTS)
def test_locks_are_taken_in_one_order_each_part_waiting_for_the_one_before(name: str) -> None:
    all_parts = parts(STATEMENTS[name])
    locking = [part for part in all_parts if part.locks]
    ranks = [LOCK_ORDER.index(part.locks[0]) for part in locking if part.locks]

    assert ranks == sorted(ranks)
    for first, second in pairwise(locking):
        assert first in needs(second, all_parts)


@pytest.mark.parametrize("name", STATEMENTS)
def test_parts_that_lock_or_unpack_arrays_are_materialized_and_lock_by_id(name: str) -> None:
    for part in parts(STATEMENTS[name]):
        if part.locks or "unnest(" in part.text:
            assert part.materialized or not part.name, part.name
        if part.locks and "skip locked" not in part.text:
            assert re.search(rf"order by {part.locks[1]}\.id\s+for no key update", part.text), part.name


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_locks_more_than_it_must_or_outlives_its_transaction(name: str) -> None:
    text = plain(STATEMENTS[name])

    assert re.match(r"\s*(with|update|insert|delete|select)\b", text)
    assert "for update" not in text
    assert ("for share" in text) == (name == "guard")
    assert not re.search(r"set_config\((?!'\w+', ('\w+'|%\(\w+\)s), true\))", text), (
        "a setting must be the transaction's own"
    )
    assert not re.search(r"\b(pg_\w*advisory\w*|pg_notify|listen|notify|nextval|temp|temporary)\b", text)
    assert not re.search(r"\b(now\(\)|current_timestamp|clock_timestamp|transaction_timestamp)", text)


def bare(text: str) -> str:
    """Return SQL without comments and indentation."""
    lines = (line.partition("--")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def test_the_function_for_plain_sql_is_the_verb_word_for_word() -> None:
    schema = (PACKAGE.parent / "schema.sql").read_text(encoding="utf-8")
    function = schema[schema.index("create function flowforge.start(") :]
    verb = re.sub(r"%\((\w+)\)s", r"given.\1", STATEMENTS["start_run"]).rstrip(";")

    assert bare(verb) in bare(function)


def test_no_sql_stands_outside_sql_files() -> None:
    assert sql_in_python() == set(ALLOWED)
