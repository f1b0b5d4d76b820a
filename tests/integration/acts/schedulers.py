"""What schedulers do: publish what is due, and find and end what is overdue; also what they found long ago."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flowforge import insights, models, transitions
from flowforge.states import TaskEvent, TaskState
from flowforge.transitions import Mark
from tests.integration.acts.known import HOUR, LIMIT, Act, Known, is_answer, outcome, some
from tests.model import ModelRun
from tests.model_history import HELD, PUBLISHED, RESENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from flowforge.transitions import Outcome
    from tests.integration.acts.known import Draw
    from tests.model_history import Deed

GRACE = 0.5  # hours


class Schedulers(Known):
    """The duties of a scheduler, and what each has to find first."""

    def take(self, queue: str) -> Act:
        """Publish what is due of a queue."""

        def model() -> set[tuple[UUID, int, int]]:
            ready = list(self.in_state(TaskState.READY))
            due = [one for one in ready if one[1].tasks[one[2]].queue == queue and _is_due(*one[1:])]
            for _, run, key in due:
                run.do(key, HELD if run.is_paused(key) else PUBLISHED)
            return {(id_, run.token(key), run.attempt(key)) for id_, run, key in due if not run.is_paused(key)}

        return Act(
            lambda connection: transitions.take(connection, queue, limit=LIMIT, after=Mark()),
            model,
            lambda taken: {(one.task_run_id, one.token, one.attempt) for one in taken.dispatches},
            lambda taken: self.messages.extend(self.ordered(taken.dispatches, lambda one: one.task_run_id)),
        )

    def expire(self, _: Draw) -> Act:
        """Take leases that are over."""

        def model() -> dict[UUID, str]:
            words = {id_: run.expire(key) for id_, run, key in list(self.in_state(TaskState.RUNNING))}
            return {id_: word for id_, word in words.items() if word}

        verb = partial(transitions.expire, limit=LIMIT)
        return Act(verb, model, lambda expired: {one.id: one.became for one in expired.taken})

    def look_at_unstarted(self) -> Act:
        """Find what no worker has started in time."""

        def model() -> set[tuple[UUID, int]]:
            ready = self.in_state(TaskState.READY)
            return {(id_, run.token(key)) for id_, run, key in ready if _is_unstarted(run, key)}

        return self._look(partial(insights.unstarted, limit=LIMIT), model, TaskState.FAILED, self.unstarted)

    def give_up(self, data: Draw) -> Act:
        """Fail what was once found unstarted."""
        return self._take_and_end(transitions.give_up, ModelRun.give_up, some(data, self.unstarted))

    def look_at_asked(self) -> Act:
        """Find what goes on though it was asked to stop."""

        def model() -> set[tuple[UUID, int]]:
            running = self.in_state(TaskState.RUNNING)
            return {(id_, run.token(key)) for id_, run, key in running if _goes_on(run, key)}

        def look(connection: Any) -> Any:
            return insights.asked_before(connection, GRACE * HOUR, limit=LIMIT)

        return self._look(look, model, TaskState.CANCELLED, self.asked)

    def cut_off(self, data: Draw) -> Act:
        """End what was once found going on."""
        return self._take_and_end(transitions.cut_off, ModelRun.cut_off, some(data, self.asked))

    def _look(self, look: Callable[[Any], Any], model: Callable[[], Any], ending: TaskState, found: list[Any]) -> Act:
        return Act(
            look,
            model,
            lambda rows: {(one.id, one.token) for one in rows},
            lambda rows: found.extend(outcome(one.id, one.run_id, one.token, ending) for one in self.ordered(rows)),
        )

    def _take_and_end(self, verb: Any, model: Callable[..., bool], outcomes: Sequence[Outcome]) -> Act:
        return Act(
            lambda connection: verb(connection, outcomes),
            lambda: {one.id for one in outcomes if model(*self.where[one.id], one.token)},
            lambda endings: {one.id for one in endings if one.became == "ended" and is_answer(one, outcomes)},
        )

    def look_at_published(self) -> Act:
        """Find what is published: it may be found missing later."""

        def keep(rows: list[Any]) -> None:
            for row in self.ordered(rows, lambda row: row.task_run_id):
                run, key = self.where[row.task_run_id]
                self.published.append((row.id, row.published_at, row.task_run_id, run.last(key, PUBLISHED)))

        return Act(
            lambda _: [row for row in models.OutboxMessage.select() if row.published_at],
            lambda: {id_ for id_, run, key in self.in_state(TaskState.READY) if run.dispatch(key)[1]},
            lambda rows: {row.task_run_id for row in rows},
            keep,
        )

    def resend(self, data: Draw) -> Act:
        """Send again what was once found published, and then found missing, where it still is as it was."""
        missing = some(data, self.published)

        def resend(id_: UUID, publication: Deed) -> bool:
            run, key = self.where[id_]
            as_it_was = run.states()[key] == TaskState.READY and run.dispatch(key)[1]
            if as_it_was := as_it_was and run.last(key, PUBLISHED) is publication:
                run.do(key, RESENT)
            return as_it_was

        return Act(
            lambda connection: transitions.resend(connection, [(id_, at) for id_, at, *_ in missing]),
            lambda: sum(resend(id_, publication) for *_, id_, publication in missing),
            len,
        )


def _is_due(run: ModelRun, key: str) -> bool:
    held, published, due = run.dispatch(key)
    return not held and not published and due <= run.world.hour


def _is_unstarted(run: ModelRun, key: str) -> bool:
    start_by = run.tasks[key].start_by
    return start_by is not None and run.due(key) + start_by < run.world.hour


def _goes_on(run: ModelRun, key: str) -> bool:
    return run.asked(key) and run.last(key, TaskEvent.CANCEL_REQUESTED).at + GRACE < run.world.hour
