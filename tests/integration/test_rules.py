"""Any graph, any outcomes, in any order and any batches: the verbs agree with the model after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowforge import models, transitions
from flowforge.states import TaskState, When
from flowforge.transitions import Mark, Outcome
from tests import factories
from tests.factories import Node
from tests.model import ModelRun, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from flowforge.db import Database
    from flowforge.transitions import Claim, Dispatch
    from tests.model import Event


class Facts(NamedTuple):
    """What can be said of a run: the same for the tables and for the model."""

    states: dict[str, str]
    counters: dict[str, tuple[int, int, int]]
    events: dict[str, list[Event]]
    owed: dict[str, int]  # key -> token, for what is in the outbox
    run: tuple[str, int, int]
    run_events: list[Event]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Rule]:
    """Draw one to twelve tasks with edges from earlier to later ones."""
    tasks: dict[str, Rule] = {}
    for number in range(draw(st.integers(1, 12))):
        upstream = draw(st.lists(st.sampled_from(list(tasks)), unique=True, max_size=4)) if tasks else []
        rule = Rule(upstream, draw(st.sampled_from(When)), draw(st.booleans()))
        tasks[f"task_{number}"] = rule
    return tasks


OUTCOMES = st.sampled_from([TaskState.SUCCEEDED, TaskState.FAILED, TaskState.SKIPPED])


@settings(
    max_examples=40,
    deadline=None,
    database=None,
    # One database serves all examples: each looks at its own run alone.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tasks=graphs(), data=st.data())
def test_the_verbs_agree_with_the_model(database: Database, tasks: dict[str, Rule], data: st.DataObject) -> None:
    model, run_id = ModelRun(tasks), start(database, tasks)
    due, running = take(database, run_id), dict[str, "Claim"]()

    assert stored(run_id) == modelled(model)
    while due or running:
        chosen = some(data, due)
        running |= claim(database, [due.pop(key) for key in chosen])
        model.claim(chosen)
        assert stored(run_id) == modelled(model)

        endings = {key: data.draw(OUTCOMES, label=key) for key in some(data, running)}
        database.perform(transitions.finish, [ended(running.pop(key), state) for key, state in endings.items()])
        model.finish(endings)
        assert stored(run_id) == modelled(model)

        due |= take(database, run_id)
    assert stored(run_id).run[1] == 0


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
        dispatches, _ = transitions.take(database.raw(), "default", limit=1000, after=Mark())
    return {dispatch.key: dispatch for dispatch in dispatches if dispatch.run_id == run_id}


def claim(database: Database, dispatches: list[Dispatch]) -> dict[str, Claim]:
    """Claim; return key -> claim."""
    keys = {dispatch.task_run_id: dispatch.key for dispatch in dispatches}
    claims = database.perform(transitions.claim, dispatches, owner="worker-1", lease=15)
    return {keys[claimed.id]: claimed for claimed in claims}


def ended(claimed: Claim, state: TaskState) -> Outcome:
    """Return the outcome of an attempt, with a result or an error where its state has one."""
    result = "1" if state == TaskState.SUCCEEDED else None
    error = '{"type": "ValueError", "message": ""}' if state == TaskState.FAILED else None
    return Outcome(claimed.id, claimed.run_id, claimed.token, state, result, error)


def stored(run_id: UUID) -> Facts:
    """Return what the tables say."""
    rows = list(models.TaskRun.select(models.TaskRun, models.Task).join(models.Task).where(of(run_id, models.TaskRun)))
    rows.sort(key=lambda row: row.task.position)
    keys = {row.id: row.task.key for row in rows}
    run = models.WorkflowRun.get_by_id(run_id)
    events = list(models.TaskRunEvent.select().where(models.TaskRunEvent.task_run.in_(list(keys))))
    run_events = models.WorkflowRunEvent.select().where(of(run_id, models.WorkflowRunEvent))
    owed = list(models.OutboxMessage.select().where(of(run_id, models.OutboxMessage)))
    assert len({message.task_run_id for message in owed}) == len(owed)
    return Facts(
        states={row.task.key: row.state for row in rows},
        counters={
            row.task.key: (row.upstream_remaining, row.upstream_failed, row.upstream_unsucceeded) for row in rows
        },
        events={keys[id_]: chain([e for e in events if e.task_run_id == id_]) for id_ in keys},
        owed={keys[message.task_run_id]: message.fencing_token_snapshot for message in owed},
        run=(run.state, run.tasks_remaining, run.tasks_failed),
        run_events=chain(list(run_events)),
    )


def of(run_id: UUID, model: Any) -> Any:
    """Return the condition that a row belongs to the run."""
    return model.workflow_run == run_id


def chain(events: list[Any]) -> list[Event]:
    """Return (kind, from, to) of events, in the order in which they happened."""
    return [(e.kind, e.from_state, e.to_state) for e in sorted(events, key=lambda event: event.created_at)]


def modelled(model: ModelRun) -> Facts:
    """Return what the rules say."""
    states = model.states()
    return Facts(
        states={key: state.value for key, state in states.items()},
        counters=model.counters(),
        events=model.events(),
        owed={key: 0 for key, state in states.items() if state == TaskState.READY},
        run=model.run(),
        run_events=model.run_events(),
    )
