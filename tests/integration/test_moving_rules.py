"""Any run, at any moment, moved to any other graph: the verbs agree with the model, and the run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from flowforge import client, insights, models, transitions
from flowforge.client import Run
from flowforge.errors import CannotMove
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import TaskEvent, TaskState
from tests import factories
from tests.factories import Node
from tests.integration.test_rules import OUTCOMES, claim, ended, graphs, of, some, start, take
from tests.model import ModelRun

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.client import Engine
    from flowforge.db import Database
    from flowforge.transitions import Claim
    from tests.model import Rule


def states(run_id: UUID) -> dict[str, str]:
    """Return key -> state of a run's task runs."""
    rows = models.TaskRun.select(models.TaskRun, models.Task).join(models.Task).where(of(run_id, models.TaskRun))
    return {row.task.key: row.state for row in rows}


def other_version(run_id: UUID, tasks: dict[str, Rule]) -> int:
    """Store another version of the run's workflow; return its number."""
    nodes = {key: Node(rule.upstream, {"when": rule.when, "required": rule.required}) for key, rule in tasks.items()}
    assert models.WorkflowRun.get_by_id(run_id).workflow.name == "sales"
    return int(factories.make_workflow(nodes).version)


def play(
    database: Database, run_id: UUID, model: ModelRun, running: dict[str, Claim], data: st.DataObject, steps: int
) -> None:
    """Claim some and end some, in the tables and in the model; at most so often."""
    for _ in range(steps):
        due = {key: one for key, one in take(database, run_id).items() if key not in running}
        if not due and not running:
            return
        running |= claim(database, list(due.values()))
        assert {model.claim(key) for key in due} <= {True}
        endings = {key: data.draw(OUTCOMES, label=key) for key in some(data, running)}
        database.perform(transitions.finish, [ended(running.pop(key), state) for key, state in endings.items()])
        assert {model.finish(key, state) for key, state in endings.items()} <= {"ended"}


@settings(
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(before=graphs(), after=graphs(), data=st.data())
def test_a_moved_run_agrees_with_the_model(
    engine: Engine, before: dict[str, Rule], after: dict[str, Rule], data: st.DataObject
) -> None:
    """B128, B129."""
    database, model, running = engine.database, ModelRun(before), dict[str, "Claim"]()
    run_id = start(database, before)
    play(database, run_id, model, running, data, data.draw(st.integers(0, 4), label="steps before"))
    if models.WorkflowRun.get_by_id(run_id).finished_at:
        event("had ended")
        return
    version, run = other_version(run_id, after), Run(run_id, DEFAULT_ORGANIZATION)

    fresh = after.keys() - before.keys()
    followed = {key for name in fresh for key in after[name].upstream}
    if running.keys() - after.keys() or running.keys() & followed:
        with pytest.raises(CannotMove, match=r"is running, and the version (has no such task|adds tasks after it)"):
            client.move(run, version=version)
        event("refused")
        return
    client.move(run, version=version)

    moved = ModelRun(after)
    for key, state in model.states().items():
        if key in after and state not in {TaskState.PENDING, TaskState.READY}:
            moved.deeds[key] = model.deeds[key]
            moved.do(key, TaskEvent.MOVED, state)  # skipped by the old graph's rule, it stays so
    assert {key: state for key, state in states(run_id).items() if key in after} == moved.states()
    play(database, run_id, moved, running, data, 100)
    assert {key: state for key, state in states(run_id).items() if key in after} == moved.states()
    assert models.WorkflowRun.get_by_id(run_id).finished_at
    assert not any(insights.broken_invariants(database.raw()).values())
    event("moved")
