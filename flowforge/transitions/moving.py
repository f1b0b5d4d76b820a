"""
hold and move: a run that goes on by another version of its workflow.

What to do is planned from the rows while they are held, and is a value: a dry run is the plan without the move.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid4

from flowforge.db import fetch, load_statements
from flowforge.errors import CannotMove
from flowforge.states import TASK_TERMINAL, TaskState, When

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg2.extensions import connection as Connection  # noqa: N812

_SQL = load_statements("flowforge.transitions")

_UNDECIDED = frozenset({TaskState.PENDING, TaskState.READY})


class Held(NamedTuple):
    """A task run as it is while it is locked."""

    id: UUID
    key: str
    state: TaskState
    token: int
    required: bool
    queue: str


class Target(NamedTuple):
    """A task of the version to move to; `upstream` are keys."""

    id: UUID
    key: str
    upstream: Sequence[str]
    when: When
    required: bool
    queue: str


@dataclass
class _Place:
    """A task run in the plan: `held` is None for one to be made, `target` for one that the version does not have."""

    id: UUID
    state: TaskState
    held: Held | None
    target: Target | None
    remaining: int = 0
    failed: int = 0
    unsucceeded: int = 0
    dependents: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What a move makes of each task run, by key: in order of the version, then what that does not have."""

    places: Mapping[str, _Place]

    @property
    def differences(self) -> list[str]:
        """One line for each task run that the move makes, ends, or gives another state or queue."""
        return [line for key, place in self.places.items() if (line := _difference(key, place))]

    @property
    def remaining(self) -> int:
        """Task runs that will not have ended."""
        return sum(place.state not in TASK_TERMINAL for place in self.places.values())

    @property
    def failed(self) -> int:
        """Required task runs that have failed."""
        return self._required(TaskState.FAILED)

    @property
    def cancelled(self) -> int:
        """Required task runs that were cancelled."""
        return self._required(TaskState.CANCELLED)

    def _required(self, state: TaskState) -> int:
        return sum(place.state == state and _required(place) for place in self.places.values())


def plan(held: Sequence[Held], targets: Sequence[Target]) -> Plan:
    """
    Plan the move of a run to a version, whose tasks are given in order of definition: upstreams come first.

    Raises `CannotMove` while a task is running that the version does not have, or after which it adds tasks.
    """
    rows = {row.key: row for row in held}
    places = {target.key: _placed(target, rows.get(target.key)) for target in targets}
    for target in targets:
        _decide(places[target.key], [places[key] for key in target.upstream])
    _connect(places)
    _require_settled(places)
    return Plan(places | {key: _dropped(row) for key, row in rows.items() if key not in places})


def _placed(target: Target, row: Held | None) -> _Place:
    return _Place(row.id if row else uuid4(), row.state if row else TaskState.PENDING, row, target)


def _decide(place: _Place, upstream: Sequence[_Place]) -> None:
    """Count the upstreams of a task run that has not begun, and say what it is now."""
    if place.state not in _UNDECIDED:
        return
    states = [one.state for one in upstream]
    place.remaining = sum(state not in TASK_TERMINAL for state in states)
    place.failed = states.count(TaskState.FAILED)
    place.unsucceeded = sum(state in TASK_TERMINAL and state != TaskState.SUCCEEDED for state in states)
    if place.remaining:
        place.state = TaskState.PENDING
    else:
        assert place.target is not None
        met = place.target.when.met(failed=place.failed, unsucceeded=place.unsucceeded)
        place.state = TaskState.READY if met or not upstream else TaskState.SKIPPED


def _connect(places: Mapping[str, _Place]) -> None:
    for place in places.values():
        for key in place.target.upstream if place.target else ():
            places[key].dependents += (place.id,)


def _require_settled(places: Mapping[str, _Place]) -> None:
    """Refuse to make dependents of what is running: its outcome may wait for us with a snapshot from before them."""
    fresh = {place.id for place in places.values() if place.held is None}
    for key, place in places.items():
        if place.state == TaskState.RUNNING and not fresh.isdisjoint(place.dependents):
            raise CannotMove(
                f"task {key!r} is running, and the version adds tasks after it: move the run once it has ended"
            )


def _dropped(row: Held) -> _Place:
    if row.state == TaskState.RUNNING:
        raise CannotMove(f"task {row.key!r} is running, and the version has no such task: wait until it has ended")
    return _Place(row.id, row.state if row.state in TASK_TERMINAL else TaskState.SKIPPED, row, None)


def _required(place: _Place) -> bool:
    if place.held and (place.target is None or place.held.state not in _UNDECIDED):
        return place.held.required
    assert place.target is not None
    return place.target.required


def _difference(key: str, place: _Place) -> str | None:
    if place.held is None:
        return f"{key}: new, {place.state}"
    if place.target is None:
        return f"{key}: not in the version, {place.state}"
    if place.held.state != place.state:
        return f"{key}: {place.held.state} -> {place.state}"
    moved = place.state in _UNDECIDED and place.held.queue != place.target.queue
    return f"{key}: queue {place.held.queue} -> {place.target.queue}" if moved else None


def hold(connection: Connection, run_id: UUID, *, patience: float = 0.0) -> list[Held]:
    """
    Lock a run and its task runs in the open transaction; return those.

    Waits for whoever holds any of them, up to `patience` seconds, or without end for 0. Raises psycopg2's
    LockNotAvailable when those are over.
    """
    rows = fetch(connection, _SQL["hold"], {"run": run_id, "patience": f"{patience * 1000:.0f}ms"})
    return [Held(row.id, row.key, TaskState(row.state), row.token, row.required, row.queue) for row in rows]


def move(connection: Connection, run_id: UUID, version: UUID, planned: Plan) -> bool:
    """Carry out a plan, all of it or nothing. Say whether it was still true of the run and each of its task runs."""
    places = planned.places.values()
    parameters = {
        "run": run_id,
        "workflow": version,
        "moved": json.dumps([_moved(place, place.held) for place in places if place.held]),
        "fresh": json.dumps([_fresh(place) for place in places if place.held is None]),
        "remaining": planned.remaining,
        "failed": planned.failed,
        "cancelled": planned.cancelled,
    }
    return bool(fetch(connection, _SQL["move"], parameters))


def _moved(place: _Place, held: Held) -> dict[str, Any]:
    decided = (
        _fresh(place)
        if place.target and held.state in _UNDECIDED
        else {**_fresh(place), "when": None, "required": None}
    )
    return {**decided, "token": held.token, "state": held.state}


def _fresh(place: _Place) -> dict[str, Any]:
    target = place.target
    return {
        "id": str(place.id),
        "becomes": place.state,
        "task": str(target.id) if target else None,
        "when": target.when if target else None,
        "required": target.required if target else None,
        "dependents": [str(id_) for id_ in place.dependents],
        "remaining": place.remaining,
        "failed": place.failed,
        "unsucceeded": place.unsucceeded,
    }
