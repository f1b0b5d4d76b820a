"""claim, renew, guard, retry, hand_back and expire: who owns a task run, and until when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from flowforge.db import fetch, load_statements
from flowforge.states import TaskEvent, TaskState
from flowforge.transitions.ending import PATIENCE, Outcome, finish

if TYPE_CHECKING:
    from uuid import UUID

    from psycopg2.extensions import connection as Connection  # noqa: N812

    from flowforge.transitions.dispatch import Dispatch

_SQL = load_statements("flowforge.transitions")

#: guard's texts, for connections of other libraries: parameters `id` and `token`, then the `transaction` it answered.
GUARD, STILL_HERE = _SQL["guard"], _SQL["here"]


class Claim(NamedTuple):
    """A task run owned at `token`; `parameters` is JSON text."""

    id: UUID
    organization_id: UUID
    run_id: UUID
    task_id: UUID
    attempt: int
    token: int
    failures_left: int
    parameters: str


class Release(NamedTuple):
    """A task run that its owner gives up: due again after `delay` seconds; `error` is JSON text."""

    id: UUID
    token: int
    delay: float = 0.0
    error: str | None = None


class Late(NamedTuple):
    """A task run whose lease was over; `became` is `ready`, `exhausted` or `cancel`."""

    id: UUID
    run_id: UUID
    token: int
    owner: str
    became: str


class Renewal(NamedTuple):
    """A task run that its owner holds on to: for `lease` seconds more, but for no more than `span` from its start."""

    id: UUID
    token: int
    lease: float
    span: float


class Expired(NamedTuple):
    """Leases that were over: what was taken, and the ids of task runs that somebody locks."""

    taken: list[Late]
    locked: list[UUID]


def claim(
    connection: Connection, dispatches: Sequence[Dispatch], *, owner: str, lease: float | Sequence[float]
) -> list[Claim]:
    """
    Own those task runs that are still ready at their dispatch's token, and that nothing pauses.

    `lease` is in seconds, one for all or one for each.
    """
    leases = lease if isinstance(lease, Sequence) else [lease] * len(dispatches)
    rows = fetch(
        connection,
        _SQL["claim"],
        {
            "ids": [dispatch.task_run_id for dispatch in dispatches],
            "tokens": [dispatch.token for dispatch in dispatches],
            "runs": list({dispatch.run_id for dispatch in dispatches}),
            "owner": owner,
            "leases": [timedelta(seconds=seconds) for seconds in leases],
        },
    )
    return [Claim(*row) for row in rows]


def renew(connection: Connection, held: Sequence[Renewal]) -> dict[tuple[UUID, int], str]:
    """Own task runs for longer. Return (id, token) -> `renewed`, `cancel`, `busy` or `lost`."""
    rows = fetch(
        connection,
        _SQL["renew"],
        {
            "ids": [one.id for one in held],
            "tokens": [one.token for one in held],
            "leases": [timedelta(seconds=one.lease) for one in held],
            "spans": [timedelta(seconds=one.span) for one in held],
        },
    )
    return {(row.id, row.token): row.answer for row in rows}


def guard(connection: Connection, task_run_id: UUID, token: int) -> bool:
    """Lock a task run in the connection's transaction if it is still owned at this token; say whether it is."""
    return bool(fetch(connection, GUARD, {"id": task_run_id, "token": token})[0].owned)


def retry(connection: Connection, releases: Sequence[Release], *, patience: float = PATIENCE) -> dict[UUID, str]:
    """
    Make failed attempts ready again, at the cost of an attempt.

    Return id -> `ready`, `exhausted` (no failures left) or `cancel`; the latter two are the caller's to finish.
    """
    return _release(connection, releases, charge=1, kind=TaskEvent.RETRIED, patience=patience)


def hand_back(
    connection: Connection, releases: Sequence[Release], *, owner: str | None = None, patience: float = PATIENCE
) -> dict[UUID, str]:
    """
    Make task runs that were not carried out ready again, at no cost. Return id -> `ready` or `cancel`.

    An heir names the `owner` that is gone, whose they must still be.
    """
    return _release(connection, releases, charge=0, kind=TaskEvent.HANDED_BACK, owner=owner, patience=patience)


def lose(connection: Connection, owner: str, owned: Sequence[tuple[UUID, int]]) -> list[UUID]:
    """End the leases, by (id, token), of an owner that is known to be gone; `expire` then does the rest."""
    parameters = {"ids": [id_ for id_, _ in owned], "tokens": [token for _, token in owned], "owner": owner}
    return [row.id for row in fetch(connection, _SQL["lose"], parameters)]


def _release(
    connection: Connection,
    releases: Sequence[Release],
    *,
    charge: int,
    kind: TaskEvent,
    patience: float,
    owner: str | None = None,
) -> dict[UUID, str]:
    rows = fetch(
        connection,
        _SQL["release"],
        {
            "ids": [release.id for release in releases],
            "tokens": [release.token for release in releases],
            "delays": [timedelta(seconds=release.delay) for release in releases],
            "errors": [release.error for release in releases],
            "charge": charge,
            "kind": kind.value,
            "owner": owner,
            "patience": f"{patience * 1000:.0f}ms",
        },
    )
    return {row.id: row.became for row in rows}


def expire(connection: Connection, *, limit: int, spared: Sequence[UUID] = ()) -> Expired:
    """
    Take leases that are over from their owners: ready for another attempt, or ended when no loss is left.

    But not those of the task runs that are `spared`, nor of those that somebody locks. The second step asks again, on
    the locked row, whether the lease is over: a late renewal or completion wins.
    """
    rows = [Late(*row) for row in fetch(connection, _SQL["expire"], {"limit": limit, "spared": list(spared)})]
    expired = Expired(
        [one for one in rows if one.became != "locked"], [one.id for one in rows if one.became == "locked"]
    )
    finish(connection, [_last_word(one) for one in expired.taken if one.became != "ready"], overdue=True)
    return expired


def _last_word(late: Late) -> Outcome:
    if late.became == "cancel":
        return Outcome(late.id, late.run_id, late.token, TaskState.CANCELLED)
    error = {"type": "worker_lost", "message": f"{late.owner} was lost and no further start is left"}
    return Outcome(late.id, late.run_id, late.token, TaskState.FAILED, error=json.dumps(error))
