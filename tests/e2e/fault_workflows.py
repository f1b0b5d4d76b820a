"""Workflows whose tasks write down what they do, each in a transaction of its own under `context.guard`."""

from __future__ import annotations

import os
import time

import psycopg2

from flowforge import Context, Retry, Workflow

_OFTEN = Retry(lost=20)
#: The table for `leave_effect`: a row for each attempt that got as far as to commit its work.
EFFECT = "create table public.effect (task_run uuid not null, token bigint not null)"


def leave_effect(context: Context) -> int:
    """Write the effect of an attempt, unless another owns the task run by now."""
    connection = psycopg2.connect(os.environ["DATABASE_URL"])
    try:
        with connection, connection.cursor() as cursor:
            context.guard(connection)
            cursor.execute("insert into public.effect values (%s, %s)", (str(context.task_run_id), context.token))
    finally:
        connection.close()
    return context.token


chain = Workflow("chain")


@chain.task(retry=_OFTEN)
def first(context: Context) -> int:
    return leave_effect(context)


@chain.task(retry=_OFTEN)
def second(first: int, context: Context) -> int:
    return first + leave_effect(context)


@chain.task(retry=_OFTEN)
def third(second: int, context: Context) -> int:
    return second + leave_effect(context)


@chain.task(retry=Retry(attempts=3, lost=20, delay="20ms"))
def flaky(context: Context) -> int:
    if context.attempt == 1:
        raise ConnectionResetError("the first time")
    return leave_effect(context)


nap = Workflow("nap")


@nap.task(retry=_OFTEN)
def sleep(context: Context) -> int:
    """Take longer than a third of the lease."""
    time.sleep(0.8)
    return leave_effect(context)


stuck = Workflow("stuck")


@stuck.task(retry=_OFTEN)
def until_taken_away(context: Context) -> int:
    """Do not end in a process that is to be stopped amid it, however slow the machine."""
    if "STUCK" in os.environ:
        time.sleep(60)
    return leave_effect(context)


single = Workflow("single")


@single.task(retry=_OFTEN)
def only(context: Context) -> int:
    return leave_effect(context)


unserved = Workflow("unserved")


@unserved.task(queue="nowhere")
def wait_for_ever() -> None: ...


unstarted = Workflow("unstarted")


@unstarted.task(queue="nowhere", start_by="100ms")
def too_late() -> None: ...
