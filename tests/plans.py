"""Workflows whose attempts end as a script says, for run_inline and real workers, and what plain Python expects."""

# Annotations are read at run time here, as in every module that defines tasks.
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from hypothesis import strategies as st

from flowforge import AttemptCancelled, Context, NonRetryable, Retry, Skip, Workflow
from flowforge.states import TaskState, When
from tests.model import ModelRun, Rule

Start = tuple[str, int]

HOUR = 3600.0


class End(Enum):
    """What an attempt does at its end."""

    RETURN = auto()
    RAISE = auto()
    EXIT = auto()
    SKIP = auto()
    GIVE_UP = auto()
    STOP = auto()
    RETURN_NAN = auto()


@dataclass(frozen=True)
class Step:
    """A task: its rule, how each of its attempts would end, and the seconds between them."""

    rule: Rule
    script: Sequence[End] = (End.RETURN,)
    delay: float = 0.0
    is_async: bool = False


Plan = Mapping[str, Step]


@st.composite
def plans(draw: st.DrawFn, *, most: int = 8) -> dict[str, Step]:
    """Draw one to `most` tasks with edges from earlier to later ones."""
    plan: dict[str, Step] = {}
    for number in range(draw(st.integers(1, most))):
        upstream = draw(st.lists(st.sampled_from(list(plan)), unique=True, max_size=4)) if plan else []
        rules = [rule for rule in When if upstream or rule != When.ANY_FAILED]
        plan[f"task_{number}"] = Step(
            Rule(upstream, draw(st.sampled_from(rules)), draw(st.booleans())),
            draw(st.lists(st.sampled_from(End), min_size=1, max_size=3)),
            draw(st.sampled_from([0.0, HOUR])),
            draw(st.booleans()),
        )
    return plan


def define(name: str, plan: Plan, starts: list[Start]) -> Workflow[[]]:
    """Return the workflow of a plan; it notes the start of every attempt."""
    workflow = Workflow(name)
    for key, step in plan.items():
        rule, tasks = step.rule, workflow.tasks
        workflow.task(
            _function(step, starts),
            key=key,
            inputs={"given": [tasks[upstream] for upstream in rule.upstream]},
            when=rule.when,
            required=rule.required,
            retry=Retry(attempts=len(step.script), delay=step.delay, factor=1, max_delay=5 * HOUR),
        )
    return workflow


def _function(step: Step, starts: list[Start]) -> Any:
    def function(context: Context, given: Any = None) -> Any:
        starts.append((context.key, context.attempt))
        return _end(step.script[context.attempt - 1], context, given)

    async def coroutine_function(context: Context, given: Any = None) -> Any:
        return function(context, given)

    return coroutine_function if step.is_async else function


def _end(how: End, context: Context, given: Any) -> Any:
    match how:
        case End.RAISE:
            raise ValueError(f"{context.key} at attempt {context.attempt}")
        case End.EXIT:
            sys.exit(3)
        case End.SKIP:
            raise Skip("nothing to do")
        case End.GIVE_UP:
            raise NonRetryable("for good")
        case End.STOP:
            raise AttemptCancelled("enough")
        case End.RETURN_NAN:
            return float("nan")
        case End.RETURN:
            return [context.key, context.attempt, given and [one[0] for one in given]]


def ended_by(step: Step, attempt: int) -> TaskState | None:
    """Return how that attempt ends its task, or None when another follows."""
    match step.script[attempt - 1]:
        case End.RETURN:
            return TaskState.SUCCEEDED
        case End.SKIP:
            return TaskState.SKIPPED
        case End.STOP:
            return TaskState.CANCELLED
        case End.RAISE | End.EXIT if attempt < len(step.script):
            return None
    return TaskState.FAILED


def check_order(plan: Plan, starts: Sequence[Start]) -> ModelRun:
    """
    Assert that one thread may start these attempts in this order, and that no others are due; return the ended run.

    What is due first starts first, then what became ready first; of what became ready at the same moment any.
    """
    model, now = ModelRun({key: step.rule for key, step in plan.items()}), 0.0
    due: list[tuple[float, set[Start]]] = [(now, _ready(model))]
    for key, attempt in starts:
        due = sorted(((when, group) for when, group in due if group), key=lambda entry: entry[0])
        now, group = due[0]
        assert (key, attempt) in group, f"{key} at attempt {attempt} was not due before {group}"
        group.remove((key, attempt))
        if (state := ended_by(plan[key], attempt)) is None:
            due.append((now + plan[key].delay, {(key, attempt + 1)}))
        else:
            waiting = _ready(model)
            model.claim(key)
            model.finish(key, state)
            due.append((now, _ready(model) - waiting))
    assert not any(group for _, group in due)
    return model


def _ready(model: ModelRun) -> set[Start]:
    return {(key, 1) for key, state in model.states().items() if state == TaskState.READY}
