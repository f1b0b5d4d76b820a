"""A first workflow, to be changed into yours: `flowforge start greeting name=World --wait` runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge import Retry, Run, Workflow

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection  # noqa: N812


@dataclass(frozen=True)
class Greeting:
    """What a run is told."""

    name: str


greeting = Workflow("greeting", Greeting, description="Greet somebody")


@greeting.task
def compose(name: str) -> str:
    """Write the words. `name` is a field of Greeting."""
    return f"Hello, {name}!"


@greeting.task(retry=Retry(attempts=3, delay="1s"), timeout="1m")
def deliver(compose: str) -> str:
    """Say them. `compose` is named after the task above: it gets that task's result, and waits for it."""
    return f"delivered: {compose}"


def invite(connection: Connection, name: str) -> Run:
    """
    Start a run inside your own transaction: rows of yours and the run are committed together, or neither exists.

        with connection:
            run = invite(connection, "World")
        run.wait(timeout=60)
    """
    with connection.cursor() as cursor:
        cursor.execute("insert into guest (name) values (%s)", (name,))
    return greeting.options(connection=connection).start(name=name)
