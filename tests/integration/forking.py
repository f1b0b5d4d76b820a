"""A program that uses both servers when it is imported, forks twice, and asks on in all three processes at once."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from flowforge import client, db, models

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROUNDS = 2000
_QUESTION = "select %(n)s::int as answer, pg_backend_pid() as session"

engine = client.engine()
assert models.Workflow.select().count() == 0
assert engine.runway
assert engine.runway.length("none") == 0


def ask(n: int) -> tuple[bool, int]:
    """Ask PostgreSQL, twice, and Redis; say whether each reply is to its question, and which session answered."""
    assert engine.runway
    (row,) = engine.database.perform(db.fetch, _QUESTION, {"n": n})
    (count,) = engine.database.execute_sql("select %s::int + 1", (n,)).fetchone()
    echoed = engine.runway.client.echo(str(n))
    return (row.answer, count, echoed) == (n, n + 1, str(n).encode()), row.session


def ask_often(first: int) -> dict[str, Any]:
    """Ask questions that nobody else asks."""
    answers = [ask(first + n) for n in range(_ROUNDS)]
    return {"wrong": sum(not right for right, _ in answers), "sessions": sorted({session for _, session in answers})}


def keep_asking(stop: threading.Event, found: list[dict[str, Any]]) -> None:
    """Ask in another thread, which the children do not have."""
    found.append(ask_often(1))
    stop.wait()
    found.append(ask_often(1))


def fork(first: int) -> int | None:
    """Return the end of a pipe that a child tells its findings to; None in the child, which has told them."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return reader
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        json.dump(ask_often(first), pipe)
    return None


def main() -> Iterator[dict[str, Any]]:
    """Yield what the parent's two threads and each child found."""
    stop, in_thread = threading.Event(), list[dict[str, Any]]()
    thread = threading.Thread(target=keep_asking, args=(stop, in_thread))
    before = ask(0)[1]
    thread.start()
    pipes = []
    for child in (1, 2):
        pipe = fork(child * 1_000_000)
        if pipe is None:
            return  # and end as any process does, destructors included
        pipes.append(pipe)
    found = ask_often(3_000_000)
    for pipe in pipes:
        with os.fdopen(pipe) as words:
            yield json.load(words)
        os.wait()
    stop.set()
    thread.join()
    yield from in_thread
    yield found
    yield {**ask_often(4_000_000), "before": before}


if __name__ == "__main__":
    if findings := list(main()):
        json.dump(findings, sys.stdout)
