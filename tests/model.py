"""
The rules in plain Python: the oracle of the stateful tests.

What can happen to a run, one task run at a time: each answers what the verb of that name does. What follows from it is
derived in `tests.model_history`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.states import RUN_TERMINAL, TASK_TERMINAL, Paused, RunEvent, RunState, TaskEvent, TaskState, When
from tests.model_history import HELD, LOST, PUT_OFF, RENEWED, Deed, History, Rule, Turn, World, is_met

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ModelRun", "Rule", "World"]

_A_MOMENT = 0.001
_GIVEN_UP = frozenset({TaskEvent.RETRIED, TaskEvent.HANDED_BACK})


class ModelRun(History):
    """A run of tasks, and the verbs; where a token is left out, it is the present one."""

    def claim(self, key: str, token: int | None = None, *, owner: str = "worker-1", lease: float = 1.0) -> bool:
        """Own what is ready at this token; what was given to this owner is given again."""
        token = self.token(key) if token is None else token
        state, since = self.states()[key], self.token(key) - token
        if state == TaskState.READY and not since and self.is_paused(key):
            self.do(key, HELD)
        elif state == TaskState.READY and not since:
            if self.state() == RunState.PENDING:
                self._turn(RunEvent.STARTED, RunState.RUNNING)
            self.do(key, TaskEvent.CLAIMED, TaskState.RUNNING, hands=1, until=self.world.hour + lease, word=owner)
            return True
        return state == TaskState.RUNNING and since == 1 and self.owner(key) == owner

    def renew(self, key: str, token: int, *, lease: float, span: float) -> str:
        """Own it for longer, but for no longer than `span` from its start."""
        if not self._owns(key, token):
            return "lost"
        started = self.last(key, TaskEvent.CLAIMED).at
        self.do(key, RENEWED, until=min(self.world.hour + lease, started + span))
        return "cancel" if self.asked(key) else "renewed"

    def lose(self, key: str, token: int, *, owner: str) -> bool:
        """End the lease of an owner that is gone."""
        lost = self._owns(key, token) and self.owner(key) == owner
        if lost:
            self.do(key, LOST, until=min(self.lease(key), self.world.hour - _A_MOMENT))
        return lost

    def finish(self, key: str, state: TaskState, token: int | None = None) -> str:
        """End what is running at this token; what was asked to stop ends cancelled."""
        token = self.token(key) if token is None else token
        if self._owns(key, token):
            self._end(key, TaskState.CANCELLED if self.asked(key) else state)
            return "ended"
        self._refuse(key, token)
        now = self.states()[key]
        as_told = now == state or (now == TaskState.CANCELLED and self.asked(key))
        return "ended before" if as_told and token == self.token(key) else "refused"

    def retry(self, key: str, token: int, delay: float) -> str | None:
        """Make it ready again, at the cost of an attempt and a failure."""
        if not self._owns(key, token):
            return self._refuse_release(key, token)
        if not self.asked(key) and not self.failures_left(key):
            return "exhausted"
        return self._release(key, TaskEvent.RETRIED, charge=1, delay=delay)

    def hand_back(self, key: str, token: int, delay: float, *, heir_of: str | None = None) -> str | None:
        """Make it ready again, at no cost; an heir does so only with what was that owner's."""
        if not self._owns(key, token):
            return None if heir_of else self._refuse_release(key, token)
        if heir_of and self.owner(key) != heir_of:
            return None
        return self._release(key, TaskEvent.HANDED_BACK, charge=0, delay=delay)

    def _release(self, key: str, kind: TaskEvent, *, charge: int, delay: float) -> str:
        if self.asked(key):
            return "cancel"
        self.do(key, kind, TaskState.READY, hands=1, charge=charge, until=self.world.hour + delay)
        return "ready"

    def defer(self, key: str, token: int, reason: str, delay: float) -> bool:
        """Leave it to another worker; the same reason is told once."""
        if self.states()[key] != TaskState.READY or token != self.token(key):
            return False
        kind = PUT_OFF if self.reason(key) == reason else TaskEvent.DEFERRED
        self.do(key, kind, until=self.world.hour + delay, word=reason)
        return True

    def expire(self, key: str) -> str | None:
        """Take it from an owner whose lease is over."""
        if self.states()[key] != TaskState.RUNNING or self.lease(key) > self.world.hour:
            return None
        if self.asked(key) or not self.losses_left(key):
            self._end(key, TaskState.CANCELLED if self.asked(key) else TaskState.FAILED, hands=1)
            return "cancel" if self.asked(key) else "exhausted"
        self.do(key, TaskEvent.EXPIRED, TaskState.READY, hands=1, charge=1)
        return "ready"

    def cut_off(self, key: str, token: int) -> bool:
        """End what goes on though it was asked to stop, and take its token."""
        return self._take_and_end(key, token, TaskState.RUNNING, TaskState.CANCELLED)

    def give_up(self, key: str, token: int) -> bool:
        """Fail what no worker has started in time."""
        return self._take_and_end(key, token, TaskState.READY, TaskState.FAILED)

    def _take_and_end(self, key: str, token: int, leaves: TaskState, ending: TaskState) -> bool:
        ends = self.states()[key] == leaves and token == self.token(key)
        if ends:
            self._end(key, ending, hands=1)
        return ends

    def cancel(
        self, keys: Iterable[str] | None = None, *, now: bool = False, overdue: bool = False
    ) -> tuple[bool, dict[str, str]]:
        """
        Cancel these task runs, or all but the clean-ups of a run that has begun, or if it is overdue.

        Return whether the run had not ended, and what became of each.
        """
        states, run, named = self.states(), self.state(), set(keys or ())
        became = {key: states[key].value for key in named}
        if run in RUN_TERMINAL or (overdue and not self.is_overdue()):
            return False, became
        if keys is None:
            self.world.paused.discard((Paused.RUN, self.name))
            named = {key for key, rule in self.tasks.items() if now or run == "pending" or rule.when != When.ALL_DONE}
            if not self.is_cancelled():
                self._turn(RunEvent.CANCEL_REQUESTED, run)
        for key in reversed(list(self.tasks)):  # downstream first: each is found as it was before
            if key in named and states[key] not in TASK_TERMINAL:
                became[key] = self._cancel(key)
        return True, became

    def _cancel(self, key: str) -> str:
        if self.states()[key] != TaskState.RUNNING:
            self._end(key, TaskState.CANCELLED, hands=1)
            return "cancelled"
        if not self.asked(key):
            self.do(key, TaskEvent.CANCEL_REQUESTED)
        return "asked"

    def rerun(self, keys: Iterable[str] = ()) -> dict[str, str] | None:
        """Carry these, or what failed or was cancelled, out again, and all that follows; None if that is refused."""
        again, run = self._again(set(keys)), self.state()
        if run not in RUN_TERMINAL or not again or "unwanted" in again.values():
            return None
        for key in reversed(again):  # downstream first: each is found as it was before
            self.do(key, TaskEvent.RERUN, TaskState(again[key]), hands=1, charge=self._has_ended_attempt(key))
        self.turns.append(Turn(RunEvent.RERUN, run, RunState.RUNNING, self.world.hour))
        return again

    def _again(self, chosen: set[str]) -> dict[str, str]:
        states, again = self.states(), dict[str, str]()
        chosen = chosen or {key for key, state in states.items() if state in {TaskState.FAILED, TaskState.CANCELLED}}
        for key, rule in self.tasks.items():
            if not again.keys().isdisjoint(rule.upstream):
                again[key] = "pending"
            elif key in chosen:
                met = not rule.upstream or is_met(rule.when, [states[one] for one in rule.upstream])
                again[key] = "ready" if met else "unwanted"
        return again

    def _has_ended_attempt(self, key: str) -> int:
        """Return 1 if the present attempt was begun and has ended, so that the next is another; else 0."""
        return int(any(deed.found == TaskState.RUNNING for deed in self.in_state(key, self.states()[key])))

    def pause(self) -> bool:
        """Pause the run, unless it is paused or has ended."""
        if self.state() in RUN_TERMINAL or (Paused.RUN, self.name) in self.world.paused:
            return False
        self.world.paused.add((Paused.RUN, self.name))
        self._turn(RunEvent.PAUSED, self.state())
        return True

    def resume(self) -> bool:
        """Pause the run no longer."""
        if (Paused.RUN, self.name) not in self.world.paused:
            return False
        self.world.paused.remove((Paused.RUN, self.name))
        if self.state() not in RUN_TERMINAL:
            self._turn(RunEvent.RESUMED, self.state())
        return True

    def do(
        self,
        key: str,
        kind: str,
        left: TaskState | None = None,
        *,
        until: float | None = None,
        hands: int = 0,
        charge: int = 0,
        word: str = "",
    ) -> None:
        """Note what was done to a task run, which is left as it was found if nothing else is said."""
        found, now = self.states()[key], self.world.hour
        until = now if until is None else until
        self.deeds[key].append(Deed(kind, found, left or found, now, until, hands, charge, word))

    def _owns(self, key: str, token: int) -> bool:
        return self.states()[key] == TaskState.RUNNING and token == self.token(key)

    def _end(self, key: str, state: TaskState, *, hands: int = 0) -> None:
        self.do(key, TaskEvent(state.value), state, hands=hands)

    def _refuse(self, key: str, token: int) -> None:
        if token < self.token(key):
            self.do(key, TaskEvent.REFUSED)

    def _refuse_release(self, key: str, token: int) -> None:
        """Refuse a release; but not a second time the one by which this token was given up, whose reply was lost."""
        hands = [deed.kind for deed in self.deeds[key] if deed.hands]
        if token >= len(hands) or hands[token] not in _GIVEN_UP:
            self._refuse(key, token)

    def _turn(self, kind: RunEvent, left: RunState) -> None:
        self.turns.append(Turn(kind, self.state(), left, self.world.hour))
