"""What workers do: with messages and claims of any age."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from flowforge import transitions
from flowforge.states import TaskState
from flowforge.transitions import Release, Renewal
from tests.integration.acts.known import HOUR, OWNERS, Act, Known, is_answer, outcome, some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from flowforge.transitions import Claim, Dispatch
    from tests.integration.acts.known import Draw

ENDINGS = st.sampled_from([TaskState.SUCCEEDED, TaskState.SUCCEEDED, TaskState.FAILED, TaskState.SKIPPED])
REASONS = st.sampled_from(["no such task", "no such workflow"])
# In hours: none of their sums, nor with a `start_by`, is whole, as the hours are that pass.
LEASES = st.sampled_from([0.5, 2.5])
SPANS = st.sampled_from([1.5, 9.5])
DELAYS = st.sampled_from([0, 0.5, 1.5])


class Workers(Known):
    """The verbs that a worker calls."""

    def claim(self, data: Draw, messages: Sequence[Dispatch] = ()) -> Act:
        """Claim these messages, or any: each may have been claimed before."""
        chosen = messages or some(data, self.messages)
        owner, lease = data.draw(st.sampled_from(OWNERS)), data.draw(LEASES)

        def model() -> dict[Any, Any]:
            claimed: dict[Any, Any] = {}
            for one in chosen:
                run, key = self.where[one.task_run_id]
                if run.claim(key, one.token, owner=owner, lease=lease):
                    claimed[one.task_run_id, one.token + 1] = run.attempt(key), run.failures_left(key)
            return claimed

        return Act(
            lambda connection: transitions.claim(connection, chosen, owner=owner, lease=lease * HOUR),
            model,
            lambda claims: {(one.id, one.token): (one.attempt, one.failures_left) for one in claims},
            lambda claims: self.claims.extend(one for one in self.ordered(claims) if one not in self.claims),
        )

    def defer(self, data: Draw) -> Act:
        """Leave messages to other workers."""
        chosen = some(data, self.messages, unique_by=lambda one: (one.task_run_id, one.token))
        reasons, delay = [(one, data.draw(REASONS)) for one in chosen], data.draw(DELAYS)

        def defer(message: Dispatch, reason: str) -> bool:
            run, key = self.where[message.task_run_id]
            return run.defer(key, message.token, reason, delay)

        return Act(
            lambda connection: transitions.defer(connection, reasons, delay=delay * HOUR),
            lambda: {one.task_run_id for one, reason in reasons if defer(one, reason)},
            set,
        )

    def finish(self, data: Draw, claims: Sequence[Claim] = ()) -> Act:
        """Report how these attempts ended, or any: each may have been reported before, or be refused."""
        chosen = claims or self._claimed(data)
        outcomes = [outcome(one.id, one.run_id, one.token, data.draw(ENDINGS)) for one in chosen]

        def model() -> set[tuple[UUID, str]]:
            first = {(one.id, one.token): one for one in reversed(outcomes)}
            words: dict[UUID, set[str]] = {}
            for one in self._late_first(first.values()):
                run, key = self.where[one.id]
                words.setdefault(one.id, set()).add(run.finish(key, one.state, one.token))
            return {(id_, word) for id_, told in words.items() for word in told & {"ended"} or told}

        return Act(
            lambda connection: transitions.finish(connection, outcomes),
            model,
            lambda endings: {(one.id, one.became) for one in endings if is_answer(one, outcomes)},
        )

    def retry(self, data: Draw) -> Act:
        """Report failures after which another attempt may follow."""
        return self._release(data, transitions.retry, lambda run, *about: run.retry(*about))

    def hand_back(self, data: Draw) -> Act:
        """Give back what was not carried out, or do so for an owner who is gone."""
        owner = data.draw(st.sampled_from([None, *OWNERS]))
        verb = partial(transitions.hand_back, owner=owner)
        return self._release(data, verb, lambda run, *about: run.hand_back(*about, heir_of=owner))

    def _release(self, data: Draw, verb: Callable[..., Any], model: Callable[..., str | None]) -> Act:
        chosen = self._claimed(data, unique_by=lambda one: (one.id, one.token))
        releases = [Release(one.id, one.token, data.draw(DELAYS) * HOUR) for one in chosen]

        def answers() -> dict[UUID, str]:
            places = [(one, *self.where[one.id]) for one in self._late_first(releases)]
            words = {one.id: model(run, key, one.token, one.delay / HOUR) for one, run, key in places}
            return {id_: word for id_, word in words.items() if word}

        released = frozenset((one.id, one.token) for one in releases)
        return Act(lambda connection: verb(connection, releases), answers, releases=released)

    def renew(self, data: Draw) -> Act:
        """Hold on to what was claimed."""
        chosen = self._claimed(data, unique_by=lambda one: (one.id, one.token))
        held = [Renewal(one.id, one.token, data.draw(LEASES) * HOUR, data.draw(SPANS) * HOUR) for one in chosen]

        def renew(one: Renewal) -> str:
            run, key = self.where[one.id]
            return run.renew(key, one.token, lease=one.lease / HOUR, span=one.span / HOUR)

        return Act(
            lambda connection: transitions.renew(connection, held),
            lambda: {(one.id, one.token): renew(one) for one in held},
        )

    def lose(self, data: Draw) -> Act:
        """Say that an owner is gone, with all that it owned."""
        owner = data.draw(st.sampled_from(OWNERS))
        owned = [(one.id, one.token) for one in self._claimed(data, unique_by=lambda one: (one.id, one.token))]

        def lose(id_: UUID, token: int) -> bool:
            run, key = self.where[id_]
            return run.lose(key, token, owner=owner)

        return Act(
            lambda connection: transitions.lose(connection, owner, owned),
            lambda: {id_ for id_, token in owned if lose(id_, token)},
            set,
        )

    def guard(self, data: Draw) -> Act:
        """Ask, under a lock, whether a task run is still owned."""
        claimed, *_ = self._claimed(data)
        return Act(
            lambda connection: transitions.guard(connection, claimed.id, claimed.token),
            lambda: self.is_owned(claimed.id, claimed.token),
        )

    def _claimed(self, data: Draw, **options: Any) -> list[Claim]:
        """Draw some claims: of those that count, or of all that ever were."""
        return some(data, (data.draw(st.booleans()) and self.live()) or self.claims, **options)

    def _late_first(self, reports: Iterable[Any]) -> list[Any]:
        """Return what is refused before what is accepted, as the events are to tell it."""
        return sorted(reports, key=lambda one: self.is_owned(one.id, one.token))
