"""
What this process owns: attempts that wait for a thread, run, or are over and not yet committed.

The room for more is counted here: free threads, and a little ahead of them while tasks are short.
"""

from __future__ import annotations

import threading
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from flowforge.actors.ledger import Ledger
    from flowforge.errors import AttemptCancelled, AttemptTimeout
    from flowforge.insights import KnownTask
    from flowforge.transitions import Claim
    from flowforge.workflow import Task

#: Seconds of work, at the recent pace, that may be claimed ahead of the threads.
_AHEAD = 0.02
_MOST_AHEAD = 4  # attempts for each thread
_MOST_OVER = 128  # attempts that are over and not committed: with more, leases could not be renewed in time
_WEIGHT = 0.1  # of the latest duration in the recent pace


class Phase(Enum):
    """Where an attempt is in this process."""

    WAITING = auto()
    RUNNING = auto()
    OVER = auto()


class Attempt:
    """A claimed task run in this process. Its lock guards the phase, and whether an exception may be raised into it."""

    def __init__(self, claim: Claim, known: KnownTask, task: Task[..., Any], *, lease: float) -> None:
        self.claim, self.known, self.task = claim, known, task
        #: Seconds that it is owned without a renewal.
        self.lease = lease
        #: Upstream key -> parsed result, of those that succeeded.
        self.results: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.phase = Phase.WAITING
        self.claimed_at = time.monotonic()
        #: The last moment from which the lease is known to run.
        self.renewed_at = self.claimed_at
        self.started_at = 0.0
        self.renew_at = self.claimed_at + lease / 3
        #: Whether the user's code should stop: cancelled, out of time, lease lost.
        self.stopping = False
        #: Since when it is known that it was cancelled, or lost, on the monotonic clock.
        self.told_at: float | None = None
        #: Why it was interrupted, and when.
        self.reason: AttemptCancelled | AttemptTimeout | None = None
        self.interrupted_at = 0.0
        #: Ends the user's code from another thread; there only while user code runs and may be interrupted.
        self.interrupt: Callable[[type[BaseException]], None] | None = None

    @property
    def key(self) -> tuple[UUID, int]:
        """The task run and the token at which it is owned."""
        return self.claim.id, self.claim.token

    @property
    def deadline(self) -> float:
        """The moment, on the monotonic clock, at which a running attempt has used up its time."""
        return self.started_at + self.known.stored.timeout

    def move(self, leaves: Phase, to: Phase) -> bool:
        """Change the phase if it is still the one expected; say whether it was. Of two callers one gets true."""
        with self.lock:
            moved = self.phase is leaves
            self.phase = to if moved else self.phase
            return moved


class Holding:
    """The attempts of this process, and the room for more."""

    def __init__(self, threads: int, ledger: Ledger) -> None:
        self._threads, self.ledger = threads, ledger
        # By token too: one whose lease was lost may still run here when its successor is claimed.
        self._attempts: dict[tuple[UUID, int], Attempt] = {}
        self._changed = threading.Condition()
        self._busy = 0
        self._typical = 1.0
        self._closed = False

    def holds(self, task_run_id: UUID, token: int) -> bool:
        """Whether a task run is held at this token."""
        return (task_run_id, token) in self._attempts

    def __len__(self) -> int:
        """Return the number of attempts held."""
        return len(self._attempts)

    @property
    def closed(self) -> bool:
        """Whether nothing more is taken in."""
        return self._closed

    def close(self) -> None:
        """Take nothing more in."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def room(self, seconds: float) -> int:
        """Wait up to `seconds` for room; return for how many attempts there is, 0 once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._room() > 0, seconds)
            return 0 if self._closed else max(0, self._room())

    def _room(self) -> int:
        ahead = min(int(self._threads * _AHEAD / self._typical), _MOST_AHEAD * self._threads)
        return min(self._threads + ahead - self._busy, (1 + _MOST_AHEAD) * self._threads + _MOST_OVER - len(self))

    def occupy(self) -> None:
        """Count a thread as taken: by a claimed attempt, or by an actor of the user's own."""
        with self._changed:
            self._busy += 1

    def vacate(self, seconds: float | None = None) -> None:
        """Count a thread as free again, after an attempt of that many seconds."""
        with self._changed:
            self._busy -= 1
            if seconds is not None:
                self._typical += _WEIGHT * (max(seconds, 0.0001) - self._typical)
            self._changed.notify_all()

    def wait_idle(self, *, lost: int, seconds: float) -> bool:
        """Wait up to `seconds` until no thread is busy, but for those that are lost; say whether that came true."""
        with self._changed:
            return self._changed.wait_for(lambda: self._busy <= lost, seconds)

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Hold attempts that were just claimed."""
        for attempt in attempts:
            self.occupy()
            self._attempts[attempt.key] = attempt

    def begin(self, attempt: Attempt) -> bool:
        """Start an attempt, unless it was withdrawn."""
        attempt.started_at = time.monotonic()
        if not attempt.move(Phase.WAITING, Phase.RUNNING):
            return False
        self.ledger.begin(attempt.key)
        return True

    def end(self, attempt: Attempt) -> bool:
        """End a running attempt; it is still held until its outcome is committed. False if another ended it."""
        if not attempt.move(Phase.RUNNING, Phase.OVER):
            return False
        self.vacate(time.monotonic() - attempt.started_at)
        return True

    def withdraw(self, *, older_than: float = 0.0) -> list[Attempt]:
        """Take back attempts that have waited for a thread longer than that many seconds."""
        before = time.monotonic() - older_than
        late = [one for one in self.all() if one.phase is Phase.WAITING and one.claimed_at <= before]
        withdrawn = [attempt for attempt in late if attempt.move(Phase.WAITING, Phase.OVER)]
        for _ in withdrawn:
            self.vacate()
        return withdrawn

    def drop(self, attempts: Iterable[Attempt]) -> None:
        """Hold attempts no longer: their outcome is committed, or another owns them."""
        keys = [attempt.key for attempt in attempts]
        for key in keys:
            self._attempts.pop(key, None)
        self.ledger.leave(keys)
        with self._changed:
            self._changed.notify_all()

    def all(self) -> list[Attempt]:
        """Return the attempts held now."""
        return list(self._attempts.values())

    def running(self) -> list[Attempt]:
        """Return the attempts whose user code runs now."""
        return [attempt for attempt in self.all() if attempt.phase is Phase.RUNNING]
