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
PARTS, BATCH = 1000, 25


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


def test_a_join_of_a_thousand_is_ready_once_though_parts_end_in_batches_and_some_are_lost(
    database: Database, database_url: str
) -> None:
    """B068: batches at once all count for one join; a tenth is lost, and what its worker says later does not count."""
    parts = {f"part_{number}": Node() for number in range(PARTS)}
    dispatches = due(database, {**parts, "join": Node(list(parts))}, runs=1)
    lost = database.perform(transitions.claim, dispatches[: PARTS // 10], owner="lost-worker", lease=-1)
    kept = database.perform(transitions.claim, dispatches[PARTS // 10 :], owner="worker-1", lease=60)
    batches = [kept[first : first + BATCH] for first in range(0, len(kept), BATCH)]

    def finish(connection: Any, _: int, claims: Sequence[Claim]) -> int:
        endings = transitions.finish(connection, [factories.outcome(claim) for claim in claims])
        return [ending.became for ending in endings].count("ready")

    early = race(database_url, [batches[racer::9] for racer in range(9)], finish)
    database.perform(transitions.expire, limit=PARTS)
    again = database.perform(transitions.claim, publish(database, PARTS), owner="worker-2", lease=60)
    late = race(database_url, [[lost], [again]], finish)

    (join,) = models.TaskRun.select().join(models.Task).where(models.Task.key == "join")
    assert (len(lost), len(again), sum(map(sum, early))) == (PARTS // 10, PARTS // 10, 0)
    assert late == [[0], [1]]
    assert (join.state, join.upstream_remaining, kinds()["readied"]) == ("ready", 0, 1)


def due(database: Database, tasks: Mapping[str, Node], *, runs: int) -> list[Dispatch]:
    """Start runs, and publish the dispatches of their roots."""
    workflow = factories.make_workflow(tasks)
    database.perform(transitions.start_run, [NewRun(uuid4(), workflow.id, "{}") for _ in range(runs)])
    return publish(database, runs * len(tasks))


def publish(database: Database, limit: int) -> list[Dispatch]:
    """Publish the dispatches that are due."""
    with database.atomic():
        dispatches, *_ = transitions.take(database.raw(), "default", limit=limit, after=Mark())
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
