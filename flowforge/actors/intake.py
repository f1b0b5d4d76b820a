"""From dispatches to attempts: what this code cannot run is deferred, the rest is claimed and given its inputs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowforge import insights, transitions
from flowforge.actors.holding import Attempt
from flowforge.db import GONE
from flowforge.transitions import Dispatch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from flowforge.actors.runtime import Runtime
    from flowforge.insights import KnownTask
    from flowforge.transitions import Claim

logger = logging.getLogger(__name__)

#: Seconds after which a deferred dispatch is offered again.
_DEFER = 5.0


class Intake:
    """Takes in what was popped from the runway."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[UUID, KnownTask] = {}  # definitions never change, so that what was read stays true

    def take_in(self, popped: Sequence[bytes]) -> list[Attempt]:
        """Return an attempt for each dispatch that this process now owns."""
        dispatches = [dispatch for dispatch in map(Dispatch.read, popped) if dispatch]
        self._learn(dispatches)
        fit = self._defer_unfit([dispatch for dispatch in dispatches if not self._is_double(dispatch)])
        attempts = self._claim(fit)
        try:
            self._give_results(attempts)
        except BaseException:
            # Owned, but not to be carried out: given back, so that they need not wait for their lease to end.
            self._runtime.committer.hand_back(attempts)
            raise
        self._runtime.holding.add(attempts)
        return attempts

    def _is_double(self, dispatch: Dispatch) -> bool:
        """Whether this process has claimed that very dispatch already: it was sent twice."""
        return self._runtime.holding.holds(dispatch.task_run_id, dispatch.token + 1)

    def _learn(self, dispatches: Sequence[Dispatch]) -> None:
        unknown: dict[UUID, set[UUID]] = {}
        for dispatch in dispatches:
            if dispatch.task_id not in self._known:
                unknown.setdefault(dispatch.organization_id, set()).add(dispatch.task_id)
        for organization, ids in unknown.items():
            self._known |= {known.id: known for known in insights.known_tasks(organization, ids)}

    def _defer_unfit(self, dispatches: Sequence[Dispatch]) -> list[Dispatch]:
        judged = [(one, self._unfit(one)) for one in dispatches]
        if unfit := [(dispatch, reason) for dispatch, reason in judged if reason]:
            self._runtime.database.perform(transitions.defer, unfit, delay=_DEFER)
            logger.warning("task_run.deferred count=%d reason=%s", len(unfit), unfit[0][1])
        return [dispatch for dispatch, reason in judged if not reason]

    def _unfit(self, dispatch: Dispatch) -> str | None:
        known = self._known.get(dispatch.task_id)
        inputs = known.stored.inputs if known else None
        return self._runtime.registry.cannot_run(dispatch.workflow, dispatch.key, inputs)

    def _claim(self, dispatches: Sequence[Dispatch]) -> list[Attempt]:
        if not dispatches:
            return []
        ledger, by_id = self._runtime.holding.ledger, {dispatch.task_run_id: dispatch for dispatch in dispatches}
        asked = [(id_, dispatch.token + 1) for id_, dispatch in by_id.items()]
        ledger.enter(asked)
        claims: dict[UUID, Claim] = {}
        try:
            claims = {claim.id: claim for claim in self._claims(list(by_id.values()))}
        finally:
            ledger.leave(key for key in asked if key[0] not in claims)
        # In any order; what was dispatched first is to start first.
        return [self._attempt(dispatch, claims[id_]) for id_, dispatch in by_id.items() if id_ in claims]

    def _claims(self, dispatches: Sequence[Dispatch]) -> list[Claim]:
        """Claim; and once more if the connection was lost, because what this owner was given then it is given again."""
        runtime, leases = self._runtime, [self._lease(dispatch) for dispatch in dispatches]

        def claim() -> list[Claim]:
            return runtime.database.perform(transitions.claim, dispatches, owner=runtime.owner, lease=leases)

        try:
            return claim()
        except GONE:
            return claim()

    def _lease(self, dispatch: Dispatch) -> float:
        return self._known[dispatch.task_id].stored.lease or self._runtime.settings.lease

    def _attempt(self, dispatch: Dispatch, claim: Claim) -> Attempt:
        task = self._runtime.registry.task(dispatch.workflow, dispatch.key)
        assert task is not None  # or it would have been deferred
        return Attempt(claim, self._known[claim.task_id], task, lease=self._lease(dispatch))

    def _give_results(self, attempts: Sequence[Attempt]) -> None:
        """Read what the attempts need of their upstreams, for all of them at once."""
        pairs = [(one.claim.run_id, task_id) for one in attempts for task_id in one.known.data_upstream]
        results = insights.upstream_results(pairs) if pairs else {}
        for attempt in attempts:
            keys = attempt.known.data_upstream.items()
            given = {key: (attempt.claim.run_id, task_id) for task_id, key in keys}
            attempt.results = {key: results[pair] for key, pair in given.items() if pair in results}
