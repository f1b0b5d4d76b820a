"""
A nightly load of yesterday's orders: one workflow, started in the same transaction as the row that asks for it.

    python examples/etl.py

Where DATABASE_URL is unset, everything it needs is started here and is gone afterwards: PostgreSQL, Valkey, a scheduler
and a worker. Where it is set, it and REDIS_URL name servers of yours, and the processes are yours as well:

    export PYTHONPATH=examples FLOWFORGE_MODULES=etl
    flowforge migrate && flowforge deploy
    flowforge scheduler
    flowforge worker

The only thing that it leaves in your database beside its run is its own table, `etl_example_booking`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import dramatiq
import psycopg2

from flowforge import Context, FlowForgeError, Retry, Settings, Workflow, configure, insights, migrations
from flowforge.embedded import development
from flowforge.errors import RunNotCommitted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge import Run

DAY = date(2026, 11, 29)
SHARDS = 8


# The workflow ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sales:
    """What a run is told."""

    day: date
    region: str = "eu"


@dataclass(frozen=True)
class Order:
    """One order, in cents."""

    number: int
    region: str
    cents: int


@dataclass(frozen=True)
class Totals:
    """A day's orders, added up."""

    orders: int
    cents: int


sales = Workflow("daily-sales", Sales, description="Load yesterday's orders")


@sales.task
def extract(day: date, region: str) -> list[Order]:
    """Read the orders of a day; `day` and `region` are fields of Sales."""
    return [Order(number, region, 100 * number + day.day) for number in range(1, 101)]


@sales.task(retry=Retry(attempts=5, delay="100ms"), timeout="10m")
def transform(extract: list[Order], context: Context) -> Totals:
    """Add them up. The argument is named after the task above: it gets that task's result, and waits for it."""
    if context.attempt == 1:
        raise ConnectionError("the exchange rates do not answer")
    return Totals(len(extract), sum(order.cents for order in extract))


def count(orders: list[Order], shard: int) -> int:
    return sum(order.number % SHARDS == shard for order in orders)


shards = [sales.task(count, key=f"count_{n}", inputs={"orders": extract, "shard": n}) for n in range(SHARDS)]


@sales.task(inputs={"parts": shards})
def merge(parts: list[int]) -> int:
    """Add up the results of a list of tasks."""
    return sum(parts)


@sales.task
async def publish(transform: Totals, merge: int) -> str:
    """Coroutine functions are tasks too."""
    await asyncio.sleep(0.01)
    return f"{merge} orders, {transform.cents / 100:.2f} EUR"


@dramatiq.actor
def archive(day: date) -> str:
    """So are the Dramatiq actors that you have."""
    return f"orders/{day:%Y/%m/%d}.parquet"


archived = sales.task(archive)


@sales.task(after=transform, when="all_done")
def clean_up(context: Context) -> str:
    """Order without data; it runs even if transform failed."""
    return f"removed the scratch files of run {context.run_id}"


# Starting it ----------------------------------------------------------------------------------------------------------


def book(connection: Connection, day: date) -> Run:
    """Note that a day is to be loaded and start the run that does it: both or neither."""
    with connection.cursor() as cursor:
        cursor.execute("insert into etl_example_booking (day) values (%s) on conflict do nothing", (day,))
    return sales.options(connection=connection, idempotency_key=f"daily-sales/{day}").start(day=day)


def booked(connection: Connection, day: date) -> bool:
    with connection, connection.cursor() as cursor:
        cursor.execute("select from etl_example_booking where day = %s", (day,))
        return bool(cursor.rowcount)


def show_rollback(connection: Connection) -> None:
    """Book a day of long ago, and roll back."""
    run = book(connection, date(1999, 12, 31))
    connection.rollback()
    try:
        print(f"This should not be: run {run.id} is {run.state}")
    except RunNotCommitted:
        row = "a" if booked(connection, date(1999, 12, 31)) else "no"
        print(f"Rolled back: there is {row} booking and no run {run.id}.")


def show_commit(connection: Connection) -> Run:
    """Book yesterday twice, and commit: equal starts with one key are one run."""
    run, again = book(connection, DAY), book(connection, DAY)
    connection.commit()
    row = "a" if booked(connection, DAY) else "no"
    print(f"Committed: there is {row} booking of {DAY}, and run {run.id}.")
    print(f"A second start with the same idempotency key gave {'the same' if run == again else 'another'} run.")
    return run


def show_results(run: Run) -> None:
    print(f"It {run.wait(timeout=60)}.")
    tasks = {task.key: task for task in insights.task_summaries(run.organization, run.id)}
    print(f"transform gave {run.result(transform)} at attempt {tasks['transform'].attempt}.")
    print(f"{len(shards)} shards together counted {run.result(merge)} orders.")
    print(f"publish said {run.result(publish)!r}, archive {run.result(archived)!r}.")
    print(f"clean_up {run.result(clean_up)}.")


def show_inline(run: Run) -> None:
    """Carry out the same plan in this process, without servers, as a test would."""
    inline = sales.run_inline(day=DAY)
    same = all(inline.result(task) == run.result(task) for task in (extract, transform, merge, publish, archived))
    print(f"Inline it {inline.state} too, with {'the same' if same else 'other'} results.")


def main() -> int:
    """Show what the docstring says; the exit code is 0 if the run succeeded."""
    with deployment() as settings:
        connection = psycopg2.connect(settings.database_url)
        with connection, connection.cursor() as cursor:
            cursor.execute("create table if not exists etl_example_booking (day date primary key)")
        show_rollback(connection)
        run = show_commit(connection)
        show_results(run)
        show_inline(run)
        connection.close()
    return 0


# Somewhere to run it --------------------------------------------------------------------------------------------------


@contextmanager
def deployment() -> Iterator[Settings]:
    """Give the settings of your deployment, or of one that lives for the block."""
    if os.environ.get("DATABASE_URL"):
        settings = Settings.from_env().require("redis_url")
        migrations.check(configure(settings).database)
        yield settings
        return
    with development.deployment(["etl"]) as environment:
        environment |= {"PYTHONPATH": str(Path(__file__).parent), "FLOWFORGE_GRACE": "1"}
        settings = Settings.from_env({**os.environ, **environment})
        migrations.migrate(configure(settings).database)
        commands = {"scheduler": "flowforge scheduler", "worker": "flowforge worker"}
        with Path(os.devnull).open("w") as nowhere, development.running(commands, environment, grace=10, echo=nowhere):
            yield settings


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FlowForgeError as error:
        sys.exit(f"error: {error}")
