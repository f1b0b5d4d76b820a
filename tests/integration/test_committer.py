"""The committer writes how attempts ended, and the keeper looks after those that run; both by their turns alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest

from flowforge import Retry, Workflow, models, transitions
from flowforge.actors.execution import execute
from flowforge.actors.holding import Phase
from flowforge.actors.intake import Intake
from flowforge.actors.registry import Registry
from flowforge.actors.runtime import Runtime
from flowforge.broker import Runway
from flowforge.db import Session
from flowforge.outbox import Publisher
from flowforge.states import TaskState
from flowforge.transitions import Outcome, Release
from tests import factories
from tests.conftest import administer
from tests.integration.verbs import situation
from tests.support import Racer, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis as redis_client

    from flowforge.actors.holding import Attempt
    from flowforge.client import Engine
    from flowforge.embedded.servers import PostgresServer

READ_ONLY = "set default_transaction_read_only = "
TWICE = Retry(attempts=2, delay=0)


def one() -> int:
    return 1


def broken() -> None:
    raise ValueError("no")


def define() -> Workflow[[]]:
    """Three tasks side by side, one that fails and is tried again, and one that waits for the first."""
    workflow = Workflow[[]]("committed")
    first = workflow.task(one)
    workflow.task(one, key="two")
    workflow.task(one, key="three")
    workflow.task(broken, retry=TWICE)
    workflow.task(one, key="after_one", after=first)
    return workflow


@pytest.fixture
def runtime(engine: Engine, redis: redis_client.Redis) -> Runtime:
    """A worker process whose loops do not run."""
    runway = Runway(redis, engine.settings.namespace)
    return Runtime(engine.settings, engine.database, runway, Registry([define()]), ("default",), threads=8)


@pytest.fixture
def attempts(runtime: Runtime) -> dict[str, Attempt]:
    """The attempts of one run, by key, claimed as a worker claims them; no wake is left in Redis."""
    runtime.registry.workflows["committed"].start()  # type: ignore[attr-defined]
    claimed = {attempt.task.key: attempt for attempt in claim(runtime)}
    runtime.runway.wait(0.01)
    return claimed


def claim(runtime: Runtime) -> list[Attempt]:
    """Publish what is due, and take it in."""
    Publisher(runtime.database, runtime.runway, limit=100).publish()
    _, popped = runtime.runway.pop(runtime.queues, limit=100, seconds=1)
    return Intake(runtime).take_in(popped)


def carry_out(runtime: Runtime, *attempts: Attempt) -> None:
    """Call the users' functions, on this thread."""
    for attempt in attempts:
        execute(runtime, attempt)


def row(attempt: Attempt) -> Any:
    """Return an attempt's task run as it is now."""
    return models.TaskRun.get_by_id(attempt.claim.id)


def states(attempt: Attempt) -> dict[str, str]:
    """Return key -> state of the task runs of an attempt's run."""
    return situation.states(attempt.claim.run_id)


def succeeded(attempt: Attempt, result: str) -> Outcome:
    """Return an outcome whose result nobody has looked at."""
    claim = attempt.claim
    return Outcome(claim.id, claim.run_id, claim.token, TaskState.SUCCEEDED, result=result)


def put(runtime: Runtime, attempt: Attempt, ending: Outcome | Release) -> None:
    """End an attempt as if its function had been called."""
    runtime.holding.begin(attempt)
    runtime.holding.end(attempt)
    runtime.committer.put(attempt, ending)


# The committer


def test_outcomes_of_several_attempts_are_one_statement(runtime: Runtime, attempts: dict[str, Attempt]) -> None:
    carry_out(runtime, attempts["one"], attempts["two"], attempts["three"])

    runtime.committer.turn()

    done = "state = 'succeeded' and result = '1'"
    query = f"select count(*), count(distinct xmin::text) from flowforge.task_run where {done}"
    cursor: Any = runtime.database.cursor()
    cursor.execute(query)
    assert cursor.fetchone() == (3, 1)
    assert [attempt.task.key for attempt in runtime.holding.all()] == ["broken"]


def test_a_turn_without_outcomes_ends(runtime: Runtime) -> None:
    runtime.committer.turn()

    assert not len(runtime.holding)


def test_retries_hand_backs_and_ends_go_in_one_batch(runtime: Runtime, attempts: dict[str, Attempt]) -> None:
    carry_out(runtime, attempts["one"], attempts["broken"])
    runtime.committer.hand_back([attempts["two"]])

    runtime.committer.turn()

    assert states(attempts["one"]) == {
        "one": "succeeded", "two": "ready", "three": "running", "broken": "ready", "after_one": "ready",
    }  # fmt: skip
    assert (row(attempts["broken"]).attempt, row(attempts["two"]).attempt) == (2, 1)
    assert row(attempts["broken"]).error["type"] == "ValueError"
    assert runtime.runway.wait(1) == [b"now"]


def test_the_last_failure_fails(runtime: Runtime, attempts: dict[str, Attempt]) -> None:
    carry_out(runtime, attempts["broken"])
    runtime.committer.turn()
    (again,) = claim(runtime)

    carry_out(runtime, again)
    runtime.committer.turn()

    assert factories.event_kinds(row(again)) == ["created", "claimed", "retried", "claimed", "failed"]


def test_nobody_is_woken_when_nothing_became_ready(runtime: Runtime, attempts: dict[str, Attempt]) -> None:
    carry_out(runtime, attempts["two"], attempts["three"])

    runtime.committer.turn()

    assert runtime.runway.wait(0.01) == []


@pytest.mark.parametrize("ending", ["retry", "hand back"])
def test_what_was_asked_to_cancel_is_not_tried_again(
    runtime: Runtime, attempts: dict[str, Attempt], ending: str
) -> None:
    situation.ask_to_cancel(row(attempts["broken"]))
    if ending == "retry":
        carry_out(runtime, attempts["broken"])
    else:
        runtime.committer.hand_back([attempts["broken"]])

    runtime.committer.turn()

    assert states(attempts["broken"])["broken"] == "cancelled"
    assert situation.owed(row(attempts["broken"])) == []


def test_a_retry_beyond_the_last_fails(runtime: Runtime, attempts: dict[str, Attempt]) -> None:
    """Its process thought that one was left."""
    claim = attempts["two"].claim
    put(runtime, attempts["two"], Release(claim.id, claim.token, 0, '{"type": "ValueError", "message": "no"}'))
    exhausted = {models.TaskRun.failures_left: 0}
    models.TaskRun.update(exhausted).where(models.TaskRun.id == claim.id).execute()

    runtime.committer.turn()

    assert (row(attempts["two"]).state, row(attempts["two"]).error["type"]) == ("failed", "ValueError")


UNSTORABLE = {
    "NUL": ('"\\u0000"', "UntranslatableCharacter"),
    "no JSON": ("{", "InvalidTextRepresentation"),
    "a number without end": ("1e999999", "NumericValueOutOfRange"),
    "too deep": ("[" * 100_000 + "]" * 100_000, "StatementTooComplex"),
}


@pytest.mark.parametrize(("result", "error"), UNSTORABLE.values(), ids=UNSTORABLE)
@pytest.mark.parametrize("others", [["one", "two"], []], ids=["among others", "alone"])
def test_an_outcome_that_postgresql_cannot_hold_fails_its_task_run_only(
    runtime: Runtime, attempts: dict[str, Attempt], others: list[str], result: str, error: str
) -> None:
    """B101: and the connection goes on."""
    put(runtime, attempts["three"], succeeded(attempts["three"], result))
    carry_out(runtime, *[attempts[key] for key in others])

    runtime.committer.turn()

    assert (row(attempts["three"]).state, row(attempts["three"]).error["type"]) == ("failed", error)
    assert {states(attempts["one"])[key] for key in others} <= {"succeeded"}
    assert len(runtime.holding) == len(attempts) - 1 - len(others)


@pytest.mark.parametrize("others", [["three"], []], ids=["among others", "alone"])
def test_a_locked_task_run_delays_its_own_outcome_only(
    runtime: Runtime, attempts: dict[str, Attempt], others: list[str], database_url: str
) -> None:
    """A user's transaction guards it, and stays open."""
    claim = attempts["two"].claim
    guard = Racer(database_url, lambda connection: transitions.guard(connection, claim.id, claim.token))
    guard.start()
    guard.reach_commit()
    carry_out(runtime, *[attempts[key] for key in ("two", *others)])

    runtime.committer.turn()
    meanwhile = states(attempts["two"])
    guarded = guard.commit()
    wait_for(lambda: runtime.committer.turn() or states(attempts["two"])["two"] == "succeeded")

    assert guarded
    assert meanwhile["two"] == "running"
    assert {meanwhile[key] for key in others} <= {"succeeded"}
    assert factories.event_kinds(row(attempts["two"])) == ["created", "claimed", "succeeded"]
    assert len(runtime.holding) == len(attempts) - 1 - len(others)


def test_a_dead_connection_is_replaced_and_the_outcome_committed(
    runtime: Runtime,
    attempts: dict[str, Attempt],
    postgres: PostgresServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B098: one failed operation, then recovery. It dies after it was looked at."""
    monkeypatch.setattr(Session, "is_lost", lambda session: bool(session.closed))
    carry_out(runtime, attempts["one"], attempts["broken"])
    administer(postgres, f"select pg_terminate_backend({runtime.database.raw().info.backend_pid}, 5000)")

    runtime.committer.turn()
    runtime.committer.turn()

    assert caplog.text.count("committer.database_away outcomes=2") == 1
    assert factories.event_kinds(row(attempts["one"])) == ["created", "claimed", "succeeded"]
    assert factories.event_kinds(row(attempts["broken"])) == ["created", "claimed", "retried"]
    assert len(runtime.holding) == len(attempts) - 2


def test_outcomes_wait_while_the_database_takes_none(
    runtime: Runtime, attempts: dict[str, Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B057: after a failover the session reads only; that is not the outcome's fault, and must not be its end."""
    execute_sql: Any = runtime.database.execute_sql
    monkeypatch.setattr("flowforge.actors.committer.time.sleep", lambda _: execute_sql(READ_ONLY + "off"))
    carry_out(runtime, attempts["one"])
    execute_sql(READ_ONLY + "on")

    runtime.committer.turn()
    runtime.committer.turn()

    assert factories.event_kinds(row(attempts["one"])) == ["created", "claimed", "succeeded"]
    assert len(runtime.holding) == len(attempts) - 1


def test_an_outcome_of_a_task_run_that_was_lost_is_refused_and_let_go(
    runtime: Runtime, attempts: dict[str, Attempt], caplog: pytest.LogCaptureFixture
) -> None:
    lose(runtime, attempts["two"])
    carry_out(runtime, attempts["two"])

    runtime.committer.turn()

    assert "task_run.refused" in caplog.text
    assert not runtime.holding.holds(attempts["two"].claim.id, attempts["two"].claim.token)


def test_what_is_left_at_the_end_is_handed_back(runtime: Runtime, attempts: dict[str, Attempt]) -> None:
    """B062: at no cost; one that has not started, and one that runs."""
    runtime.start()
    runtime.holding.begin(attempts["one"])

    runtime.close()

    assert (len(runtime.holding), attempts["one"].stopping) == (0, True)
    assert set(states(attempts["one"]).values()) == {"ready", "pending"}
    assert {row(attempt).attempt for attempt in attempts.values()} == {1}


# The keeper


def lose(runtime: Runtime, attempt: Attempt) -> None:
    """Let a lease be over, and have it taken away."""
    over = {models.TaskRun.lease_expires_at: models.TaskRun.started_at}
    models.TaskRun.update(over).where(models.TaskRun.id == attempt.claim.id).execute()
    assert len(runtime.database.perform(transitions.expire, limit=10).taken) == 1


@pytest.fixture
def running(runtime: Runtime, attempts: dict[str, Attempt]) -> dict[str, Attempt]:
    """The same attempts, begun."""
    assert all(map(runtime.holding.begin, attempts.values()))
    return attempts


@pytest.fixture
def told() -> Iterator[threading.Event]:
    """Whether this process was asked to end."""
    told = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    yield told
    signal.signal(signal.SIGTERM, before)


def test_leases_are_renewed_with_the_first_that_is_due(runtime: Runtime, running: dict[str, Attempt]) -> None:
    claimed = [row(attempt).lease_expires_at for attempt in running.values()]
    running["two"].renew_at -= runtime.settings.lease / 3

    runtime.keeper.turn()
    renewed = [row(attempt).lease_expires_at for attempt in running.values()]
    runtime.keeper.turn()

    assert all(before < after for before, after in zip(claimed, renewed, strict=True))
    assert [row(attempt).lease_expires_at for attempt in running.values()] == renewed


def test_each_task_is_owned_by_a_lease_of_its_own_and_not_past_its_time(runtime: Runtime) -> None:
    """B063: what its process would renew for ever ends on the side of the database too."""
    flow = Workflow[[]]("leases")
    for key, options in {"usual": {}, "long": {"lease": "1m"}, "late": {"lease": "1m", "timeout": "2s"}}.items():
        flow.task(one, key=key, **options)  # type: ignore[arg-type]
    runtime.registry = Registry([flow])
    flow.start()
    mine = {attempt.task.key: attempt for attempt in claim(runtime)}
    assert all(map(runtime.holding.begin, mine.values()))
    claimed = {key: left(attempt) for key, attempt in mine.items()}
    mine["usual"].renew_at = 0

    runtime.keeper.turn()

    assert claimed == pytest.approx({"usual": runtime.settings.lease, "long": 60, "late": 60}, abs=0.1)
    assert left(mine["late"]) == pytest.approx(2 + 10, abs=0.1)
    assert left(mine["long"]) > claimed["long"]
    assert [mine[key].lease for key in ("usual", "long", "late")] == [runtime.settings.lease, 60, 60]


def left(attempt: Attempt) -> float:
    """Return the seconds from an attempt's start to the end of its lease."""
    now = row(attempt)
    return float((now.lease_expires_at - now.started_at).total_seconds())


@pytest.mark.parametrize("how", ["lost", "cancel"])
def test_an_attempt_that_is_no_longer_wanted_is_told_to_stop(
    runtime: Runtime, running: dict[str, Attempt], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "lost":
        lose(runtime, running["two"])
    else:
        situation.ask_to_cancel(row(running["two"]))

    runtime.keeper.turn()

    assert {key for key, attempt in running.items() if attempt.stopping} == {"two"}
    assert f"task_run.lease_{how}" in caplog.text


def test_an_attempt_whose_lease_nobody_renews_stops_before_it_ends(
    runtime: Runtime, running: dict[str, Attempt]
) -> None:
    """B103: its keeper is held up by a network that says nothing; what was lost before is not taken for renewed."""
    lose(runtime, running["two"])
    for attempt in running.values():
        attempt.renewed_at -= 0.9 * runtime.settings.lease
        attempt.renew_at -= 0.9 * runtime.settings.lease
    cancelled = {key: runtime.hooks(attempt).cancelled for key, attempt in running.items()}
    context: Any = None
    before = {key for key, asked in cancelled.items() if asked(context)}

    runtime.keeper.turn()
    running["two"].stopping = False

    assert before == set(running)
    assert {key for key, asked in cancelled.items() if asked(context)} == {"two"}


def test_a_renewal_is_limited_to_a_third_of_the_shortest_lease(
    runtime: Runtime, running: dict[str, Attempt], database_url: str
) -> None:
    """B103: so that a connection that does not answer is replaced in time."""
    running["two"].lease = 0.3
    running["two"].renew_at = began = time.monotonic()
    with closing(psycopg2.connect(database_url)) as other, other.cursor() as cursor:
        cursor.execute("lock table flowforge.task_run in access exclusive mode")

        with pytest.raises(psycopg2.errors.QueryCanceled):
            runtime.keeper.turn()

    assert time.monotonic() - began < 1.5


def test_what_waits_too_long_for_a_thread_is_handed_back(runtime: Runtime, attempts: dict[str, Attempt]) -> None:
    """No attempt is charged, and whoever comes to start it is refused."""
    late = attempts["two"]
    late.claimed_at -= 0.06
    for attempt in attempts.values():
        attempt.claimed_at += 0 if attempt is late else 60

    runtime.keeper.turn()
    carry_out(runtime, late)
    runtime.committer.turn()

    assert [key for key, state in states(late).items() if state == "ready"] == ["two"]
    assert (row(late).attempt, factories.event_kinds(row(late))) == (1, ["created", "claimed", "handed_back"])
    assert runtime.holding.room(0) > 0


def test_an_attempt_out_of_time_is_interrupted_once(runtime: Runtime, running: dict[str, Attempt]) -> None:
    interrupts: list[str] = []
    running["two"].interrupt = lambda reason: interrupts.append(f"two: {reason.__name__}")
    running["three"].interrupt = lambda reason: interrupts.append(f"three: {reason.__name__}")
    running["two"].started_at -= running["two"].known.stored.timeout

    runtime.keeper.turn()
    runtime.keeper.turn()

    assert interrupts == ["two: AttemptTimeout"]
    assert {key for key, attempt in running.items() if attempt.stopping} == {"two"}


def over_its_time(stuck: Attempt) -> None:
    """Let an attempt's time be over."""
    stuck.started_at -= stuck.known.stored.timeout


def cancelled_long_ago(stuck: Attempt) -> None:
    """Let an attempt be told to stop, as the keeper does, half a grace ago."""
    situation.ask_to_cancel(row(stuck))
    stuck.stopping, stuck.told_at = True, time.monotonic() - 5


@pytest.mark.parametrize(
    ("ends", "state", "error"),
    [(over_its_time, "failed", "AttemptTimeout"), (cancelled_long_ago, "cancelled", "AttemptCancelled")],
)
def test_a_thread_that_does_not_return_is_given_up_and_the_process_retired(
    runtime: Runtime, running: dict[str, Attempt], told: threading.Event, ends: Any, state: str, error: str
) -> None:
    """B052."""
    stuck = running["two"]
    ends(stuck)
    runtime.keeper.turn()
    first = stuck.phase
    stuck.interrupted_at -= 5

    runtime.keeper.turn()
    runtime.committer.turn()

    assert (first, stuck.phase, told.is_set(), runtime.lost_threads) == (Phase.RUNNING, Phase.OVER, True, 1)
    assert (row(stuck).state, row(stuck).error["type"]) == (state, error)
    assert not runtime.holding.end(stuck)


def test_the_owner_is_named_for_people_and_never_twice(runtime: Runtime) -> None:
    other = Runtime(runtime.settings, runtime.database, runtime.runway, runtime.registry, (), threads=1)

    assert runtime.owner.split(":")[1] == str(os.getpid())
    assert runtime.owner != other.owner
