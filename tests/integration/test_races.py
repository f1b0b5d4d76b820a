"""The two races that a workflow engine must not lose, often enough to be believed."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import psycopg2

from flowforge import models, transitions
from flowforge.transitions import Mark, NewRun
from tests import factories
from tests.factories import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flowforge.db import Database
    from flowforge.transitions import Claim, Dispatch

T = TypeVar("T")

RACERS, CLAIMS, JOINS = 16, 200, 500


def test_of_sixteen_connections_that_claim_one_dispatch_one_wins(database: Database, database_url: str) -> None:
    dispatches = due(database, {"only": Node()}, runs=CLAIMS)

    def claim(connection: Any, owner: int, dispatch: Dispatch) -> int:
        return len(transitions.claim(connection, [dispatch], owner=f"worker-{owner}", lease=15))

    answers = race(database_url, [dispatches] * RACERS, claim)

    assert [sum(wins) for wins in zip(*answers, strict=True)] == [1] * CLAIMS
    assert kinds() == {"created": CLAIMS, "claimed": CLAIMS}
    assert {row.fencing_token for row in models.TaskRun.select()} == {1}
    assert models.OutboxMessage.select().count() == 0


def test_two_parents_that_finish_together_make_their_child_ready_once(database: Database, database_url: str) -> None:
    """B065, B066."""
    dispatches = due(database, {"left": Node(), "right": Node(), "join": Node(["left", "right"])}, runs=JOINS)
    order = sorted(dispatches, key=lambda dispatch: (dispatch.key, dispatch.run_id))
    claims = {claim.id: claim for claim in database.perform(transitions.claim, order, owner="worker-1", lease=60)}
    lefts = [claims[dispatch.task_run_id] for dispatch in order if dispatch.key == "left"]
    rights = [claims[dispatch.task_run_id] for dispatch in order if dispatch.key == "right"]

    def finish(connection: Any, _: int, claim: Claim) -> int:
        endings = transitions.finish(connection, [factories.outcome(claim)])
        return [ending.became for ending in endings].count("ready")

    answers = race(database_url, [lefts, rights], finish)

    assert [sum(readied) for readied in zip(*answers, strict=True)] == [1] * JOINS
    assert kinds()["readied"] == JOINS
    joins = list(models.TaskRun.select().join(models.Task).where(models.Task.key == "join"))
    assert {(row.state, row.upstream_remaining) for row in joins} == {("ready", 0)}
    owed = [message.task_run_id for message in models.OutboxMessage.select()]
    assert sorted(owed) == sorted(row.id for row in joins)


def due(database: Database, tasks: Mapping[str, Node], *, runs: int) -> list[Dispatch]:
    """Start runs, and publish the dispatches of their roots."""
    workflow = factories.make_workflow(tasks)
    database.perform(transitions.start_run, [NewRun(uuid4(), workflow.id, "{}") for _ in range(runs)])
    with database.atomic():
        dispatches, *_ = transitions.take(database.raw(), "default", limit=runs * len(tasks), after=Mark())
    return dispatches


def race(url: str, turns: Sequence[Sequence[T]], call: Callable[[Any, int, T], int]) -> list[list[int]]:
    """Make the calls of each list on a connection of its own; the n-th of all lists begin together."""
    barrier = Barrier(len(turns))

    def run(racer: int) -> list[int]:
        with closing(psycopg2.connect(url)) as connection:
            connection.autocommit = True
            return [(barrier.wait(60), call(connection, racer, turn))[1] for turn in turns[racer]]

    with ThreadPoolExecutor(len(turns)) as pool:
        return list(pool.map(run, range(len(turns))))


def kinds() -> Counter[str]:
    """Return how many events of each kind were told of task runs."""
    return Counter(event.kind for event in models.TaskRunEvent.select(models.TaskRunEvent.kind))
