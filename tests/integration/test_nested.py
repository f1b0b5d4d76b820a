"""Fan-outs within a fan-out within a diamond: each join waits for what is written above it, however that is written."""

from typing import Any

from flowforge import Workflow
from flowforge.client import Engine
from flowforge.states import RunState
from tests import factories
from tests.integration.sales import end

PIECES = {f"piece_{part}_{number}": [f"part_{part}"] for part in range(3) for number in range(3)}
#: Key -> the tasks that it waits for.
GRAPH = {
    "top": [],
    "left": ["top"],
    "right": ["top"],
    **{f"part_{part}": ["left"] for part in range(3)},
    **PIECES,
    **{f"whole_{part}": [key for key, above in PIECES.items() if above == [f"part_{part}"]] for part in range(3)},
    "left_end": [f"whole_{part}" for part in range(3)],
    "bottom": ["left_end", "right"],
}


def step(given: Any = None) -> None: ...


def by_inputs(tasks: list[Any]) -> dict[str, Any]:
    return {"inputs": {"given": tasks}}


def by_order(tasks: list[Any]) -> dict[str, Any]:
    return {"after": [*reversed(tasks), *tasks]}


def test_nested_structures_end_and_look_alike_however_they_are_written(engine: Engine) -> None:
    """B069: by data, or by order, in which each is named twice."""
    told = []

    for written in (by_inputs, by_order):
        flow = Workflow[[]]("nested")
        for key, above in GRAPH.items():
            flow.task(step, key=key, **written([flow.tasks[one] for one in above]))
        run = flow.start()
        end(engine.database, run)
        assert run.state == RunState.SUCCEEDED
        told.append({key: factories.event_kinds(factories.task_run(run.id, key)) for key in GRAPH})

    begun = ["claimed", "succeeded"]
    assert told == [{key: ["created", *(["readied"] if above else []), *begun] for key, above in GRAPH.items()}] * 2
