"""Each verb, and each read of a duty, at work on what is at work in a full database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from flowforge import insights, models, transitions
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import Paused, TaskState
from flowforge.transitions import Mark, NewRun, Outcome, Release, Subject
from tests import factories
from tests.contract.crowd import DECISION, QUEUE, Busy, queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

    Call = Callable[[Connection, Busy], Any]


def outcomes(busy: Busy, state: TaskState) -> list[Outcome]:
    """Return that all owned attempts ended this way."""
    return [Outcome(claim.id, claim.run_id, claim.token, state) for claim in busy.held]


def unstarted(busy: Busy) -> list[Outcome]:
    """Return that nobody took what was published in time."""
    return [Outcome(one.task_run_id, one.run_id, one.token, TaskState.FAILED) for one in busy.published]


def new_runs(workflow_id: UUID, size: int) -> list[NewRun]:
    """Return runs to start."""
    return [NewRun(uuid4(), workflow_id, "{}") for _ in range(size)]


def releases(busy: Busy) -> list[Release]:
    """Return that all owned attempts are given up."""
    return [Release(claim.id, claim.token) for claim in busy.held]


def claim(connection: Connection, busy: Busy) -> int:
    """Claim what is published; return how many that were."""
    return len(transitions.claim(connection, busy.published, owner="me", lease=15))


def take(connection: Connection, busy: Busy) -> tuple[int, int]:
    """Take as much as a call is about; return how many are to be handed over, and how many were read."""
    taken = transitions.take(connection, QUEUE, limit=busy.size, after=Mark())
    return len(taken.dispatches), taken.read


def beside_a_pause(call: Call) -> Call:
    """Return the call while something else is paused: it does all that it would do anyway."""
    return lambda connection, busy: (transitions.pause(connection, queue("other"), DECISION), call(connection, busy))


def claim_paused(connection: Connection, busy: Busy) -> None:
    """Have all claims turned back."""
    assert transitions.pause(connection, queue(QUEUE), DECISION)
    assert claim(connection, busy) == 0


def take_paused(connection: Connection, busy: Busy) -> None:
    """Have all that was due held."""
    assert transitions.pause(connection, queue(QUEUE), DECISION)
    assert take(connection, busy) == (0, busy.size)


def the_run(busy: Busy) -> Subject:
    """Return a run, to be paused."""
    return Subject(DEFAULT_ORGANIZATION, Paused.RUN, str(busy.going[busy.size]))


def pause(connection: Connection, busy: Busy) -> None:
    """Pause a run."""
    assert transitions.pause(connection, the_run(busy), DECISION)


def resume(connection: Connection, busy: Busy) -> None:
    """Pause a run, and resume it."""
    pause(connection, busy)
    assert transitions.resume(connection, the_run(busy), DECISION)


def cancel(connection: Connection, busy: Busy) -> None:
    """Cancel a run."""
    done = transitions.cancel(connection, busy.going[busy.size], DECISION)
    assert done
    assert len(done.tasks) == busy.size


def cancel_first(connection: Connection, busy: Busy) -> None:
    """Cancel the task of a run for which all others of it wait; they are skipped."""
    run_id = busy.going[busy.size]
    [first] = [row.id for row in models.TaskRun.filter(workflow_run=run_id) if row.state == "ready"]
    done = transitions.cancel(connection, run_id, DECISION, tasks=[first])
    assert done
    assert done.tasks == {first: "cancelled"}


def rerun(connection: Connection, busy: Busy) -> None:
    """Rerun a run from its first task on."""
    done = transitions.rerun(connection, busy.over[busy.size], DECISION)
    assert done
    assert (done.accepted, len(done.tasks)) == (True, busy.size)


#: `skip` follows upon failures.
VERBS: dict[str, Call] = {
    "start_run": lambda c, busy: transitions.start_run(c, new_runs(busy.workflow_id, busy.size)),
    "claim": claim,
    "renew": lambda c, busy: transitions.renew(
        c, factories.renewals([(one.id, one.token) for one in busy.held], lease=15)
    ),
    "finish": lambda c, busy: transitions.finish(c, outcomes(busy, TaskState.SUCCEEDED)),
    "skip": lambda c, busy: transitions.finish(c, outcomes(busy, TaskState.FAILED)),
    "give_up": lambda c, busy: transitions.give_up(c, unstarted(busy)),
    "cut_off": lambda c, busy: transitions.cut_off(c, outcomes(busy, TaskState.CANCELLED)),
    "retry": lambda c, busy: transitions.retry(c, releases(busy)),
    "hand_back": lambda c, busy: transitions.hand_back(c, releases(busy)),
    "defer": lambda c, busy: transitions.defer(c, [(dispatch, "no such task") for dispatch in busy.published], delay=5),
    "expire": lambda c, busy: transitions.expire(c, limit=busy.size).taken,
    "lose": lambda c, busy: transitions.lose(c, "alive", [(one.id, one.token) for one in busy.held]),
    "take": take,
    "resend": lambda c, busy: transitions.resend(c, busy.messages),
    "cancel": cancel,
    "rerun": rerun,
    "pause": pause,
    "resume": resume,
    "unhold": lambda c, busy: transitions.unhold(c, limit=busy.size),
    "guard": lambda c, busy: [transitions.guard(c, one.id, one.token) for one in busy.held],
}

#: Verbs where they do something else than most times.
OTHERWISE: dict[str, Call] = {
    "claim beside a pause": beside_a_pause(claim),
    "claim of what is paused": claim_paused,
    "take beside a pause": beside_a_pause(take),
    "take of what is paused": take_paused,
    "unhold beside a pause": beside_a_pause(VERBS["unhold"]),
    "cancel of a task": cancel_first,
}

#: What duties look for, once a second and more.
READS: dict[str, Call] = {
    "published_before": lambda c, busy: insights.published_before(c, -1.0, limit=busy.size),
    "unstarted": lambda c, busy: insights.unstarted(c, limit=busy.size),
    "asked_before": lambda c, busy: insights.asked_before(c, -1.0, limit=busy.size),
    "past_deadline": lambda c, busy: insights.past_deadline(c, limit=busy.size),
}

#: What is about one subject, however large that is.
OF_ONE = {"pause", "resume"}
