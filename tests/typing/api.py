"""The example of the documentation, whole, and its misuse. Read by type checkers alone: see contract/test_typing.py."""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from dataclasses import dataclass
from datetime import date
from typing import assert_type

import dramatiq
import psycopg2
from pydantic import BaseModel

from flowforge import Context, Retry, Run, Workflow
from flowforge.states import RunState


@dataclass(frozen=True)
class Order:
    amount: int


@dataclass(frozen=True)
class Totals:
    amount: int


@dataclass(frozen=True)
class Sales:
    day: date
    region: str = "eu"


sales = Workflow("daily-sales", Sales, description="Load yesterday's orders")


@sales.task
def extract(day: date) -> list[Order]:
    return [Order(day.day)]


@sales.task(retry=Retry(attempts=5, delay="1s", factor=2, max_delay="5m"), timeout="10m", queue="cpu")
def transform(extract: list[Order]) -> Totals:
    return Totals(sum(order.amount for order in extract))


def count(orders: list[Order], shard: int) -> int:
    return len(orders[shard::8])


shards = [sales.task(count, key=f"count_{n}", inputs={"orders": extract, "shard": n}) for n in range(8)]


@sales.task(inputs={"parts": shards})
def merge(parts: list[int]) -> int:
    return sum(parts)


@sales.task(after=transform, when="all_done")
def clean_up(context: Context) -> None:
    context.log.info("attempt %d", context.attempt)


# A task is typed as its function is, and calling it calls that.
assert_type(extract(day=date(2026, 11, 29)), list[Order])
assert_type(transform([Order(1)]), Totals)
assert_type(shards[0](orders=[], shard=0), int)
transform([1])  # type: ignore[list-item]
transform(extracted=[])  # type: ignore[call-arg]

# A start takes what the parameters class takes, and nothing else.
connection = psycopg2.connect("")
run = sales.options(connection=connection, idempotency_key="daily-sales/2026-11-29").start(day=date(2026, 11, 29))
assert_type(run, Run)
assert_type(run.wait(timeout=60), RunState)
assert_type(sales.start(date(2026, 11, 29), region="us"), Run)
assert_type(sales.start_many(sales.prepare(day=date(2026, 11, n)) for n in range(1, 8)), list[Run])
sales.prepare(day="2026-11-29")  # type: ignore[arg-type]
sales.start_many([Sales(date(2026, 11, 29))])  # type: ignore[list-item]
sales.start()  # type: ignore[call-arg]
sales.start(day="2026-11-29")  # type: ignore[arg-type]
sales.start(day=date(2026, 11, 29), regoin="us")  # type: ignore[call-arg]
sales.options(priority=-1).start(days=1)  # type: ignore[call-arg]
sales.options(priorty=1)  # type: ignore[call-arg]

# A result is what its task returns, from a run on workers and from one in this process.
assert_type(run.result(transform), Totals)
assert_type(run.result(shards[0]), int)
assert_type(run.result(clean_up), None)
assert_type(sales.run_inline(day=date(2026, 11, 29)).result(merge), int)
run.result("transform")  # type: ignore[call-overload]


# Without parameters there are none to give.
plain = Workflow("plain")
assert_type(plain.start(), Run)
plain.start(day=date(2026, 11, 29))  # type: ignore[call-arg]


# A pydantic model serves as well as a dataclass.
class Report(BaseModel):
    title: str
    pages: int = 1


reports = Workflow("reports", Report)
assert_type(reports.start(title="Q4"), Run)
reports.start(pages=2)  # type: ignore[call-arg]
reports.start(title=4)  # type: ignore[arg-type]


# The result of a coroutine function is what is awaited.
@reports.task
async def fetch(title: str) -> bytes:
    return title.encode()


@reports.task(timeout=2.5)
async def measure(fetch: bytes) -> int:
    return len(fetch)


assert_type(run.result(fetch), bytes)
assert_type(run.result(measure), int)


async def call_directly() -> None:
    assert_type(await fetch("Q4"), bytes)


# Actors are tasks with the signature of their function.
@dramatiq.actor
def publish(measure: int) -> str:
    return str(measure)


@dramatiq.actor(queue_name="mail")
async def announce(publish: str) -> float:
    return float(publish)


published = reports.task(publish)
assert_type(published(measure=3), str)
published("3")  # type: ignore[arg-type]
assert_type(run.result(published), str)
assert_type(run.result(reports.task(announce, key="announce")), float)


async def from_asynchronous_code() -> None:
    run = await sales.start_async(day=date(2026, 11, 29))
    assert_type(await run.wait_async(timeout=60), RunState)
    assert_type(await run.result_async(transform), Totals)
    assert_type([event.kind for event in await run.events_async()], list[str])
    assert_type([task.key for task in run.tasks()], list[str])
    await sales.start_async(days=1)  # type: ignore[call-arg]
