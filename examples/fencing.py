"""
A worker that is stopped in the middle of a task and wakes too late: its INSERT is refused in its own transaction.

    python examples/fencing.py

Everything it needs is started here and is gone afterwards: PostgreSQL, Valkey, a scheduler and two workers. One of
these owns a payment, and is frozen (SIGSTOP) as a long pause of its machine would freeze it. Its lease runs out, the
other worker takes the payment over and books it. Then the first goes on where it was, and would book it again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg2

from flowforge import Context, Run, Settings, Workflow, configure, migrations
from flowforge.embedded import development

DECIDING = 2.0  # seconds


@dataclass(frozen=True)
class Payment:
    """What is to be paid."""

    account: str
    cents: int


payments = Workflow("payments", Payment)


@payments.task
def pay(account: str, cents: int, context: Context) -> int:
    """Think for a while, then book in a transaction of its own, in which this worker must still own the task."""
    time.sleep(DECIDING)
    connection = psycopg2.connect(Settings.from_env().database_url)
    # The inner block commits, or rolls back when anything is raised.
    with closing(connection), connection, connection.cursor() as cursor:
        context.guard(connection)
        cursor.execute("insert into fencing_example_payment values (%s, %s)", (account, cents))
    return os.getpid()


def owner(run: Run) -> int:
    """Wait until a worker owns the payment; return its process id."""
    while not (name := run.tasks()[0].lease_owner):
        time.sleep(0.05)
    return int(name.split(":")[1])


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.events() if event.task == "pay"]


def booked(settings: Settings) -> int:
    with closing(psycopg2.connect(settings.database_url)) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from fencing_example_payment")
        return int(cursor.fetchone()[0])


def show(settings: Settings) -> None:
    """Freeze the first owner, let the second book, wake the first."""
    run = payments.start(account="4711", cents=1999)
    frozen = owner(run)
    os.kill(frozen, signal.SIGSTOP)
    print("A worker owns the payment, and is frozen.")
    state, other = run.wait(timeout=60), run.result(pay) != frozen
    print(f"The run {state}: {'another' if other else 'the same'} worker has booked {booked(settings)} payment.")
    os.kill(frozen, signal.SIGCONT)
    while "refused" not in kinds(run):
        time.sleep(0.05)
    print(f"The first worker woke up and was refused: there is {booked(settings)} payment.")
    print(f"What happened: {', '.join(kinds(run))}.")


def main() -> None:
    """Show it on servers that live for the block."""
    with development.deployment(["fencing"]) as environment:
        environment |= {"PYTHONPATH": str(Path(__file__).parent), "FLOWFORGE_LEASE": "3", "FLOWFORGE_GRACE": "1"}
        settings = Settings.from_env({**os.environ, **environment})
        migrations.migrate(configure(settings).database)
        with closing(psycopg2.connect(settings.database_url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("create table fencing_example_payment (account text, cents integer)")
        commands = {"scheduler": "flowforge scheduler", "one": "flowforge worker", "two": "flowforge worker"}
        with Path(os.devnull).open("w") as nowhere, development.running(commands, environment, grace=10, echo=nowhere):
            show(settings)


if __name__ == "__main__":
    sys.exit(main())
