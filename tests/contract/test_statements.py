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
_NO_RUN = {"organization": _ID, "kind": "run", "subject": str(_ID), "run": _ID}

#: For each statement the parameters of a call that finds nothing.
CALLS: dict[str, dict[str, Any]] = {
    "start_run": {
        "runs": [], "workflows": [], "parameters": [], "priorities": [], "keys": [], "deadlines": [], "user": None,
        "ttl": _SOON,
    },
    "claim": {"ids": [], "tokens": [], "leases": [], "runs": [], "owner": "me"},
    "renew": {"ids": [], "tokens": [], "leases": [], "spans": []},
    "finish": {
        "ids": [], "tokens": [], "runs": [], "states": [], "results": [], "errors": [], "leaves": [], "taken": False,
        "overdue": False, "patience": "2s",
    },
    "release": {
        "ids": [], "tokens": [], "delays": [], "errors": [], "charge": 1, "kind": "retried", "owner": None,
        "patience": "2s",
    },
    "defer": {"ids": [], "tokens": [], "reasons": [], "delay": _SOON},
    "expire": {"limit": 1, "spared": []},
    "lose": {"ids": [], "tokens": [], "owner": "me"},
    "take": {"queue": "default", "limit": 1, "priority": 0, "available_at": datetime(2026, 1, 1, tzinfo=UTC)},
    "resend": {"ids": [], "published": []},
    "hold": {"run": _ID, "patience": "0ms"},
    "move": {"run": _ID, "workflow": _ID, "moved": "[]", "fresh": "[]", "remaining": 1, "failed": 0, "cancelled": 0},
    "cancel": {"runs": [_ID], "tasks": [], "whole": True, "now": False, "overdue": False, "detail": "{}"},
    "rerun": {"run": _ID, "tasks": [], "detail": "{}"},
    "pause": {**_NO_RUN, "by": "me", "reason": ""},
    "resume": {**_NO_RUN, "by": "me", "reason": ""},
    "unhold": {"limit": 1},
    "forget": {"limit": 1},
    "guard": {"id": _ID, "token": 1},
    "here": {"transaction": "1"},
}  # fmt: skip

#: The updates of task runs that need no token, because the locked row alone decides.
TOKENLESS = {
    ("finish", "dependent"): "a dependent has no owner: it is told how its upstream ended, and counts",
    ("expire", "expired"): "the lease on the locked row is over, whoever holds it",
    ("cancel", "ended"): "what has not begun has no owner: it ends whatever its token, which becomes one more",
    ("cancel", "asked"): "whoever owns it is asked to stop; the token stays, and so does what that owner may write",
    ("cancel", "dependent"): "as finish's: it is told how its upstream ended, and counts",
    ("rerun", "rerun"): "the run has ended, so nothing of it has an owner; the token becomes one more",
}

#: Whose lock stands before a change of a table's rows, where that is not the rows' own.
GUARDED_BY = {"outbox_message": {"task_run", "outbox_message"}, "pause": {"workflow_run"}}

#: SQL that may stand in Python: (file, text) -> why.
ALLOWED = {
    ("client/deploying.py", "commit"): "the key of a deployment's detail, and no SQL",
    ("db/statements.py", "begin; "): "transaction control around several verbs",
    ("db/statements.py", "commit"): "transaction control around several verbs",
    ("db/statements.py", "rollback"): "transaction control around several verbs",
    ("db/statements.py", "set local idle_in_transaction_session_timeout = '30s'"): "how long this transaction may idle",
    ("db/statements.py", "set local statement_timeout = %s"): "how long a statement of this transaction may take",
    ("db/statements.py", "select pg_current_xact_id_if_assigned() is not null"): "whether this transaction has changed",
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

    found = fetch(connection, STATEMENTS[name], CALLS[name])

    assert [next(iter(row)) for row in found] == ([False] if name in {"guard", "here"} else [])


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
        assert locked & GUARDED_BY.get(table, {table}), (
            f"{name}: {part.name or 'the last part'} changes {table} rows that it has not locked"
        )


@pytest.mark.parametrize("name", STATEMENTS)
def test_locks_are_taken_in_one_order_each_part_waiting_for_the_one_before(name: str) -> None:
    all_parts = parts(STATEMENTS[name])
    waiting = [part for part in all_parts if part.waits_for]
    ranks = [LOCK_ORDER.index(part.waits_for) for part in waiting if part.waits_for]

    assert ranks == sorted(ranks)
    for first, second in pairwise(waiting):
        assert first in needs(second, all_parts)


def test_keys_are_reserved_before_anything_of_a_run_is_written() -> None:
    all_parts = parts(STATEMENTS["start_run"])
    [reserved] = [part for part in all_parts if part.meets]
    writing = [part for part in all_parts if "insert into" in part.text and part != reserved]

    assert reserved.meets == "idempotency_key"
    assert len(writing) > 1
    assert [part.name for part in writing if reserved not in needs(part, all_parts)] == []


@pytest.mark.parametrize("name", STATEMENTS)
def test_inserts_that_may_meet_others_write_one_row_or_go_in_one_order(name: str) -> None:
    for part in parts(STATEMENTS[name]):
        if part.meets and re.search(r"^\s*from ", part.text, re.MULTILINE):
            assert re.search(r"order by .*\n\s*on conflict", part.text), part.name


@pytest.mark.parametrize("name", STATEMENTS)
def test_parts_that_lock_or_unpack_arrays_are_materialized_and_lock_by_id(name: str) -> None:
    for part in parts(STATEMENTS[name]):
        recursive = re.search(rf"\bfrom {part.name}\b", part.text)  # which is never merged into another
        if part.locks or ("unnest(" in part.text and not recursive):
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


def lock_in(text: str, row: str, token: str) -> str:
    """Return the lock that a guard takes, with its two parameters named alike."""
    [lock] = re.findall(r"from flowforge\.task_run t\s.*?for share", text, re.DOTALL)
    return " ".join(lock.replace(row, "ROW").replace(token, "TOKEN").split())


def test_the_guard_for_plain_sql_locks_as_the_verb_does_word_for_word() -> None:
    schema = (PACKAGE.parent / "schema.sql").read_text(encoding="utf-8")
    function = schema[schema.index("create function flowforge.guard(") :]

    assert lock_in(STATEMENTS["guard"], "%(id)s::uuid", "%(token)s") == lock_in(
        function[: function.index("end $$;")], "guard.task_run", "guard.token"
    )


def test_no_sql_stands_outside_sql_files() -> None:
    assert sql_in_python() == set(ALLOWED)
