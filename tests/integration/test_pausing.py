"""Run.pause and resume, flowforge.pause and resume: what they answer, what they raise, and what the audit log keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

import flowforge
from flowforge import insights, models, transitions
from flowforge.client import Run
from flowforge.errors import CannotPause, WaitTimeout
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import Paused, TaskState
from tests import factories
from tests.factories import Node
from tests.integration.sales import end
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from flowforge.client import Engine
    from flowforge.db import Database

KINDS = list(Paused)


@pytest.fixture
def database(engine: Engine) -> Database:
    """The engine's own database: decisions go through the client."""
    return engine.database


@pytest.fixture
def run(database: Database) -> Run:
    """A run of two tasks, which has not begun."""
    tasks = {"extract": Node(options={"queue": "cpu"}), "load": Node(["extract"])}
    return Run(factories.start(database, factories.make_workflow(tasks)), DEFAULT_ORGANIZATION)


def name(run: Run, kind: Paused) -> str:
    """Return the name of what a run is, or belongs to."""
    return {Paused.RUN: str(run.id), Paused.WORKFLOW: "sales", Paused.QUEUE: "cpu"}[kind]


def actions() -> list[tuple[str, str, str, str]]:
    """Return (principal, action, kind, subject) of the audit log, the earliest first."""
    rows = models.AuditLog.select().order_by(models.AuditLog.created_at)
    return [(row.principal, row.action, row.subject_kind, row.subject) for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_paused_is_kept_with_who_and_why(run: Run, kind: Paused) -> None:
    assert flowforge.pause(kind, name(run, kind), reason="wrong day", by="me") is True

    (pause,) = insights.pauses(DEFAULT_ORGANIZATION)
    (entry,) = models.AuditLog.select()
    assert (pause.kind, pause.subject, pause.paused_by, pause.reason) == (kind, name(run, kind), "me", "wrong day")
    assert actions() == [("me", f"{kind}.pause", kind, name(run, kind))]
    assert entry.detail == {"reason": "wrong day"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_paused_already_is_not_paused_again(run: Run, kind: Paused) -> None:
    flowforge.pause(kind, name(run, kind), by="me")

    assert flowforge.pause(kind, name(run, kind), by="you") is False

    assert [pause.paused_by for pause in insights.pauses(DEFAULT_ORGANIZATION)] == ["me"]
    assert len(actions()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_resumed_is_due_again_at_once(engine: Engine, run: Run, kind: Paused) -> None:
    flowforge.pause(kind, name(run, kind), by="me")
    extract = factories.task_run(run.id, "extract")
    refused = factories.claim(engine.database, extract)
    assert engine.runway is not None
    engine.runway.wait(0.01)

    assert flowforge.resume(kind, name(run, kind), by="you") is True

    assert refused == []
    assert insights.pauses(DEFAULT_ORGANIZATION) == []
    assert engine.runway.wait(1) == [b"now"]
    assert situation.ids(situation.take(engine.database, "cpu")) == {extract.id}
    assert actions()[1] == ("you", f"{kind}.resume", kind, name(run, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_paused_is_not_resumed(run: Run, kind: Paused) -> None:
    assert flowforge.resume(kind, name(run, kind)) is False

    assert actions() == []


def test_a_run_pauses_and_resumes_itself(run: Run) -> None:
    assert [run.pause(reason="wrong day", by="me"), run.pause(), run.resume(by="me"), run.resume()] == [
        True, False, True, False,
    ]  # fmt: skip

    assert [kind for kind, _, _ in situation.run_history(run.id)] == ["created", "paused", "resumed"]
    assert situation.run_detail(run.id, "paused") == situation.TOLD


def test_a_listing_says_that_a_run_is_paused_and_by_what(run: Run) -> None:
    run.pause(reason="wrong day", by="me")
    flowforge.pause(Paused.WORKFLOW, "sales", by="you")

    (summary,) = insights.list_runs(DEFAULT_ORGANIZATION)

    assert [(pause.kind, pause.paused_by, pause.reason) for pause in summary.paused] == [
        ("run", "me", "wrong day"),
        ("workflow", "you", ""),
    ]


def test_a_workflow_is_listed_with_pauses_of_its_queues_and_a_queue_with_those_of_what_it_holds(
    engine: Engine, run: Run
) -> None:
    flowforge.pause(Paused.QUEUE, "cpu", by="me")
    flowforge.pause(Paused.WORKFLOW, "sales", by="you")
    run.pause(by="they")
    situation.take(engine.database, "cpu")

    (workflow,) = insights.list_workflows(DEFAULT_ORGANIZATION)
    queues = {queue.name: queue for queue in insights.list_queues(DEFAULT_ORGANIZATION)}

    assert [pause.paused_by for pause in workflow.paused] == ["you", "me"]
    assert [pause.paused_by for pause in queues["cpu"].paused] == ["me", "they", "you"]
    assert queues["default"].paused == []


def test_a_run_that_is_to_be_cancelled_is_listed_with_who_and_why(engine: Engine, run: Run) -> None:
    factories.claim(engine.database, factories.task_run(run.id, "extract"))
    run.cancel(reason="wrong day", by="me")

    (listed,) = insights.list_runs(DEFAULT_ORGANIZATION)

    assert listed.cancel == {"by": "me", "reason": "wrong day"}


def test_a_run_says_that_a_queue_is_paused_of_which_its_tasks_make_use(run: Run) -> None:
    flowforge.pause(Paused.QUEUE, "cpu", reason="wrong day", by="me")

    (listed,) = insights.list_runs(DEFAULT_ORGANIZATION)
    shown = insights.run_summary(DEFAULT_ORGANIZATION, run.id)

    assert shown is not None
    assert [(pause.kind, pause.subject) for pause in listed.paused] == [("queue", "cpu")]
    assert shown.paused == listed.paused


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_in_vain_is_told_what_is_paused(run: Run, kind: Paused) -> None:
    flowforge.pause(kind, name(run, kind), reason="wrong day", by="me")

    with pytest.raises(WaitTimeout, match=rf"its {kind} was paused by me \(wrong day\)"):
        run.wait(timeout=0)


# Refused


@pytest.mark.parametrize("state", [TaskState.SUCCEEDED, TaskState.FAILED])
def test_a_run_that_has_ended_is_not_paused(database: Database, run: Run, state: TaskState) -> None:
    end(database, run, state)
    before = situation.picture()

    with pytest.raises(CannotPause, match=f"run {run.id} has ended: there is nothing left to pause"):
        run.pause()

    assert situation.changed_since(before) == set()


@pytest.mark.parametrize("where", ["nowhere", "in another organization"])
def test_a_run_that_is_not_there_is_not_paused(run: Run, where: str) -> None:
    other = Run(uuid4(), DEFAULT_ORGANIZATION) if where == "nowhere" else Run(run.id, factories.make_organization())

    with pytest.raises(CannotPause, match=f"there is no run '{other.id}'"):
        other.pause()

    assert models.Pause.select().count() == len(actions()) == 0


@pytest.mark.parametrize(("kind", "wrong", "near"), [(Paused.WORKFLOW, "sale", "sales"), (Paused.QUEUE, "cpuu", "cpu")])
@pytest.mark.usefixtures("run")
def test_a_name_that_is_none_is_told_with_the_nearest_that_is_one(kind: Paused, wrong: str, near: str) -> None:
    with pytest.raises(CannotPause, match=rf"there is no {kind} '{wrong}' \(did you mean '{near}'\?\)"):
        flowforge.pause(kind, wrong)

    assert models.Pause.select().count() == len(actions()) == 0


@pytest.mark.parametrize("kind", [Paused.WORKFLOW, Paused.QUEUE])
@pytest.mark.usefixtures("run")
def test_what_only_others_have_is_not_there(kind: Paused) -> None:
    """A tenant learns nothing of another's names."""
    tasks = {"only": Node(options={"queue": "theirs"})}
    other = factories.make_organization()
    factories.make_workflow(tasks, name="theirs", organization=other)

    with pytest.raises(CannotPause, match=f"there is no {kind} 'theirs'$"):
        flowforge.pause(kind, "theirs")

    assert flowforge.pause(kind, "theirs", organization=other) is True
    with pytest.raises(CannotPause, match=f"there is no {kind} 'theirs'$"):
        flowforge.resume(kind, "theirs")


@pytest.mark.usefixtures("run")
def test_what_is_no_id_is_no_run() -> None:
    for decide in (flowforge.pause, flowforge.resume):
        with pytest.raises(CannotPause, match="there is no run '3f2a'"):
            decide(Paused.RUN, "3f2a")


@pytest.mark.usefixtures("run")
def test_an_unknown_kind_is_told() -> None:
    with pytest.raises(ValueError, match="'team'"):
        flowforge.pause("team", "sales")  # type: ignore[arg-type]


# In a transaction of the caller's


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_callers_block_it_is_committed_with_the_rest_or_not_at_all(
    database: Database, run: Run, kind: Paused
) -> None:
    before = situation.picture()

    with database.atomic() as transaction:
        flowforge.pause(kind, name(run, kind))
        claimed_inside = factories.claim(database, factories.task_run(run.id, "extract"))
        transaction.rollback()

    assert claimed_inside == []
    assert situation.changed_since(before) == set()


def test_a_pause_outlives_the_versions_of_its_workflow(database: Database, run: Run) -> None:
    flowforge.pause(Paused.WORKFLOW, "sales")
    later = factories.start(database, factories.make_workflow({"only": Node()}))

    claims = factories.claim(database, factories.task_run(run.id, "extract"), factories.task_run(later, "only"))

    assert claims == []
    assert database.perform(transitions.unhold) == 0
