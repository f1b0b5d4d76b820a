"""
Every exception that FlowForge raises. The docstring says what it means and what to do; the fields carry the facts.

Expected outcomes are values, not exceptions: a verb that a row refuses returns nothing for it.
"""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID


class FlowForgeError(Exception):
    """Base of all errors of this package."""


class SettingsError(FlowForgeError):
    """A setting is missing or cannot be read."""

    def __init__(self, name: str, value: object, remedy: str) -> None:
        super().__init__(f"{name}={value!r}: {remedy}" if value is not None else f"{name} is not set: {remedy}")
        self.name, self.value = name, value


class DefinitionError(FlowForgeError):
    """A workflow or task is written in a way that cannot run; raised where it is written."""


class ParameterError(FlowForgeError):
    """A run's parameters do not fit the workflow's parameters class."""


class UnstorableValue(FlowForgeError):  # noqa: N818 - named for what it is, like the outcome it leads to
    """A value cannot be written as JSON that PostgreSQL holds: give plain data, or a path to where the data lies."""


class OptionError(FlowForgeError, ValueError):
    """An option of a start or a deployment cannot be stored; nothing was written."""

    def __init__(self, name: str, value: object, remedy: str) -> None:
        super().__init__(f"{name}={value!r}: {remedy}")
        self.name, self.value = name, value


class UnknownWorkflow(FlowForgeError):  # noqa: N818
    """No such workflow here: check the name, FLOWFORGE_MODULES, or deploy it."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"no workflow {name!r} was deployed{did_you_mean(name, known)}: check the name, or `flowforge deploy`"
        )
        self.name = name


class ForeignBroker(FlowForgeError):  # noqa: N818
    """The user's modules installed a Dramatiq broker of their own: their actors would never meet this worker."""

    def __init__(self, module: str) -> None:
        super().__init__(
            f"module {module!r} installed another Dramatiq broker: remove its dramatiq.set_broker(…) call, "
            "because FlowForge's broker serves ordinary actors too"
        )
        self.module = module


class DatabaseUnreachable(FlowForgeError):  # noqa: N818
    """No connection to PostgreSQL: check DATABASE_URL, and that the server runs."""


class IncompatibleServer(FlowForgeError):  # noqa: N818
    """A server lacks what FlowForge needs: upgrade it to the named version."""


class UnsupportedPlatform(FlowForgeError):  # noqa: N818
    """The processes and the embedded servers need POSIX signals and process groups: on Windows, run them in WSL 2."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} cannot run on Windows itself (sys.platform={sys.platform!r}): "
            "run it inside WSL 2, see https://learn.microsoft.com/windows/wsl/install"
        )
        self.what = what


class SchemaMismatch(FlowForgeError):  # noqa: N818
    """The database lacks a migration of this release, or needs a newer release: migrate, or deploy that release."""


class TurnsMissed(FlowForgeError):  # noqa: N818
    """A duty of the schedulers was not done for two turns: start one, or read in its log what keeps it."""

    def __init__(self, ages: Mapping[str, float]) -> None:
        told = ", ".join(f"{duty} was last done {age:.0f} s ago" for duty, age in ages.items())
        super().__init__(f"{told}: start a scheduler, or read in its log what keeps it")
        self.ages = ages


class CannotMove(FlowForgeError):  # noqa: N818
    """The run cannot go on by that version now; nothing was changed."""


class CannotCancel(FlowForgeError):  # noqa: N818
    """What was to be cancelled has ended already, or is not there; `state` is its state, which stands."""

    def __init__(self, what: str, state: str | None, near: str = "") -> None:
        super().__init__(
            f"{what} has {state}: what has ended cannot be cancelled"
            if state
            else f"{what} is not there{near}: `flowforge runs list` shows what there is"
        )
        self.state = state


class CannotRerun(FlowForgeError):  # noqa: N818
    """These tasks of the run cannot be carried out again now; nothing was changed."""


class CannotPause(FlowForgeError):  # noqa: N818
    """There is nothing of that name to pause, or to resume; nothing was changed."""


class RowLocked(FlowForgeError):  # noqa: N818
    """A transaction of user code locks what was to be changed, by a guard: nothing was changed; try again later."""


class RunNotCommitted(FlowForgeError):  # noqa: N818
    """The transaction that started the run has not been committed, or was rolled back: commit it before waiting."""

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"run {run_id} is not committed: commit the transaction that started it before waiting for it")
        self.run_id = run_id


class NotFinished(FlowForgeError):  # noqa: N818
    """The task run has no result yet: call `wait` first."""

    def __init__(self, run_id: UUID, key: str, state: str) -> None:
        super().__init__(f"task {key!r} of run {run_id} is {state}: wait for the run before asking for results")
        self.run_id, self.key, self.state = run_id, key, state


class TaskFailed(FlowForgeError):  # noqa: N818
    """The task run ended without a result; `error` holds the remote type, message and traceback if it failed."""

    def __init__(self, run_id: UUID, key: str, state: str, error: dict[str, str] | None) -> None:
        reason = f": {error['type']}: {error['message']}\n{error.get('traceback') or ''}" if error else ""
        super().__init__(f"task {key!r} of run {run_id} {state}{reason}".rstrip())
        self.run_id, self.key, self.state, self.error = run_id, key, state, error


class WaitTimeout(FlowForgeError, TimeoutError):  # noqa: N818
    """The run was not finished when the time to wait was over; it goes on."""

    def __init__(self, run_id: UUID, state: str, seconds: float, reason: str = "") -> None:
        super().__init__(f"run {run_id} is still {state} after {seconds:g} s{reason}")
        self.run_id, self.state = run_id, state


class IdempotencyConflict(FlowForgeError):  # noqa: N818
    """
    The idempotency key stands for a run of another workflow, or with other parameters: choose another key.

    `differs` names those parameters, or the workflow; it is empty when that run is gone. Values, which may be secret,
    are not told.
    """

    def __init__(self, key: str, run_id: UUID, differs: Sequence[str] = ()) -> None:
        what = f"which differs in {', '.join(differs)}" if differs else "which had another workflow or other parameters"
        super().__init__(f"idempotency_key {key!r} already stands for run {run_id}, {what}: choose another key")
        self.key, self.run_id, self.differs = key, run_id, tuple(differs)


class LeaseLost(FlowForgeError):  # noqa: N818
    """Another worker owns the task run now: stop, and write nothing more."""

    def __init__(self, task_run_id: UUID, token: int) -> None:
        super().__init__(f"task run {task_run_id} is no longer owned at token {token}")
        self.task_run_id, self.token = task_run_id, token


class AttemptCancelled(FlowForgeError):  # noqa: N818
    """Raised into an attempt that was cancelled and goes on; raise it yourself where `context.cancelled` says stop."""


class AttemptTimeout(FlowForgeError):  # noqa: N818
    """Raised into an attempt that ran past its task's timeout; the attempt ends as failed with this type."""


class NonRetryable(FlowForgeError):  # noqa: N818
    """Raise it in a task to end the task as failed, whatever its retry policy."""


class UnreadableValue(NonRetryable):
    """A stored value does not fit the annotation of the argument that takes it: another attempt cannot change that."""


class Skip(FlowForgeError):  # noqa: N818
    """Raise it in a task to end the task as skipped: there was nothing to do."""


def refuse_windows(what: str) -> None:
    """Raise `UnsupportedPlatform` on Windows, before `what` fails there in a way that names no remedy."""
    if sys.platform == "win32":
        raise UnsupportedPlatform(what)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {str(near[0])!r}?)" if near else ""
