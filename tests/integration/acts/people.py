"""What people decide, or a deadline for them: cancel, rerun, pause, resume."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from hypothesis import strategies as st

from flowforge import insights, transitions
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RUN_TERMINAL, Paused, TaskState
from flowforge.transitions import Decision, Subject
from tests.integration.acts.known import LIMIT, QUEUES, Act, Known
from tests.model_history import LET_GO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.states import RunState
    from tests.integration.acts.known import Draw
    from tests.model import ModelRun

WHY = Decision("me", "why not")


class People(Known):
    """The verbs that somebody asks for, and what is cancelled because it is late."""

    def cancel(self, data: Draw) -> Act:
        """Cancel a run."""
        return self._cancel(self._run(data), now=data.draw(st.booleans()))

    def cancel_tasks(self, data: Draw) -> Act:
        """Cancel a task run or two of a run."""
        run_id = self._run(data)
        keys = st.lists(st.sampled_from(list(self.runs[run_id].tasks)), unique=True, min_size=1, max_size=2)
        return self._cancel(run_id, data.draw(keys))

    def look_at_deadlines(self) -> Act:
        """Find runs that are not over by their deadline."""
        return Act(
            partial(insights.past_deadline, limit=LIMIT),
            lambda: {id_ for id_, run in self.runs.items() if run.is_overdue()},
            lambda rows: {one.id for one in rows},
            lambda rows: self.overdue.extend(one.id for one in rows),
        )

    def cancel_overdue(self, data: Draw) -> Act:
        """Cancel a run that was once found overdue, if it still is."""
        return self._cancel(data.draw(st.sampled_from(self.overdue)), overdue=True)

    def _cancel(self, run_id: UUID, keys: Sequence[str] | None = None, **how: bool) -> Act:
        run = self.runs[run_id]
        tasks = None if keys is None else [self._id(run, key) for key in keys]

        def model() -> tuple[bool, RunState | None, dict[UUID, str]]:
            accepted, words = run.cancel(keys, **how)
            state = run.state() if keys is None else None
            return accepted, state, {self._id(run, key): word for key, word in words.items()}

        return Act(
            lambda connection: transitions.cancel(connection, run_id, WHY, tasks=tasks, **how),
            model,
            # Where task runs are named, others may be skipped in consequence, and the state is that from before.
            lambda done: (done.accepted, done.state if keys is None else None, done.tasks),
        )

    def rerun(self, data: Draw) -> Act:
        """Carry out again what failed or was cancelled, or some others; of a run that has ended, if one has."""
        ended = [id_ for id_, run in self.runs.items() if run.state() in RUN_TERMINAL]
        run_id = data.draw(st.sampled_from(ended)) if ended else self._run(data)
        run = self.runs[run_id]
        keys = data.draw(st.lists(st.sampled_from(list(run.tasks)), unique=True, max_size=2))
        tasks = [self._id(run, key) for key in keys]
        return Act(
            lambda connection: transitions.rerun(connection, run_id, WHY, tasks=tasks),
            lambda: run.rerun(keys),
            lambda done: {one.key: one.becomes for one in done.tasks} if done.accepted else None,
        )

    def pause(self, data: Draw) -> Act:
        """Pause a run, the workflow or a queue."""
        subject = self._subject(data)

        def model() -> bool:
            if subject.kind is Paused.RUN:
                return self.runs[UUID(subject.name)].pause()
            is_new = (subject.kind, subject.name) not in self.world.paused
            self.world.paused.add((subject.kind, subject.name))
            return is_new

        return Act(lambda connection: transitions.pause(connection, subject, WHY), model)

    def resume(self, data: Draw) -> Act:
        """Resume what is paused, if anything is."""
        paused = sorted(self.world.paused)
        subject = Subject(DEFAULT_ORGANIZATION, *data.draw(st.sampled_from(paused))) if paused else self._subject(data)

        def model() -> bool:
            if subject.kind is Paused.RUN:
                return self.runs[UUID(subject.name)].resume()
            was_paused = (subject.kind, subject.name) in self.world.paused
            self.world.paused.discard((subject.kind, subject.name))
            return was_paused

        return Act(lambda connection: transitions.resume(connection, subject, WHY), model)

    def unhold(self, _: Draw) -> Act:
        """Let go what nothing pauses any more."""

        def model() -> int:
            held = [(run, key) for _, run, key in self.in_state(TaskState.READY) if run.dispatch(key)[0]]
            free = [(run, key) for run, key in held if not run.is_paused(key)]
            for run, key in free:
                run.do(key, LET_GO)
            return len(free)

        return Act(partial(transitions.unhold, limit=LIMIT), model)

    def _run(self, data: Draw) -> UUID:
        return data.draw(st.sampled_from(list(self.runs)[::-1]))

    def _subject(self, data: Draw) -> Subject:
        names = {Paused.RUN: [str(self._run(data))], Paused.WORKFLOW: ["sales"], Paused.QUEUE: QUEUES}
        kind = data.draw(st.sampled_from(Paused))
        return Subject(DEFAULT_ORGANIZATION, kind, data.draw(st.sampled_from(names[kind])))

    def _id(self, run: ModelRun, key: str) -> UUID:
        return next(id_ for id_, place in self.where.items() if place == (run, key))
