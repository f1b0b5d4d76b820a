"""
What people decide: cancel, rerun, pause, resume.

Each is a verb and a row of the audit log in one transaction: of the caller's own block if there is one, else of ours.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg2.errors import LockNotAvailable

from flowforge import insights, transitions
from flowforge.client.engine import engine
from flowforge.client.principal import principal
from flowforge.errors import CannotCancel, CannotPause, CannotRerun, RowLocked, did_you_mean
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.states import RUN_TERMINAL, Paused, RunState, TaskState
from flowforge.tenancy import audit
from flowforge.transitions import Decision, Subject
from flowforge.workflow import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.client.run import Run


@contextmanager
def _transaction() -> Iterator[Connection]:
    """Yield our connection in a transaction; a row that a user's guard locks is told as `RowLocked`."""
    database = engine().database
    try:
        with database.atomic():
            yield database.raw()
    except LockNotAvailable as error:
        raise RowLocked("a transaction of user code guards what was to be changed: try again later") from error


def _decision(by: str | None, reason: str = "") -> Decision:
    return Decision(by or principal(), reason)


def _wake() -> None:
    """Tell a publisher that something is due, or will be once the caller's block has committed."""
    engine().wake(b"soon" if engine().database.in_transaction() else b"now")


def _record(run: Run, decision: Decision, action: str, detail: dict[str, Any]) -> None:
    subject = ("run", str(run.id))
    audit.record(run.organization, decision.by, action, subject, {**detail, "reason": decision.reason})


def key_of(task: Task[..., Any] | str) -> str:
    """Return the key of a task that was given by itself or by its key."""
    return task.key if isinstance(task, Task) else task


def cancel(run: Run, tasks: Sequence[UUID] | None, *, reason: str, now: bool, by: str | None) -> RunState:
    """Cancel a run. Raises `CannotCancel` or `RowLocked`."""
    decision = _decision(by, reason)
    with _transaction() as connection:
        _require_run(run)
        done = transitions.cancel(connection, run.id, decision, tasks=tasks, now=now)
        assert done is not None
        if done.state == RunState.CANCELLED and not done.accepted:
            return done.state  # it was cancelled before, which is what is wanted
        if not done.accepted:
            raise CannotCancel(f"run {run.id}", done.state)
        _record(run, decision, "run.cancel", {"now": now})
    _wake()
    return done.state


def cancel_task(run: Run, key: str, *, reason: str, by: str | None) -> TaskState:
    """Cancel one task run. Raises `CannotCancel` or `RowLocked`."""
    decision = _decision(by, reason)
    with _transaction() as connection:
        _require_run(run)
        (id_,) = _ids(run, [key], CannotCancel)
        done = transitions.cancel(connection, run.id, decision, tasks=[id_])
        assert done is not None
        word = done.tasks[id_]
        if word not in {"cancelled", "asked"}:
            raise CannotCancel(f"task {key!r} of run {run.id}", word)
        _record(run, decision, "task_run.cancel", {"task": key})
    _wake()
    return TaskState.RUNNING if word == "asked" else TaskState.CANCELLED


def rerun(run: Run, keys: Sequence[str], *, reason: str, by: str | None) -> list[str]:
    """Carry tasks of a finished run out again. Raises `CannotRerun`."""
    decision = _decision(by, reason)
    with _transaction() as connection:
        if insights.run_state(run.organization, run.id) is None:
            raise CannotRerun(f"run {run.id} is not there: `flowforge runs list` shows what there is")
        done = transitions.rerun(connection, run.id, decision, tasks=_ids(run, keys, CannotRerun))
        assert done is not None
        if not done.accepted:
            raise CannotRerun(_why_not(run, done))
        _record(run, decision, "run.rerun", {"tasks": [again.key for again in done.tasks]})
    _wake()
    return [again.key for again in done.tasks]


def _why_not(run: Run, refused: transitions.Rerun) -> str:
    if refused.before not in RUN_TERMINAL:
        return f"run {run.id} is {refused.before}: only a run that has ended can be rerun; wait for it, or cancel it"
    if not refused.tasks:
        return f"run {run.id} has no task that failed or was cancelled: name the tasks to carry out again"
    unwanted = [again.key for again in refused.tasks if again.becomes == "unwanted"]
    return (
        f"task {unwanted[0]!r} of run {run.id} would not run by its rule, because an upstream stays as it ended: "
        "rerun that one, and this follows"
    )


def _ids(run: Run, keys: Sequence[str], refusal: type[CannotCancel | CannotRerun]) -> list[UUID]:
    known = {task.key: task.id for task in insights.task_summaries(run.organization, run.id)}
    if unknown := [key for key in keys if key not in known]:
        what = f"task {unknown[0]!r} of run {run.id}"
        near = did_you_mean(unknown[0], known)
        raise CannotCancel(what, None, near) if refusal is CannotCancel else CannotRerun(f"{what} is not there{near}")
    return [known[key] for key in keys]


def _require_run(run: Run) -> None:
    if insights.run_state(run.organization, run.id) is None:
        raise CannotCancel(f"run {run.id}", None)


def pause(
    kind: Paused, name: str, *, reason: str = "", by: str | None = None, organization: UUID = DEFAULT_ORGANIZATION
) -> bool:
    """
    Dispatch nothing of a run, a workflow or a queue until it is resumed; what runs goes on.

    Return False where it is paused already. Raises `CannotPause` where there is no such thing, or the run has ended.
    """
    subject, decision = Subject(organization, Paused(kind), name), _decision(by, reason)
    with _transaction() as connection:
        _require_subject(subject)
        if not transitions.pause(connection, subject, decision):
            if insights.pauses(organization, kinds=[kind], subjects=[name]):
                return False
            raise CannotPause(f"run {name} has ended: there is nothing left to pause")
        audit.record(organization, decision.by, f"{subject.kind}.pause", (subject.kind, name), {"reason": reason})
    return True


def resume(
    kind: Paused, name: str, *, reason: str = "", by: str | None = None, organization: UUID = DEFAULT_ORGANIZATION
) -> bool:
    """
    Dispatch a run, a workflow or a queue again; False where it was not paused.

    Raises `CannotPause` where there is no such thing.
    """
    subject, decision = Subject(organization, Paused(kind), name), _decision(by, reason)
    with _transaction() as connection:
        if not _is_name(subject) or not transitions.resume(connection, subject, decision):
            _require_subject(subject)
            return False
        transitions.unhold(connection)
        audit.record(organization, decision.by, f"{subject.kind}.resume", (subject.kind, name), {"reason": reason})
    _wake()
    return True


def _require_subject(subject: Subject) -> None:
    """Raise `CannotPause` for a name that is none: a pause or a resume of it would look as if it worked."""
    known = {Paused.WORKFLOW: insights.workflow_names, Paused.QUEUE: insights.queue_names}
    if subject.kind is Paused.RUN:
        there = _is_name(subject) and insights.run_state(subject.organization, UUID(subject.name)) is not None
        near = ""
    else:
        names = known[subject.kind](subject.organization)
        there, near = subject.name in names, did_you_mean(subject.name, names)
    if not there:
        raise CannotPause(f"there is no {subject.kind} {subject.name!r}{near}")


def _is_name(subject: Subject) -> bool:
    """Whether a subject has a name that its kind may have: a run is known by its whole id."""
    try:
        return subject.kind is not Paused.RUN or bool(UUID(subject.name))
    except ValueError:
        return False
