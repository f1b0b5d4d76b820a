"""Which statements a call sends, and how PostgreSQL plans them."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from flowforge.db import Database, Session
from flowforge.db.session import NamedRows, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Plan = dict[str, Any]

#: The start of what can be explained, behind comments and parentheses.
_EXPLAINABLE = re.compile(rb"(\s|\(|--.*\n)*(execute|select|with|insert|update|delete)\b", re.IGNORECASE)


class Recorder(Session):
    """A session that remembers each statement as it was sent, parameters included."""

    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options)
        self.sent: list[bytes] = []

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Open a cursor that tells this connection what it executes."""
        kind = _NamedTuples if options.pop("cursor_factory", None) is NamedRows else _Tuples
        return super().cursor(*args, cursor_factory=kind, **options)


class _Recording:
    def execute(self, query: Any, parameters: Any = None) -> Any:
        self.connection.sent.append(self.mogrify(query, parameters))  # type: ignore[attr-defined]
        return super().execute(query, parameters)  # type: ignore[misc]


class _Tuples(_Recording, Rows):
    pass


class _NamedTuples(_Recording, NamedRows):
    pass


def recorded(url: str) -> Database:
    """Return a database object whose connection remembers what it was sent."""
    return Database(url, connection_factory=Recorder)


def sent_by(database: Database, call: Callable[[], Any]) -> list[bytes]:
    """Make a call, take back what it did, and return the statements that it sent."""
    connection = database.raw()
    with database.atomic() as transaction:
        connection.sent.clear()
        call()
        statements = [one for one in connection.sent if _EXPLAINABLE.match(one)]
        transaction.rollback()
    assert statements, "the call sent nothing"
    return statements


def run(connection: Any, statement: str) -> None:
    """Run a statement that cannot be prepared."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def explain(connection: Any, statement: bytes, *, options: bytes = b"") -> Plan:
    """Return the plan of a statement; with the option `analyze` the statement is also carried out."""
    with connection.cursor() as cursor:
        cursor.execute(b"explain (" + options + b"format json) " + statement)
        return cursor.fetchone()[0][0]["Plan"]  # type: ignore[no-any-return]


def walk(plan: Plan) -> Iterator[Plan]:
    """Yield every node of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from walk(child)


def indexes_in(plan: Plan) -> set[str]:
    """Return the names of the indexes that a plan reads."""
    return {node["Index Name"] for node in walk(plan) if "Index Name" in node}


def tables_scanned_whole(plan: Plan) -> set[str]:
    """Return the tables that a plan reads from end to end."""
    return {node["Relation Name"] for node in walk(plan) if node["Node Type"] == "Seq Scan"}


def rows_read(plan: Plan) -> Counter[str]:
    """Return table -> rows that an analyzed plan read from it, those included that it then threw away."""
    read: Counter[str] = Counter()
    for node in walk(plan):
        if "Relation Name" in node and node["Node Type"].endswith("Scan"):
            each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            each += node.get("Rows Removed by Index Recheck", 0)
            read[node["Relation Name"]] += round(each * node["Actual Loops"])
    return read


def rows_done(plan: Plan) -> int:
    """Return how many rows an analyzed plan answered or, where they are more, changed in one of its parts."""
    changes = (node["Plans"][0] for node in walk(plan) if node["Node Type"] == "ModifyTable")
    return max(round(node["Actual Rows"]) for node in (plan, *changes))
