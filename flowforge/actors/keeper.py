"""The lease keeper: renews all held leases in one statement, ends attempts whose time is over, returns idle claims."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from flowforge import transitions
from flowforge.actors.execution import ending_of, time_out
from flowforge.actors.holding import Phase
from flowforge.errors import AttemptTimeout
from flowforge.loop import Loop

if TYPE_CHECKING:
    from flowforge.actors.holding import Attempt
    from flowforge.actors.runtime import Runtime

logger = logging.getLogger(__name__)

_TICK = 0.025  # seconds between looks while anything is held
_IDLE_TICK = 0.05
_UNSTARTED = 0.05  # seconds that a claimed attempt may wait for a thread
_PROBE = 2.0  # seconds that logging may take after an attempt was interrupted
_GRACE = 5.0  # seconds that an attempt has to end after its time was over, before its thread is given up


class _Probe:
    """A thread that takes the locks of `logging`, as user code does that logs, and should be done by a given moment."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.thread = threading.Thread(target=_take_locks_of_logging, daemon=True)
        self.thread.start()


def _take_locks_of_logging() -> None:
    for handler in logging.getLogger().handlers:
        handler.acquire()
        handler.release()
    logging.getLogger("flowforge.task")  # takes the lock of the module


class Keeper:
    """Looks after the attempts while their threads are busy with user code."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._renew_at = 0.0
        self._probes: list[_Probe] = []
        self.loop = Loop("flowforge-keeper", self.turn)

    def turn(self) -> None:
        """Look once at everything that is held."""
        holding = self._runtime.holding
        time.sleep(_TICK if len(holding) else _IDLE_TICK)
        if late := holding.withdraw(older_than=_UNSTARTED):
            self._runtime.committer.hand_back(late)
        for attempt in holding.running():
            self._check_time(attempt)
        self._check_probes()
        if len(holding) and time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + self._runtime.settings.lease / 3
            self._renew(holding.all())

    def _renew(self, attempts: list[Attempt]) -> None:
        held = [(attempt.claim.id, attempt.claim.token) for attempt in attempts]
        database, lease, asked_at = self._runtime.database, self._runtime.settings.lease, time.monotonic()
        with database.limited(lease / 3):  # a connection that does not answer is to be replaced before the lease ends
            answers = database.perform(transitions.renew, held, lease=lease)
        for attempt in attempts:
            answer = answers[attempt.claim.id, attempt.claim.token]
            attempt.renewed_at = attempt.renewed_at if answer == "lost" else asked_at
            # One that ended meanwhile answers "lost" as well: its token is spent, its outcome committed.
            if answer in {"lost", "cancel"} and attempt.phase is Phase.RUNNING:
                attempt.stopping = True
                logger.warning("task_run.lease_%s task_run=%s token=%d", answer, attempt.claim.id, attempt.claim.token)

    def _check_time(self, attempt: Attempt) -> None:
        now = time.monotonic()
        if now < attempt.deadline:
            return
        if not attempt.timed_out:
            logger.warning("task_run.timed_out task_run=%s timeout=%g", attempt.claim.id, attempt.known.stored.timeout)
            time_out(attempt)
            self._probes.append(_Probe(now + _PROBE))
        elif now >= attempt.deadline + _GRACE:
            self._give_up(attempt)

    def _check_probes(self) -> None:
        """
        Have this process replaced when an exception that was raised into user code left logging's locks held.

        Raising into a thread may do that: every thread that logs would hang from then on.
        """
        for probe in self._probes:
            if probe.thread.is_alive() and time.monotonic() > probe.until:
                self._runtime.retire("a lock of logging is held since an attempt was interrupted")
        self._probes = [one for one in self._probes if one.thread.is_alive() and time.monotonic() <= one.until]

    def _give_up(self, attempt: Attempt) -> None:
        """End an attempt whose thread does not return, and have this process replaced: its thread is lost."""
        if attempt.move(Phase.RUNNING, Phase.OVER):
            self._runtime.committer.put(attempt, ending_of(attempt, AttemptTimeout()))
            self._runtime.lost_threads += 1
            self._runtime.retire(f"task {attempt.task.key!r} does not return after its timeout")
