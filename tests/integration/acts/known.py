"""What is known to those who act: the runs in the model, and all that ever came from the tables about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from flowforge import models
from flowforge.states import TaskState
from flowforge.transitions import Outcome
from tests.model import ModelRun, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from flowforge.transitions import Claim, Dispatch, Ending
    from tests.model_history import Deed

HOUR = 3600
LIMIT = 1000
QUEUES = ["default", "cpu"]
OWNERS = ["worker-1", "worker-2"]

Draw = st.DataObject


@dataclass(frozen=True)
class Act:
    """
    A verb, its answer by the model, that answer in the model's words, and what is kept of it for later.

    `releases` are the task runs, each at a token, that it makes ready again.
    """

    verb: Callable[[Any], Any]
    model: Callable[[], Any]
    told: Callable[[Any], Any] = lambda answer: answer
    keep: Callable[[Any], object] = lambda _: None
    releases: frozenset[tuple[UUID, int]] = frozenset()


@dataclass
class Known:
    """
    The model's runs, and where in them each task run of the tables is.

    Messages, claims and what was found overdue are kept for ever: each may come again, late, and in any order.
    """

    world: World = field(default_factory=World)
    runs: dict[UUID, ModelRun] = field(default_factory=dict)
    where: dict[UUID, tuple[ModelRun, str]] = field(default_factory=dict)
    messages: list[Dispatch] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    asked: list[Outcome] = field(default_factory=list)
    overdue: list[UUID] = field(default_factory=list)
    unstarted: list[Outcome] = field(default_factory=list)
    published: list[tuple[UUID, datetime, UUID, Deed]] = field(default_factory=list)

    def add(self, run_id: UUID, run: ModelRun) -> None:
        """Know of a run that was started."""
        self.runs[run_id] = run
        rows = models.TaskRun.select().join(models.Task).where(models.TaskRun.workflow_run == run_id)
        for row in rows.order_by(models.Task.position):
            self.where[row.id] = run, row.task.key

    def in_state(self, state: TaskState) -> Iterator[tuple[UUID, ModelRun, str]]:
        """Return the task runs that are in a state: id, and run and key in the model."""
        places = ((id_, run, key) for id_, (run, key) in self.where.items())
        return (place for place in places if place[1].states()[place[2]] == state)

    def is_owned(self, id_: UUID, token: int) -> bool:
        """Whether a task run is running at a token."""
        run, key = self.where[id_]
        return run.states()[key] == TaskState.RUNNING and run.token(key) == token

    def unfinished(self) -> list[ModelRun]:
        """Return the runs that have not ended."""
        return [run for run in self.runs.values() if not run.state().ended]

    def live(self) -> list[Claim]:
        """Return the claims whose task runs are still owned."""
        return [one for one in self.claims if self.is_owned(one.id, one.token)]

    def fresh(self) -> list[Dispatch]:
        """Return the messages whose task runs are still ready."""
        ready = {(id_, run.token(key)) for id_, run, key in self.in_state(TaskState.READY)}
        return [one for one in self.messages if (one.task_run_id, one.token) in ready]

    def ordered(self, rows: Iterable[Any], id_of: Callable[[Any], UUID] = lambda row: row.id) -> list[Any]:
        """Return rows in order of definition, so that a draw means the same when it is tried again."""
        places = list(self.where)
        return sorted(rows, key=lambda row: places.index(id_of(row)))


def some(data: Draw, choices: Sequence[Any], **options: Any) -> list[Any]:
    """Draw up to four of these, in any order; the latest are the simplest."""
    return data.draw(st.lists(st.sampled_from(choices[::-1]), min_size=1, max_size=4, **options))


def outcome(id_: UUID, run_id: UUID, token: int, state: TaskState) -> Outcome:
    """Return an outcome, with a result or an error where its state has one."""
    result = "1" if state == TaskState.SUCCEEDED else None
    error = '{"type": "ValueError", "message": ""}' if state == TaskState.FAILED else None
    return Outcome(id_, run_id, token, state, result, error)


def is_answer(ending: Ending, outcomes: Sequence[Outcome]) -> bool:
    """Whether this answers one of the outcomes, and does not tell of a dependent: that may be one of them as well."""
    if ending.became == "ended":
        return (ending.id, ending.token) in {(one.id, one.token) for one in outcomes}
    return ending.became in {"ended before", "refused"}
