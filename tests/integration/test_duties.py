"""The duties, called by hand; the publishing loop, turn by turn; and a scheduler process that is told to stop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg2
import pytest
from peewee import SQL

from flowforge import models, outbox, transitions
from flowforge.broker import Runway, connect_redis
from flowforge.db import begun, fetch
from flowforge.errors import SchemaMismatch, SettingsError
from flowforge.monitor import Turn, Turns
from flowforge.outbox import Publisher
from flowforge.scheduler import build, duties, publishing
from flowforge.scheduler.duties import (
    JOBS,
    Job,
    Post,
    cancel_overdue_runs,
    cut_off_cancelled,
    expire_leases,
    fail_unstarted,
    forget_idempotency_keys,
    recover_dispatches,
    release_held,
    take_turn,
)
from flowforge.scheduler.publishing import PublishingLoop
from flowforge.settings import Settings
from flowforge.states import Paused
from flowforge.transitions import leases
from tests import factories
from tests.conftest import administer, database_on
from tests.e2e.conftest import Fleet
from tests.factories import Node
from tests.integration.verbs import situation
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis as redis_client

    from flowforge.db import Database
    from flowforge.embedded.servers import PostgresServer


@pytest.fixture
def post(database: Database, redis: redis_client.Redis, settings: Settings) -> Post:
    """What a duty may use."""
    return Post(database, Runway(redis, settings.namespace), settings.cancel_grace)


@pytest.fixture
def turns(redis: redis_client.Redis, settings: Settings) -> Turns:
    """What those who watch are told."""
    return Turns(redis, settings.namespace)


# expire_leases


def late(database: Database, number: int) -> list[models.TaskRun]:
    """Return task runs whose lease is over."""
    rows = [factories.start_single(database) for _ in range(number)]
    factories.claim(database, *rows)
    models.TaskRun.update({models.TaskRun.lease_expires_at: models.TaskRun.started_at}).execute()
    return rows


def test_leases_that_are_over_are_taken_once(database: Database, post: Post, caplog: pytest.LogCaptureFixture) -> None:
    rows = late(database, 3)
    factories.claim(database, factories.start_single(database))

    assert [expire_leases(post), expire_leases(post)] == [3, 0]

    assert {factories.reload(row).state for row in rows} == {"ready"}
    assert caplog.text.count("task_run.expired") == 3
    assert post.runway.wait(1) == [b"now"]


def test_one_turn_takes_no_more_than_a_batch(database: Database, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "_BATCH", 2)
    late(database, 3)

    assert [expire_leases(post), expire_leases(post), expire_leases(post)] == [2, 1, 0]


# recover_dispatches


def test_dispatches_that_redis_lost_are_due_again_once(
    database: Database, post: Post, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B031."""
    monkeypatch.setattr(outbox, "LOST_AFTER", 0.0)
    for _ in range(3):
        factories.start_single(database)
    Publisher(database, post.runway, limit=10).publish()
    post.runway.pop(["default"], limit=2, seconds=1)

    assert [recover_dispatches(post), recover_dispatches(post)] == [2, 0]

    assert "outbox.recovered dispatches=2" in caplog.text


# forget_idempotency_keys


def reserve(database: Database, key: str, ttl: float) -> None:
    """Let a key stand for a run for so many seconds."""
    workflow = models.Workflow.get_or_none() or factories.make_workflow({"only": Node()})
    new = transitions.NewRun(uuid4(), workflow.id, "{}", key=key)
    assert database.perform(transitions.start_run, [new], key_ttl=ttl)


def test_keys_that_no_longer_stand_are_forgotten(database: Database, post: Post) -> None:
    for key, ttl in {"old": 60, "older": 60, "valid": 60}.items():
        reserve(database, key, ttl)
    over: Any = {models.IdempotencyKey.expires_at: SQL("flowforge.clock() - interval '1 ms'")}
    models.IdempotencyKey.update(over).where(models.IdempotencyKey.key.startswith("old")).execute()

    assert [forget_idempotency_keys(post), forget_idempotency_keys(post)] == [2, 0]

    assert [row.key for row in models.IdempotencyKey.select()] == ["valid"]


# With others at the same time

CLAIM: dict[str, Any] = {"owner": "worker-1", "lease": 15}


@contextmanager
def guarding(url: str, *rows: models.TaskRun) -> Iterator[None]:
    """Guard running task runs in a transaction of the user's own, for the block, which waits for them only a little."""

    def guard(connection: Any) -> list[bool]:
        return [transitions.guard(connection, row.id, row.fencing_token) for row in rows]

    began = time.monotonic()
    with situation.held_open(url, guard) as open_:
        assert open_.answer == [True] * len(rows)
        yield
        assert time.monotonic() - began < 7


def states_of(*rows: models.TaskRun) -> list[str]:
    """Return the states of task runs as they are now."""
    return [factories.reload(row).state for row in rows]


# release_held


def hold(database: Database, number: int) -> list[models.TaskRun]:
    """Return ready task runs whose dispatches a pause of their queue has held, and which nothing pauses any more."""
    rows = [factories.start_single(database) for _ in range(number)]
    situation.pause(database, rows[0], Paused.QUEUE)
    assert situation.take(database) == []
    situation.resume(database, rows[0], Paused.QUEUE)
    return rows


def test_what_a_resume_did_not_see_is_due_again_once(database: Database, post: Post) -> None:
    rows = hold(database, 3)

    assert [release_held(post), release_held(post)] == [3, 0]

    assert {one.task_run_id for one in situation.take(database)} == {row.id for row in rows}
    assert post.runway.wait(1) == [b"now"]


def test_what_is_still_paused_stays_held(database: Database, post: Post) -> None:
    (row,) = hold(database, 1)
    situation.pause(database, row, Paused.RUN)

    assert release_held(post) == 0

    assert [message.held for message in situation.owed(row)] == [True]
    assert post.runway.wait(0.01) == []


def test_a_dispatch_that_is_being_claimed_holds_no_other_back(
    database: Database, post: Post, database_url: str
) -> None:
    claimed, other = hold(database, 2)

    with situation.held_open(database_url, lambda c: transitions.claim(c, [factories.dispatch(claimed)], **CLAIM)):
        assert release_held(post) == 1

    assert [one.task_run_id for one in situation.take(database)] == [other.id]


# cut_off_cancelled


def asked(database: Database, number: int, *, ago: float) -> list[models.TaskRun]:
    """Return running task runs, each of a run of its own, that were asked to stop so many seconds ago."""
    rows = [factories.start_single(database) for _ in range(number)]
    factories.claim(database, *rows)
    for row in rows:
        situation.cancel(database, row.workflow_run_id)
    when: Any = {models.TaskRun.cancel_requested_at: SQL(f"flowforge.clock() - interval '{ago} s'")}
    models.TaskRun.update(when).where(models.TaskRun.id.in_(rows)).execute()
    return [factories.reload(row) for row in rows]


def test_code_that_goes_on_beyond_its_grace_is_cut_off_once(
    database: Database, post: Post, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    rows = asked(database, 2, ago=settings.cancel_grace + 4)
    young = asked(database, 1, ago=settings.cancel_grace + 2)  # its worker heard of it later, and has its grace too

    assert [cut_off_cancelled(post), cut_off_cancelled(post)] == [2, 0]

    assert [(now.state, now.fencing_token) for now in map(factories.reload, rows)] == [("cancelled", 2)] * 2
    assert [factories.reload(row).state for row in young] == ["running"]
    assert [caplog.text.count(f"task_run.cut_off task_run={row.id} owner=worker-1") for row in rows] == [1, 1]
    assert post.runway.wait(1) == [b"now"]
    assert situation.broken(database) == []


def test_what_its_code_reports_after_that_is_refused(database: Database, post: Post) -> None:
    """B051."""
    (row,) = asked(database, 1, ago=60)
    cut_off_cancelled(post)

    (refused,) = database.perform(transitions.finish, [situation.outcome(row)])

    assert (refused.became, situation.last_event(row).kind) == ("refused", "refused")


def test_guards_delay_the_cut_of_their_own_task_runs_only(
    database: Database, post: Post, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A turn that waited for each of them would count as stuck, and end the scheduler."""
    rows = asked(database, 7, ago=60)
    guarded, others = rows[:5], rows[5:]

    with guarding(database_url, *guarded):
        assert cut_off_cancelled(post) == 2
        assert states_of(*guarded, *others) == ["running"] * 5 + ["cancelled"] * 2
        assert not any(str(row.id) in caplog.text for row in guarded)

    assert cut_off_cancelled(post) == 5
    assert states_of(*guarded) == ["cancelled"] * 5


# fail_unstarted


def unstarted(database: Database, number: int) -> list[models.TaskRun]:
    """Return ready task runs, each of a run of its own, that no worker took in time."""
    rows = [factories.start_single(database, start_by=timedelta(minutes=5)) for _ in range(number)]
    over: Any = {models.OutboxMessage.start_by: SQL("created_at + interval '1 ms'")}
    models.OutboxMessage.update(over).where(models.OutboxMessage.task_run.in_(rows)).execute()
    return rows


def test_what_no_worker_takes_in_time_fails_once(database: Database, post: Post) -> None:
    rows = unstarted(database, 2)
    waiting = [factories.start_single(database, start_by=timedelta(minutes=5)), factories.start_single(database)]

    assert [fail_unstarted(post), fail_unstarted(post)] == [2, 0]

    assert states_of(*rows, *waiting) == ["failed", "failed", "ready", "ready"]
    assert [factories.reload(row).error["type"] for row in rows] == ["not_started"] * 2
    assert factories.reload(rows[0]).error["message"].startswith("no worker had started it by 20")
    assert [situation.run(row.workflow_run_id).state for row in rows] == ["failed"] * 2
    assert [situation.owed(row) for row in rows] == [[], []]
    assert post.runway.wait(1) == [b"now"]
    assert situation.broken(database) == []


def test_what_was_paused_all_the_time_says_so(database: Database, post: Post) -> None:
    (row,) = unstarted(database, 1)
    situation.pause(database, row, Paused.QUEUE)
    situation.take(database)

    assert fail_unstarted(post) == 1

    assert factories.reload(row).error["message"].endswith(", because it was paused")


def test_a_task_run_that_is_being_claimed_is_its_workers_and_delays_no_other(
    database: Database, post: Post, database_url: str
) -> None:
    claimed, *others = unstarted(database, 3)

    with situation.held_open(database_url, lambda c: transitions.claim(c, [factories.dispatch(claimed)], **CLAIM)):
        assert fail_unstarted(post) == 2

    assert fail_unstarted(post) == 0
    assert states_of(claimed, *others) == ["running", "failed", "failed"]


def test_a_guard_of_a_neighbour_delays_nothing(database: Database, post: Post, database_url: str) -> None:
    """What waits for a worker can be guarded by nobody; but the same run may have code that runs, and guards."""
    tasks = {"extract": Node(), "load": Node(options={"start_by": timedelta(minutes=5)})}
    run_id = factories.start(database, factories.make_workflow(tasks))
    extract, load = (factories.task_run(run_id, key) for key in tasks)
    factories.claim(database, extract)
    over: Any = {models.OutboxMessage.start_by: SQL("created_at + interval '1 ms'")}
    models.OutboxMessage.update(over).execute()

    with guarding(database_url, factories.reload(extract)):
        assert fail_unstarted(post) == 1

    assert states_of(extract, load) == ["running", "failed"]


# cancel_overdue_runs


def overdue(database: Database, number: int) -> list[models.TaskRun]:
    """Return running task runs, each of a run of its own that is not over by its deadline."""
    workflow = factories.make_workflow({"only": Node()}, name=f"overdue-{uuid4()}")
    runs = [factories.start(database, workflow, deadline=60) for _ in range(number)]
    rows = [factories.task_run(run_id, "only") for run_id in runs]
    factories.claim(database, *rows)
    past: Any = {models.WorkflowRun.deadline: SQL("created_at + interval '1 ms'")}
    models.WorkflowRun.update(past).where(models.WorkflowRun.id.in_(runs)).execute()
    return [factories.reload(row) for row in rows]


def is_asked(*rows: models.TaskRun) -> list[bool]:
    """Return of each task run whether it is asked to stop."""
    return [factories.reload(row).cancel_requested_at is not None for row in rows]


def test_runs_that_are_not_over_by_their_deadline_are_cancelled_once(
    database: Database, post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    rows = overdue(database, 2)
    run_id = factories.start(database, factories.make_workflow({"only": Node()}), deadline=60)

    assert [cancel_overdue_runs(post), cancel_overdue_runs(post)] == [2, 0]

    deadline = situation.run(rows[0].workflow_run_id).deadline
    assert situation.run_detail(rows[0].workflow_run_id, "cancel_requested") == {
        "by": "flowforge",
        "reason": f"the deadline {deadline.isoformat()} has passed",
    }
    assert is_asked(*rows) == [True, True]
    assert situation.run(run_id).cancel_requested_at is None
    assert caplog.text.count("workflow_run.deadline_passed") == 2
    assert post.runway.wait(1) == [b"now"]


def test_a_run_that_has_ended_or_was_cancelled_has_no_deadline(database: Database, post: Post) -> None:
    ended, cancelled = overdue(database, 2)
    database.perform(transitions.finish, [situation.outcome(ended)])
    situation.cancel(database, cancelled.workflow_run_id)
    before = situation.picture()

    assert cancel_overdue_runs(post) == 0

    assert situation.changed_since(before) == set()


def test_guards_delay_the_cancel_of_their_own_runs_only(database: Database, post: Post, database_url: str) -> None:
    rows = overdue(database, 7)
    guarded, others = rows[:5], rows[5:]

    with guarding(database_url, *guarded):
        assert cancel_overdue_runs(post) == 2
        assert is_asked(*guarded, *others) == [False] * 5 + [True] * 2

    assert cancel_overdue_runs(post) == 5
    assert is_asked(*guarded) == [True] * 5


# Two at once

WORK: dict[str, tuple[Callable[[Post], int], Callable[[Database], list[models.TaskRun]]]] = {
    "release_held": (release_held, lambda database: hold(database, 20)),
    "cut_off_cancelled": (cut_off_cancelled, lambda database: asked(database, 20, ago=60)),
    "fail_unstarted": (fail_unstarted, lambda database: unstarted(database, 20)),
    "cancel_overdue_runs": (cancel_overdue_runs, lambda database: overdue(database, 20)),
}
EVENTS = {"cut_off_cancelled": "cancelled", "fail_unstarted": "failed", "cancel_overdue_runs": "cancel_requested"}


@pytest.mark.parametrize("name", WORK)
def test_two_schedulers_at_once_do_each_piece_of_work_once(database: Database, post: Post, name: str) -> None:
    duty, make = WORK[name]
    rows, together = make(database), threading.Barrier(2)

    def turn() -> int:
        together.wait(10)
        try:
            return duty(post)
        finally:
            database.close()

    with ThreadPoolExecutor(2) as pool:
        turns = [pool.submit(turn) for _ in range(2)]
        done = [one.result(30) for one in turns]

    assert sum(done) == len(rows) or (duty is cancel_overdue_runs and sum(done) <= 2 * len(rows))  # to ask is no loss
    assert duty(post) == 0
    counts = [factories.event_kinds(row).count(EVENTS[name]) for row in rows] if name in EVENTS else []
    assert set(counts) <= {1}
    assert situation.broken(database) == []


# All of them


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_duty_without_work_changes_nothing(database: Database, post: Post, job: duties.Job) -> None:
    factories.claim(database, factories.start_single(database))
    before = situation.picture()

    assert job.duty(post) == 0

    assert situation.changed_since(before) == set()
    assert post.runway.wait(0.01) == []


# take_turn


def ages(turns: Turns, *jobs: Job) -> list[float | None]:
    """Return the ages of the last good turns."""
    return [turn.age for turn in turns.last([job.name for job in jobs])]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_turn_is_told_to_those_who_watch(post: Post, turns: Turns, job: Job) -> None:
    assert ages(turns, job) == [None]

    take_turn(job, post, turns)

    (age,) = ages(turns, job)
    assert age is not None
    assert 0 <= age < 5


def test_a_statement_that_takes_too_long_ends_the_turn_and_not_the_scheduler(
    database: Database, post: Post, turns: Turns, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B064: a rescuer that waits for a lock does not wait for ever, and rescues later."""
    (row,) = late(database, 1)
    job = Job(expire_leases, every=0.25, limit=0.2)

    with closing(psycopg2.connect(database_url)) as other, other.cursor() as cursor:
        cursor.execute("lock table flowforge.task_run in access exclusive mode")
        take_turn(job, post, turns)

        assert "duty.too_slow duty=expire_leases limit=0.2" in caplog.text
        assert ages(turns, job) == [None]

    take_turn(job, post, turns)
    assert factories.reload(row).state == "ready"
    assert ages(turns, job) != [None]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_every_statement_of_a_duty_is_limited(post: Post, turns: Turns, database_url: str, job: Job) -> None:
    with closing(psycopg2.connect(database_url)) as other, other.cursor() as cursor:
        for table in ("workflow_run", "task_run", "outbox_message", "idempotency_key"):
            cursor.execute(f"lock table flowforge.{table} in access exclusive mode")
        take_turn(job._replace(limit=0.1), post, turns)

    assert ages(turns, job) == [None]


def test_a_limit_ends_with_its_turn(database: Database, post: Post, turns: Turns) -> None:
    take_turn(JOBS[0], post, turns)

    (row,) = fetch(database.raw(), "select current_setting('statement_timeout') as now", {})
    assert row.now == "0"


def test_the_last_word_of_a_lease_is_limited_too(
    database: Database, post: Post, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, real_finish = list[str](), leases.finish

    def finish(connection: Any, *args: Any, **options: Any) -> Any:
        with begun(connection):
            limits.append(fetch(connection, "select current_setting('statement_timeout') as now", {})[0].now)
            return real_finish(connection, *args, **options)

    monkeypatch.setattr(leases, "finish", finish)
    late(database, 1)

    take_turn(JOBS[0]._replace(limit=7), post, turns)

    assert limits == ["7s"]


def test_a_turn_without_redis_is_told_to_nobody_and_tried_again(
    post: Post, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = connect_redis(replace(settings, redis_url="redis://127.0.0.1:1/0"))

    take_turn(JOBS[0], post, Turns(nowhere, settings.namespace))

    assert "duty.server_away duty=expire_leases" in caplog.text


# Turns


def test_a_duty_is_late_when_two_turns_were_missed() -> None:
    late = {age: Turn("recover", every=2.0, age=age).late for age in (None, 0.0, 5.0, 5.1)}

    assert late == {None: False, 0.0: False, 5.0: False, 5.1: True}


def test_turns_that_follow_at_once_are_told_now_and_then(redis: redis_client.Redis, turns: Turns) -> None:
    turns.tell("publish", 0.25)
    redis.delete(turns._key)

    turns.tell("publish", 0.25)

    assert turns.last(["publish"]) == [Turn("publish", 0.0, None)]


# build


@pytest.fixture
def unmigrated(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database."""
    administer(postgres, "create database unmigrated template template0")
    yield database_on(postgres, "unmigrated")
    administer(postgres, "drop database unmigrated with (force)")


def test_every_duty_of_the_table_is_built_with_its_interval(settings: Settings) -> None:
    scheduler = build(settings)

    jobs = {job.id: job for job in scheduler.duties.get_jobs()}
    assert {name: job.trigger.interval for name, job in jobs.items()} == {
        job.name: timedelta(seconds=job.every) for job in JOBS
    }
    assert [jobs[job.name].func.__self__.job for job in JOBS] == list(JOBS)
    assert scheduler.duties._job_defaults == {"misfire_grace_time": None, "coalesce": True, "max_instances": 1}


def test_an_unmigrated_database_is_refused_with_the_remedy(unmigrated: str, settings: Settings) -> None:
    with pytest.raises(SchemaMismatch, match="flowforge migrate"):
        build(Settings(database_url=unmigrated, redis_url=settings.redis_url))


def test_a_scheduler_needs_both_servers(settings: Settings) -> None:
    with pytest.raises(SettingsError, match="REDIS_URL"):
        build(Settings(database_url=settings.database_url))


# PublishingLoop


@pytest.fixture
def publisher(post: Post, turns: Turns, monkeypatch: pytest.MonkeyPatch) -> PublishingLoop:
    """A publishing loop that would wait for long."""
    monkeypatch.setattr(publishing, "_IDLE", 30)
    return PublishingLoop(post.database, post.runway, turns, limit=2)


@pytest.fixture
def _at_once() -> Iterator[None]:
    """The whole test waits for nothing."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 10


@pytest.mark.usefixtures("_at_once")
def test_a_turn_publishes_and_ends_at_a_wake(
    database: Database, post: Post, turns: Turns, publisher: PublishingLoop
) -> None:
    factories.start_single(database)
    post.runway.wake()

    publisher.turn()

    assert (post.runway.length("default"), post.runway.wait(0.01)) == (1, [])
    assert turns.last(["publish"])[0].age is not None


@pytest.mark.usefixtures("_at_once")
def test_a_turn_looks_again_soon_while_a_callers_transaction_is_open(
    database: Database, post: Post, publisher: PublishingLoop
) -> None:
    post.runway.wake(b"soon")
    publisher.turn()
    factories.start_single(database)

    publisher.turn()

    assert post.runway.length("default") == 1


@pytest.mark.usefixtures("_at_once")
def test_a_turn_looks_again_soon_while_there_is_a_backlog(
    database: Database, post: Post, publisher: PublishingLoop
) -> None:
    for _ in range(3):
        factories.start_single(database)

    publisher.turn()
    post.runway.pop(["default"], limit=2, seconds=1)
    post.runway.wake()
    publisher.turn()

    assert post.runway.length("default") == 1


def test_eagerness_ends(post: Post, publisher: PublishingLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, real_wait = list[float](), post.runway.wait

    def wait(seconds: float) -> list[bytes]:
        waits.append(seconds)
        return real_wait(0.01)

    monkeypatch.setattr(post.runway, "wait", wait)
    monkeypatch.setattr(publishing, "_EAGER_FOR", 0)
    post.runway.wake(b"soon")

    publisher.turn()
    publisher.turn()

    assert waits == [30, 30]


# The process


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """Processes of this test."""
    fleet = Fleet(settings, tmp_path)
    yield fleet
    fleet.stop()


def test_a_scheduler_process_publishes_and_stops_within_seconds(database: Database, post: Post, fleet: Fleet) -> None:
    process = fleet.scheduler()
    wait_for(lambda: f"scheduler.ready duties={len(JOBS)}" in fleet.log(process))
    factories.start_single(database)
    wait_for(lambda: post.runway.length("default") == 1)

    process.terminate()

    assert process.wait(timeout=5) == 0
    assert "ERROR" not in fleet.log(process)


def test_a_scheduler_process_that_cannot_start_says_why(fleet: Fleet) -> None:
    process = fleet.start("flowforge.scheduler", REDIS_URL="redis://127.0.0.1:1/0")

    assert process.wait(timeout=15) == 2
    assert "scheduler.cannot_start error=" in fleet.log(process)
