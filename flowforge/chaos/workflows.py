"""
The load: singles, chains, joins, fan-outs, retries and failures. Each task leaves one row, guarded, as its effect.

Workers import this module. What a task returns is checked by the task that takes it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg2

from flowforge import Context, Retry, Workflow
from flowforge.chaos.effects import EFFECT, QUEUE
from flowforge.settings import Settings

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection  # noqa: N812

#: Connections of the tasks are cut as well: what fails by that is tried again.
AGAIN = Retry(attempts=20, lost=50, delay="100ms", factor=1.5, max_delay="2s")
_FAILING = 20  # one task run of so many fails for good
_SLOWEST = 0.2  # seconds
_SHARDS = 12


@dataclass(frozen=True)
class Load:
    """Parameters of every run: its number."""

    n: int


single = Workflow("chaos-single", Load)
chain = Workflow("chaos-chain", Load)
join = Workflow("chaos-join", Load)
fan_out = Workflow("chaos-fan-out", Load)
flaky = Workflow("chaos-flaky", Load)
failing = Workflow("chaos-failing", Load)

_local = threading.local()


def effect(n: int, context: Context) -> int:
    """Take a while, then leave a row in a transaction that is guarded; return the number."""
    time.sleep(_SLOWEST * _fraction(n, context))
    connection = _connection()
    try:
        with connection, connection.cursor() as cursor:
            context.guard(connection)
            cursor.execute(EFFECT, (str(context.task_run_id), context.token, str(context.run_id)))
    except BaseException:
        _local.connection = None
        connection.close()
        raise
    return n


def _connection() -> Connection:
    kept: Connection | None = getattr(_local, "connection", None)
    if kept is None or kept.closed:
        kept = psycopg2.connect(Settings.from_env().database_url, connect_timeout=5, application_name="chaos-task")
        _local.connection = kept
    return kept


def _fraction(n: int, context: Context) -> float:
    """Return a number from 0 to 1 that is the same in every attempt of a task run."""
    digest = hashlib.sha256(f"{n}/{context.workflow}/{context.key}".encode()).digest()
    return int.from_bytes(digest[:4]) / 2**32


@single.task(retry=AGAIN, queue=QUEUE, timeout="60s")
def only(n: int, context: Context) -> int:
    """Do one thing."""
    return effect(n, context)


@chain.task(retry=AGAIN, queue=QUEUE, timeout="60s")
def first(n: int, context: Context) -> int:
    """Hand a number on."""
    return effect(n, context)


@chain.task(retry=AGAIN, queue=QUEUE, timeout="60s")
async def second(first: int, n: int, context: Context) -> int:
    """Hand on what came, one more; on an event loop."""
    require(first, n)
    return effect(n, context) + 1


@chain.task(retry=AGAIN, queue=QUEUE, timeout="60s")
def third(second: int, n: int, context: Context) -> int:
    """Check what came."""
    require(second, n + 1)
    return effect(n, context)


@join.task(retry=AGAIN, queue=QUEUE, timeout="60s")
def begin(n: int, context: Context) -> int:
    """Begin two branches."""
    return effect(n, context)


sides = [
    join.task(only.function, key=key, inputs={"n": begin}, retry=AGAIN, queue=QUEUE, timeout="60s")
    for key in ("left", "right")
]


@join.task(inputs={"sides": sides}, retry=AGAIN, queue=QUEUE, timeout="60s")
def meet(sides: list[int], n: int, context: Context) -> int:
    """Join the branches."""
    require(sides, [n, n])
    return effect(n, context)


shards = [
    fan_out.task(only.function, key=f"shard_{number}", retry=AGAIN, queue=QUEUE, timeout="60s")
    for number in range(_SHARDS)
]


@fan_out.task(inputs={"parts": shards}, retry=AGAIN, queue=QUEUE, timeout="60s")
def merge(parts: list[int], n: int, context: Context) -> int:
    """Join all shards."""
    require(parts, [n] * _SHARDS)
    return effect(n, context)


@flaky.task(retry=AGAIN, queue=QUEUE, timeout="60s")
def stumble(n: int, context: Context) -> int:
    """Fail twice, then do it."""
    if context.attempt <= 2:  # noqa: PLR2004 - two stumbles
        raise ValueError(f"attempt {context.attempt} stumbles")
    return effect(n, context)


@failing.task(queue=QUEUE, timeout="60s", retry=Retry(attempts=1, lost=50))
def fail(n: int) -> int:
    """Fail for good."""
    raise ValueError(f"run {n} fails")


@failing.task(after=fail, when="all_done", retry=AGAIN, queue=QUEUE, timeout="60s")
def clean_up(n: int, context: Context) -> int:
    """Clean up after a failure."""
    return effect(n, context)


def require(value: object, wanted: object) -> None:
    """Raise unless a value came through as it was returned."""
    if value != wanted:
        raise AssertionError(f"{value!r} came where {wanted!r} was returned")
