"""Any graph, any outcomes, in any order and any batches: the verbs agree with the model after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowforge import transitions
from flowforge.states import TaskState, When
from flowforge.transitions import Mark, Outcome
from tests import factories
from tests.factories import Node
from tests.integration import facts
from tests.model import ModelRun, Rule
from tests.model_history import PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from flowforge.db import Database
    from flowforge.transitions import Claim, Dispatch


HOUR = 3600
#: Starts, further starts after losses, hours to start in, and a queue.
LIMITS = st.fixed_dictionaries(
    {
        "attempts": st.integers(1, 3),
        "lost": st.integers(0, 2),
        "start_by": st.sampled_from([None, 1.25]),
        "queue": st.sampled_from(["default", "cpu"]),
    }
)

OUTCOMES = st.sampled_from([TaskState.SUCCEEDED, TaskState.FAILED, TaskState.SKIPPED])


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, *, budgets: bool = False) -> dict[str, Rule]:
    """Draw one to `most` tasks with edges from earlier to later ones, and with limits and queues of their own."""
    tasks: dict[str, Rule] = {}
    for number in range(draw(st.integers(1, most))):
        upstream = draw(st.lists(st.sampled_from(list(tasks)), unique=True, max_size=4)) if tasks else []
        limits = draw(LIMITS) if budgets else {}
        tasks[f"task_{number}"] = Rule(upstream, draw(st.sampled_from(When)), draw(st.booleans()), **limits)
    return tasks


@settings(
    max_examples=40,
    deadline=None,
    database=None,
    # One database serves all examples: each looks at its own run alone.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tasks=graphs(), data=st.data())
def test_the_verbs_agree_with_the_model(database: Database, tasks: dict[str, Rule], data: st.DataObject) -> None:
    model, run_id, begin = ModelRun(tasks), start(database, tasks), clock(database)
    running: dict[str, Claim] = {}
    due = published(database, run_id, model)

    while due or running:
        chosen = some(data, due)
        running |= claim(database, [due.pop(key) for key in chosen])
        assert {model.claim(key) for key in chosen} <= {True}
        assert facts.stored(database.raw(), [run_id], begin) == {run_id: model.facts()}

        endings = {key: data.draw(OUTCOMES, label=key) for key in some(data, running)}
        database.perform(transitions.finish, [ended(running.pop(key), state) for key, state in endings.items()])
        assert {model.finish(key, state) for key, state in endings.items()} <= {"ended"}
        assert facts.stored(database.raw(), [run_id], begin) == {run_id: model.facts()}

        due |= published(database, run_id, model)
    assert model.counters()[0] == 0


def published(database: Database, run_id: UUID, model: ModelRun) -> dict[str, Dispatch]:
    """Publish what is due, in the tables and in the model."""
    due = take(database, run_id)
    for key in due:
        model.do(key, PUBLISHED)
    return due


def clock(database: Database) -> datetime:
    """Return the database's time."""
    moment: datetime = database.execute_sql("select flowforge.clock()").fetchone()[0]
    return moment


def some(data: st.DataObject, choices: dict[str, Any]) -> Sequence[str]:
    """Draw at least one of the keys, if there are any, in any order."""
    return data.draw(st.lists(st.sampled_from(sorted(choices)), unique=True, min_size=1)) if choices else []


def start(database: Database, tasks: dict[str, Rule]) -> UUID:
    """Store a workflow and start a run of it."""
    nodes = {key: Node(rule.upstream, {"when": rule.when, "required": rule.required}) for key, rule in tasks.items()}
    with database.atomic():
        return factories.start(database, factories.make_workflow(nodes))


def take(database: Database, run_id: UUID) -> dict[str, Dispatch]:
    """Publish what is due; return key -> dispatch for this run."""
    with database.atomic():
        dispatches, *_ = transitions.take(database.raw(), "default", limit=1000, after=Mark())
    return {dispatch.key: dispatch for dispatch in dispatches if dispatch.run_id == run_id}


def claim(database: Database, dispatches: list[Dispatch]) -> dict[str, Claim]:
    """Claim; return key -> claim."""
    keys = {dispatch.task_run_id: dispatch.key for dispatch in dispatches}
    claims = database.perform(transitions.claim, dispatches, owner="worker-1", lease=HOUR)
    return {keys[claimed.id]: claimed for claimed in claims}


def ended(claimed: Claim, state: TaskState) -> Outcome:
    """Return the outcome of an attempt, with a result or an error where its state has one."""
    result = "1" if state == TaskState.SUCCEEDED else None
    error = '{"type": "ValueError", "message": ""}' if state == TaskState.FAILED else None
    return Outcome(claimed.id, claimed.run_id, claimed.token, state, result, error)


def of(run_id: UUID, model: Any) -> Any:
    """Return the condition that a row belongs to the run."""
    return model.workflow_run == run_id
