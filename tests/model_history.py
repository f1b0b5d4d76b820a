"""
What happened to a run, and what follows from it by the rules, in plain Python.

Nothing is kept but the deeds done to each task run and the turns that its run took. Every state, token, budget,
counter, dispatch and event is derived from those anew, by looking at the upstreams themselves: none is ever raised,
lowered or overwritten here. Times are in hours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from flowforge.states import TASK_TERMINAL, Paused, RunEvent, RunState, TaskEvent, TaskState, When

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Deeds that no event tells: about the lease, and about the dispatch.
RENEWED, LOST = "renewed", "lost"
PUBLISHED, HELD, LET_GO, RESENT, PUT_OFF = "published", "held", "let go", "resent", "put off"

_EVENTS = frozenset(kind.value for kind in TaskEvent)
#: What follows by itself, when a task run that was pending is found in another state.
_FOLLOWS = {TaskState.READY: TaskEvent.READIED, TaskState.SKIPPED: TaskEvent.SKIPPED}


@dataclass(frozen=True)
class Rule:
    """A task: what it waits for, when it runs, whether its failure fails the run; how often it starts, and by when."""

    upstream: Sequence[str] = ()
    when: When = When.ALL_SUCCEEDED
    required: bool = True
    attempts: int = 1
    lost: int = 2
    start_by: float | None = None
    queue: str = "default"


class Deed(NamedTuple):
    """
    What was done to a task run, which was `found` in one state and `left` in another.

    `hands` and `charge` are 1 where the token and the attempt became one more. `until` is when a lease ends or a
    dispatch is due; `word` is who claimed it, or why it was deferred.
    """

    kind: str
    found: TaskState | None
    left: TaskState
    at: float
    until: float
    hands: int = 0
    charge: int = 0
    word: str = ""


class Turn(NamedTuple):
    """What happened to a run itself; but for its end, which follows from its task runs."""

    kind: RunEvent
    found: RunState | None
    left: RunState
    at: float


@dataclass
class World:
    """What all runs have in common: the hour, and what is paused, by kind and name."""

    hour: float = 0.0
    paused: set[tuple[Paused, str]] = field(default_factory=set)


class History:
    """
    A run of tasks, given in order of definition: upstreams first.

    `name` is its id among what is paused; `span` is how far away its deadline was at its start.
    """

    def __init__(
        self, tasks: Mapping[str, Rule], *, world: World | None = None, name: str = "run", span: float | None = None
    ) -> None:
        self.tasks, self.world, self.name, self.span = tasks, world or World(), name, span
        now = self.world.hour
        self.turns = [Turn(RunEvent.CREATED, None, RunState.PENDING, now)]
        self.deeds = {
            key: [Deed(TaskEvent.CREATED, None, TaskState.PENDING if rule.upstream else TaskState.READY, now, now)]
            for key, rule in tasks.items()
        }

    # Of task runs

    def states(self) -> dict[str, TaskState]:
        """Return the state of every task run: as it was left, or once it waits no more by its rule."""
        states: dict[str, TaskState] = {}
        for key, rule in self.tasks.items():
            left, upstream = self.deeds[key][-1].left, [states[one] for one in rule.upstream]
            if left == TaskState.PENDING and all(state in TASK_TERMINAL for state in upstream):
                left = TaskState.READY if is_met(rule.when, upstream) else TaskState.SKIPPED
            states[key] = left
        return states

    def token(self, key: str) -> int:
        """Return how often a task run has changed hands."""
        return sum(deed.hands for deed in self.deeds[key])

    def attempt(self, key: str) -> int:
        """Return the attempt that is owned or due next."""
        return 1 + sum(deed.charge for deed in self.deeds[key])

    def failures_left(self, key: str) -> int:
        """Return how often it may fail and start again."""
        return self.tasks[key].attempts - 1 - len(self._since_rerun(key, TaskEvent.RETRIED))

    def losses_left(self, key: str) -> int:
        """Return how often its worker may be lost and it starts again."""
        return self.tasks[key].lost - len(self._since_rerun(key, TaskEvent.EXPIRED))

    def asked(self, key: str) -> bool:
        """Whether it was asked to stop while it was running."""
        return bool(self._since_rerun(key, TaskEvent.CANCEL_REQUESTED))

    def owner(self, key: str) -> str:
        """Return who claimed it last."""
        return self.last(key, TaskEvent.CLAIMED).word

    def lease(self, key: str) -> float:
        """Return when the lease of a running task run ends."""
        return self.last(key, TaskEvent.CLAIMED, RENEWED, LOST).until

    def due(self, key: str) -> float:
        """Return when a task run came into its state; of one that is ready when that was to be due."""
        state = self.states()[key]
        deeds = self.in_state(key, state)
        if deeds and deeds[0].found != state:
            return deeds[0].until
        return max(self.due(upstream) for upstream in self.tasks[key].upstream)

    def reason(self, key: str) -> str | None:
        """Return why a ready task run was left to another worker."""
        reasons = [deed.word for deed in self.in_state(key, TaskState.READY) if deed.kind == TaskEvent.DEFERRED]
        return reasons[-1] if reasons else None

    def dispatch(self, key: str) -> tuple[bool, bool, float]:
        """Return whether a ready task run's dispatch is held, whether it is published, and when it is due."""
        held, published, due = False, False, self.due(key)
        for deed in self.in_state(key, TaskState.READY):
            match deed.kind:
                case "held":
                    held, published = True, False
                case "let go":
                    held = False
                case "published":
                    published = True
                case "resent":
                    published = False
                case "put off" | TaskEvent.DEFERRED:
                    published, due = False, deed.until
        return held, published, due

    def is_paused(self, key: str) -> bool:
        """Whether nothing of it may be dispatched."""
        subjects = {(Paused.RUN, self.name), (Paused.WORKFLOW, "sales"), (Paused.QUEUE, self.tasks[key].queue)}
        return not subjects.isdisjoint(self.world.paused)

    def in_state(self, key: str, state: TaskState) -> list[Deed]:
        """Return the latest deeds that left it in this state."""
        others = [number for number, deed in enumerate(self.deeds[key], 1) if deed.left != state]
        return self.deeds[key][others[-1] if others else 0 :]

    def last(self, key: str, *kinds: str) -> Deed:
        """Return the latest deed of these kinds."""
        return next(deed for deed in reversed(self.deeds[key]) if deed.kind in kinds)

    def _since_rerun(self, key: str, kind: str) -> list[Deed]:
        reruns = [number for number, deed in enumerate(self.deeds[key]) if deed.kind == TaskEvent.RERUN]
        return [deed for deed in self.deeds[key][reruns[-1] if reruns else 0 :] if deed.kind == kind]

    # Of the run

    def counters(self) -> tuple[int, int, int]:
        """Return how many task runs have not ended, and how many required ones failed and were cancelled."""
        states = self.states()
        required = [state for key, state in states.items() if self.tasks[key].required]
        remaining = sum(state not in TASK_TERMINAL for state in states.values())
        return remaining, required.count(TaskState.FAILED), required.count(TaskState.CANCELLED)

    def state(self) -> RunState:
        """Return the run's state."""
        remaining, failed, cancelled = self.counters()
        if remaining:
            return self.turns[-1].left
        if failed:
            return RunState.FAILED
        return RunState.CANCELLED if cancelled or self.is_cancelled() else RunState.SUCCEEDED

    def is_cancelled(self) -> bool:
        """Whether the run as a whole was asked to stop."""
        return any(turn.kind == RunEvent.CANCEL_REQUESTED for turn in self._since_begin())

    def deadline(self) -> float | None:
        """Return the hour by which the run is to be over."""
        return None if self.span is None else self._since_begin()[0].at + self.span

    def is_overdue(self) -> bool:
        """Whether it is not over by its deadline, and nobody has cancelled it."""
        deadline = self.deadline()
        is_late = deadline is not None and deadline < self.world.hour
        return is_late and not self.state().ended and not self.is_cancelled()

    def _since_begin(self) -> list[Turn]:
        begins = [n for n, turn in enumerate(self.turns) if turn.kind in {RunEvent.CREATED, RunEvent.RERUN}]
        return self.turns[begins[-1] :]

    # As the tables tell it

    def facts(self) -> dict[str, Any]:
        """Return what the tables are to say of the run and of each of its task runs."""
        told: dict[str, Any] = {key: self._facts(key, state) for key, state in self.states().items()}
        run = (self.state(), *self.counters(), self.is_cancelled(), self.deadline())
        return {"run": run, "run events": self._run_events(), **told}

    def _facts(self, key: str, state: TaskState) -> dict[str, Any]:
        running, ready = state == TaskState.RUNNING, state == TaskState.READY
        return {
            "state": (state, self.attempt(key), self.token(key)),
            "budgets": (self.failures_left(key), self.losses_left(key)),
            # What was cancelled before it was decided is counted no further.
            "upstream": None if state == TaskState.CANCELLED else self._upstream(key),
            "asked": self.asked(key),
            "reason": self.reason(key) if ready else None,
            "lease": (self.owner(key), quarters(self.lease(key))) if running else None,
            "owed": [self._owed(key)] if ready else [],
            "events": self.events(key),
        }

    def _upstream(self, key: str) -> tuple[int, int, int]:
        states = self.states()
        upstream = [states[one] for one in self.tasks[key].upstream]
        ended = [state for state in upstream if state in TASK_TERMINAL]
        unsucceeded = len(ended) - ended.count(TaskState.SUCCEEDED)
        return len(upstream) - len(ended), ended.count(TaskState.FAILED), unsucceeded

    def _owed(self, key: str) -> tuple[Any, ...]:
        held, published, due = self.dispatch(key)
        patience = self.tasks[key].start_by
        start_by = None if patience is None else self.due(key) + patience
        return self.token(key), self.attempt(key), held, published, quarters(due), quarters(start_by)

    def events(self, key: str) -> list[tuple[Any, ...]]:
        """Return (kind, from, to, attempt, token) of everything that happened to a task run."""
        events: list[tuple[Any, ...]] = []
        state, attempt, token = None, 1, 0
        for deed in [*self.deeds[key], Deed("", self.states()[key], TaskState.PENDING, 0, 0)]:
            if deed.found and deed.found != state:
                events.append((_FOLLOWS[deed.found], state, deed.found, attempt, token))
            state, attempt, token = deed.left, attempt + deed.charge, token + deed.hands
            if deed.kind in _EVENTS:
                events.append((deed.kind, deed.found, deed.left, attempt, token))
        return events

    def _run_events(self) -> list[tuple[Any, ...]]:
        events: list[tuple[Any, ...]] = []
        state = None
        for kind, found, left, _ in self.turns:
            if found != state:
                events.append((found, state, found))
            events.append((kind, found, left))
            state = left
        return events if self.state() == state else [*events, (self.state(), state, self.state())]


def is_met(when: When, upstream: Sequence[TaskState]) -> bool:
    """Whether a task runs after upstreams that have ended like this."""
    failed = TaskState.FAILED in upstream
    match when:
        case When.ALL_SUCCEEDED:
            return all(state == TaskState.SUCCEEDED for state in upstream)
        case When.NONE_FAILED:
            return not failed
        case When.ANY_FAILED:
            return failed
        case When.ALL_DONE:
            return True


def quarters(hours: float | None) -> float | None:
    """Return hours to the next quarter: what is done takes seconds."""
    return None if hours is None else round(hours * 4) / 4
