"""Run.cancel, cancel_task and rerun: what they answer, what they raise in which words, and what is kept of them."""

from __future__ import annotations

import asyncio
import getpass
import socket
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from flowforge import models, transitions
from flowforge.client import Run
from flowforge.errors import CannotCancel, CannotRerun, RowLocked
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RunState, TaskState
from flowforge.tenancy import audit
from flowforge.transitions import stopping
from tests import factories
from tests.factories import Node
from tests.integration.sales import DAY, end, extract
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from flowforge import Workflow
    from flowforge.client import Engine
    from flowforge.db import Database

CHAIN = {"extract": Node(), "load": Node(["extract"]), "clean_up": Node(["load"], {"when": "all_done"})}


@pytest.fixture
def database(engine: Engine) -> Database:
    """The engine's own database: decisions go through the client."""
    return engine.database


@pytest.fixture
def run(database: Database) -> Run:
    """A run of a chain, which has not begun."""
    return Run(factories.start(database, factories.make_workflow(CHAIN)), DEFAULT_ORGANIZATION)


def begin(database: Database, run: Run, key: str = "extract") -> transitions.Claim:
    """Claim a task run of a run."""
    (claimed,) = factories.claim(database, factories.task_run(run.id, key))
    return claimed  # type: ignore[no-any-return]


def log(run: Run) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (principal, action, detail) of what the audit log says of a run, the earliest first."""
    rows = audit.entries(run.organization, subject=str(run.id))
    return [(row.principal, row.action, row.detail) for row in reversed(rows)]


# cancel


def test_a_run_that_has_not_begun_is_cancelled_at_once(run: Run) -> None:
    assert run.cancel(reason="wrong day", by="me") is RunState.CANCELLED

    assert run.state is RunState.CANCELLED
    assert log(run) == [("me", "run.cancel", {"now": False, "reason": "wrong day"})]
    assert situation.run_detail(run.id, "cancel_requested") == situation.TOLD


def test_of_a_running_one_the_answer_is_that_it_still_runs(database: Database, run: Run) -> None:
    claimed = begin(database, run)

    assert run.cancel() is RunState.RUNNING

    database.perform(transitions.finish, [factories.outcome(claimed)])
    end(database, run)
    assert run.state is RunState.CANCELLED
    assert situation.states(run.id) == {"extract": "cancelled", "load": "cancelled", "clean_up": "succeeded"}


def test_now_spares_no_clean_up_and_is_kept(database: Database, run: Run) -> None:
    begin(database, run)

    assert run.cancel(now=True, by="me") is RunState.RUNNING

    assert situation.states(run.id) == {"extract": "running", "load": "cancelled", "clean_up": "cancelled"}
    assert log(run) == [("me", "run.cancel", {"now": True, "reason": ""})]


def test_whoever_says_nothing_else_is_the_account_and_its_machine(run: Run) -> None:
    run.cancel()

    assert [who for who, _, _ in log(run)] == [f"cli:{getpass.getuser()}@{socket.gethostname()}"]


def test_a_cancelled_run_is_cancelled_again_without_a_word(run: Run) -> None:
    """B073: what is wanted is so, whoever asked first."""
    run.cancel(by="me")

    assert run.cancel(by="you") is RunState.CANCELLED

    assert [who for who, _, _ in log(run)] == ["me"]
    assert [kind for kind, _, _ in situation.run_history(run.id)].count("cancelled") == 1


def test_one_that_is_being_cancelled_is_asked_once(database: Database, run: Run) -> None:
    begin(database, run)

    assert [run.cancel(), run.cancel()] == [RunState.RUNNING, RunState.RUNNING]

    assert [kind for kind, _, _ in situation.run_history(run.id)].count("cancel_requested") == 1


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED])
def test_a_run_that_has_ended_otherwise_is_not_cancelled(database: Database, run: Run, state: RunState) -> None:
    """B073: the error says the state that stands."""
    end(database, run, TaskState(state))

    with pytest.raises(CannotCancel, match=f"run {run.id} has {state}: what has ended cannot be cancelled") as refusal:
        run.cancel()

    assert refusal.value.state == state
    assert run.state is state
    assert log(run) == []


@pytest.mark.parametrize("where", ["nowhere", "in another organization"])
def test_a_run_that_is_not_there_is_not_cancelled(run: Run, where: str) -> None:
    other = Run(uuid4(), DEFAULT_ORGANIZATION) if where == "nowhere" else Run(run.id, factories.make_organization())

    with pytest.raises(CannotCancel, match=f"run {other.id} is not there: `flowforge runs list` shows") as refusal:
        other.cancel()

    assert refusal.value.state is None
    assert run.state is RunState.PENDING
    assert models.AuditLog.select().count() == 0


def test_it_is_cancelled_without_blocking_the_event_loop(run: Run) -> None:
    assert asyncio.run(run.cancel_async(reason="wrong day", now=True, by="me")) is RunState.CANCELLED

    assert log(run) == [("me", "run.cancel", {"now": True, "reason": "wrong day"})]


def test_a_publisher_is_woken_for_clean_ups(engine: Engine, run: Run) -> None:
    begin(engine.database, run)
    assert engine.runway is not None
    engine.runway.wait(0.01)

    run.cancel()

    assert engine.runway.wait(1) == [b"now"]


# cancel_task


def test_a_task_is_named_by_itself_or_by_its_key(sales: Workflow[...]) -> None:
    by_task, by_key = (sales.start(day=DAY) for _ in range(2))

    assert by_task.cancel_task(sales.tasks["extract"], reason="wrong day", by="me") is TaskState.CANCELLED
    assert by_key.cancel_task("extract") is TaskState.CANCELLED

    assert situation.states(by_task.id) == situation.states(by_key.id) == {
        "extract": "cancelled", "transform": "skipped",
    }  # fmt: skip
    assert by_task.state is RunState.CANCELLED
    assert log(by_task) == [("me", "task_run.cancel", {"task": "extract", "reason": "wrong day"})]


def test_of_a_running_task_the_answer_is_that_it_still_runs(database: Database, run: Run) -> None:
    begin(database, run)

    assert run.cancel_task("extract", by="me") is TaskState.RUNNING

    assert factories.task_run(run.id, "extract").cancel_requested_at is not None
    assert [action for _, action, _ in log(run)] == ["task_run.cancel"]


def test_a_cancelled_task_is_cancelled_again_without_a_word(run: Run) -> None:
    assert [run.cancel_task("load"), run.cancel_task("load")] == [TaskState.CANCELLED, TaskState.CANCELLED]

    assert factories.event_kinds(factories.task_run(run.id, "load")) == ["created", "cancelled"]


@pytest.mark.parametrize("state", [TaskState.SUCCEEDED, TaskState.FAILED, TaskState.SKIPPED])
def test_a_task_that_has_ended_otherwise_is_not_cancelled(database: Database, run: Run, state: TaskState) -> None:
    claimed = begin(database, run)
    database.perform(transitions.finish, [factories.outcome(claimed, state)])
    before = situation.picture()

    with pytest.raises(CannotCancel, match=f"task 'extract' of run {run.id} has {state}: what has ended") as refusal:
        run.cancel_task("extract")

    assert refusal.value.state == state
    assert situation.changed_since(before) == set()


def test_a_task_that_is_not_there_is_not_cancelled(run: Run) -> None:
    with pytest.raises(CannotCancel, match=f"task 'extrakt' of run {run.id} is not there") as refusal:
        run.cancel_task("extrakt")

    assert refusal.value.state is None
    assert log(run) == []


def test_a_task_of_no_run_is_not_cancelled(database: Database) -> None:  # noqa: ARG001 - configured
    with pytest.raises(CannotCancel, match=r"run \S+ is not there"):
        Run(uuid4(), DEFAULT_ORGANIZATION).cancel_task("extract")


# While a guard is held


@pytest.mark.parametrize("how", ["cancel", "cancel_task"])
def test_what_a_guard_holds_is_not_cancelled_and_nothing_is_changed(
    database: Database, database_url: str, run: Run, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """B047: the whole decision waits for the user's own commit, and can be made again after it."""
    monkeypatch.setattr(stopping, "_PATIENCE", 0.05)
    claimed = begin(database, run)
    arguments = ["extract"] if how == "cancel_task" else []
    before = situation.picture()

    with situation.held_open(database_url, lambda c: transitions.guard(c, claimed.id, claimed.token)):
        with pytest.raises(RowLocked, match="guards what was to be changed: try again later"):
            getattr(run, how)(*arguments)
        unchanged = situation.changed_since(before) == set()

    assert unchanged
    assert getattr(run, how)(*arguments) == "running"


# rerun


def test_what_failed_is_due_again_with_all_that_depends_on_it(database: Database, run: Run) -> None:
    situation.complete(database, factories.task_run(run.id, "extract"))
    end(database, run, TaskState.FAILED)

    assert run.rerun(reason="wrong day", by="me") == ["load", "clean_up"]

    assert run.state is RunState.RUNNING
    assert log(run) == [("me", "run.rerun", {"tasks": ["load", "clean_up"], "reason": "wrong day"})]
    assert situation.run_detail(run.id, "rerun") == situation.TOLD
    end(database, run)
    assert run.state is RunState.SUCCEEDED


def test_named_tasks_are_due_again_whatever_their_state(database: Database, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    for task in (sales.tasks["transform"], "extract"):
        end(database, run, result="[]")

        keys = run.rerun(tasks=[task])

    assert keys == ["extract", "transform"]
    assert [detail["tasks"] for _, _, detail in log(run)] == [["transform"], ["extract", "transform"]]


def test_a_result_of_before_is_not_read_after_a_rerun(database: Database, sales: Workflow[...]) -> None:
    run = sales.start(day=DAY)
    end(database, run, result="[1]")

    run.rerun(tasks=[extract.__name__])

    assert [(task.key, task.state, task.attempt) for task in run.tasks()] == [
        ("extract", "ready", 2), ("transform", "pending", 2),
    ]  # fmt: skip


def test_a_publisher_is_woken_for_what_is_due_again(engine: Engine, run: Run) -> None:
    end(engine.database, run)
    assert engine.runway is not None
    engine.runway.wait(0.01)

    run.rerun(tasks=["load"])

    assert engine.runway.wait(1) == [b"now"]


@pytest.mark.parametrize("state", [RunState.PENDING, RunState.RUNNING])
def test_a_run_that_goes_on_is_not_rerun(database: Database, run: Run, state: RunState) -> None:
    if state is RunState.RUNNING:
        begin(database, run)
    before = situation.picture()

    with pytest.raises(CannotRerun, match=f"run {run.id} is {state}: only a run that has ended can be rerun"):
        run.rerun(tasks=["extract"])

    assert situation.changed_since(before) == set()


def test_a_run_is_rerun_once(database: Database, run: Run) -> None:
    end(database, run, TaskState.FAILED)
    run.rerun()

    with pytest.raises(CannotRerun, match="is running: only a run that has ended"):
        run.rerun()

    assert [action for _, action, _ in log(run)] == ["run.rerun"]


def test_where_nothing_failed_tasks_are_to_be_named(database: Database, run: Run) -> None:
    end(database, run)
    before = situation.picture()

    with pytest.raises(CannotRerun, match="has no task that failed or was cancelled: name the tasks"):
        run.rerun()

    assert situation.changed_since(before) == set()


def test_a_task_whose_rule_is_not_met_is_not_rerun_without_its_upstream(database: Database, run: Run) -> None:
    end(database, run, TaskState.FAILED)
    before = situation.picture()

    with pytest.raises(
        CannotRerun, match=r"task 'load' of run .* would not run by its rule.*: rerun that one, and this"
    ):
        run.rerun(tasks=["load"])

    assert situation.changed_since(before) == set()


def test_a_task_that_is_not_there_is_not_rerun(database: Database, run: Run) -> None:
    end(database, run)

    with pytest.raises(CannotRerun, match=rf"task 'extrakt' of run {run.id} is not there \(did you mean 'extract'\?\)"):
        run.rerun(tasks=["load", "extrakt"])

    assert log(run) == []


@pytest.mark.parametrize("where", ["nowhere", "in another organization"])
def test_a_run_that_is_not_there_is_not_rerun(database: Database, run: Run, where: str) -> None:
    end(database, run, TaskState.FAILED)
    other = Run(uuid4(), DEFAULT_ORGANIZATION) if where == "nowhere" else Run(run.id, factories.make_organization())

    with pytest.raises(CannotRerun, match=f"run {other.id} is not there"):
        other.rerun()

    assert run.state is RunState.FAILED
