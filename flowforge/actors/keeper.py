"""The lease keeper: renews all held leases in one statement, ends attempts whose time is over, returns idle claims."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from flowforge import insights, transitions
from flowforge.actors import ledger
from flowforge.actors.execution import ending_of, interrupt
from flowforge.actors.holding import Phase
from flowforge.errors import AttemptCancelled, AttemptTimeout
from flowforge.loop import Loop
from flowforge.transitions import Release, Renewal

if TYPE_CHECKING:
    from flowforge.actors.holding import Attempt
    from flowforge.actors.runtime import Runtime

logger = logging.getLogger(__name__)

_TICK = 0.025  # seconds between looks while anything is held
_IDLE_TICK = 0.05
_UNSTARTED = 0.05  # seconds that a claimed attempt may wait for a thread
_PROBE = 2.0  # seconds that logging may take after an attempt was interrupted
_GRACE = 5.0  # seconds that an attempt has to end after its time was over, before its thread is given up
_INHERIT_EVERY = 1.0  # seconds between looks at what processes of this machine that are gone have left
_ASK_EVERY = 1.0  # seconds between questions whether anything that runs was cancelled, or taken away
_TOLD = "task {0.task.key!r} was told to stop, because it was cancelled or its lease was lost"
_LATE = "task {0.task.key!r} ran longer than its timeout of {0.known.stored.timeout:g} s"
_LONGEST_RENEWAL = 20.0  # seconds
_SLACK = 10.0  # seconds past its timeout for which the database still lets an attempt be renewed


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
        self._ask_at = self._inherit_at = 0.0
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
        if any(time.monotonic() >= attempt.renew_at for attempt in holding.all()):
            self._renew(holding.all())
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _ASK_EVERY
            self._ask(holding.running())
        if time.monotonic() >= self._inherit_at:
            self._inherit_at = time.monotonic() + _INHERIT_EVERY
            self._inherit()

    def _renew(self, attempts: list[Attempt]) -> None:
        """Renew all leases, for one of which it is time; a connection that does not answer is replaced in that time."""
        database, asked_at = self._runtime.database, time.monotonic()
        for attempt in attempts:
            attempt.renew_at = asked_at + attempt.lease / 3
        with database.limited(min(_LONGEST_RENEWAL, *(attempt.lease / 3 for attempt in attempts))):
            answers = database.perform(transitions.renew, [_renewal(attempt) for attempt in attempts])
        for attempt in attempts:
            answer = answers[attempt.claim.id, attempt.claim.token]
            attempt.renewed_at = attempt.renewed_at if answer == "lost" else asked_at
            if answer == "busy":
                attempt.renew_at = 0.0  # at the next look: once the guard is given up, `expire` may be as quick
            self._heed(attempt, lost=answer == "lost", cancel=answer == "cancel")

    def _ask(self, attempts: list[Attempt]) -> None:
        """Learn soon of what was cancelled or taken away: until the next renewal is a long time for who waits."""
        with self._runtime.database.limited(_ASK_EVERY * 2):
            ids = [attempt.claim.id for attempt in attempts]
            orders = self._runtime.database.perform(insights.orders, ids) if ids else {}
        for attempt in attempts:
            token, cancel = orders.get(attempt.claim.id, (-1, False))
            lost = token != attempt.claim.token
            self._heed(attempt, lost=lost, cancel=cancel and not lost)

    def _inherit(self) -> None:
        """Hand back what processes that are gone had claimed and not begun, and end the leases of what they had."""
        database = self._runtime.database
        for left in ledger.of_the_gone(self._runtime.ledgers):
            releases, owned = [Release(id_, token) for id_, token in left.waiting], left.begun + left.waiting
            answers = database.perform(transitions.hand_back, releases, owner=left.owner) if releases else {}
            returned = [became for became in answers.values() if became == "ready"]
            # Of those that had not begun only who was asked to cancel is not handed back, and still owned.
            lost = database.perform(transitions.lose, left.owner, owned) if owned else []
            logger.warning("worker.inherited owner=%s handed_back=%d lost=%d", left.owner, len(returned), len(lost))
            self._runtime.runway.wake()

    def _heed(self, attempt: Attempt, *, lost: bool, cancel: bool) -> None:
        """Tell the user's code to stop. What has ended meanwhile looks lost too: its token is spent."""
        if attempt.phase is not Phase.RUNNING or attempt.stopping or not (lost or cancel):
            return
        attempt.stopping, attempt.told_at = True, time.monotonic()
        word = "lost" if lost else "cancel"
        logger.warning("task_run.lease_%s task_run=%s token=%d", word, attempt.claim.id, attempt.claim.token)

    def _check_time(self, attempt: Attempt) -> None:
        """Interrupt an attempt that is late, or does not heed that it is to stop; then give its thread up."""
        now, half = time.monotonic(), self._runtime.settings.cancel_grace / 2
        told = attempt.told_at is not None and now >= attempt.told_at + half
        if attempt.reason is not None:
            if now >= attempt.interrupted_at + (half if isinstance(attempt.reason, AttemptCancelled) else _GRACE):
                self._give_up(attempt)
        elif told or now >= attempt.deadline:
            reason = AttemptCancelled(_TOLD.format(attempt)) if told else AttemptTimeout(_LATE.format(attempt))
            interrupt(attempt, reason)
            logger.warning("task_run.interrupted task_run=%s reason=%s", attempt.claim.id, attempt.reason)
            self._probes.append(_Probe(now + _PROBE))

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
            assert attempt.reason is not None
            self._runtime.committer.put(attempt, ending_of(attempt, attempt.reason))
            self._runtime.lost_threads += 1
            self._runtime.retire(f"task {attempt.task.key!r} does not return after it was told to stop")


def _renewal(attempt: Attempt) -> Renewal:
    claim = attempt.claim
    return Renewal(claim.id, claim.token, attempt.lease, span=attempt.known.stored.timeout + _SLACK)
