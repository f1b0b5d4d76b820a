"""Starting runs: in a transaction of our own, or in the caller's."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec
from uuid import UUID, uuid4

from peewee import Database as PeeweeDatabase
from psycopg2.extensions import connection as Connection  # noqa: N812

from flowforge import insights, transitions
from flowforge.client.deploying import ensure_stored
from flowforge.client.engine import engine
from flowforge.client.run import Run
from flowforge.db import begun
from flowforge.errors import FlowForgeError, IdempotencyConflict, UnknownWorkflow
from flowforge.models import DEFAULT_ORGANIZATION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.workflow import Definition

P = ParamSpec("P")


@dataclass(frozen=True)
class Options(Generic[P]):
    """
    A view of a workflow with options for its starts, apart from the run's own parameters.

    `connection` is a psycopg2 connection or Peewee database: the run is started in its open transaction, and exists if
    that commits. With an `idempotency_key` equal starts are one run. A lower `priority` (-100 to 100) goes first.
    """

    definition: Definition[P]
    connection: Any = None
    idempotency_key: str | None = None
    priority: int = 0
    organization: UUID = DEFAULT_ORGANIZATION

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """
        Start a run with the code's version of the workflow.

        Raises `ParameterError`, `UnstorableValue` or `IdempotencyConflict`; nothing is written then.
        """
        parameters = self.definition.encode(*args, **kwargs)
        return _start(self, self.definition.name, ensure_stored(self.definition, self.organization), parameters)


def start_by_name(
    name: str, parameters: Mapping[str, Any], *, organization: UUID = DEFAULT_ORGANIZATION, **options: Any
) -> Run:
    """
    Start a run of a workflow's current version, the one deployed last; `parameters` is plain JSON data.

    Raises `UnknownWorkflow` when none of that name was deployed.
    """
    current = insights.current_version(organization, name)
    if current is None:
        raise UnknownWorkflow(name, insights.deployed_names(organization))
    view: Options[Any] = Options(definition=None, organization=organization, **options)  # type: ignore[arg-type]
    return _start(view, name, current.id, json.dumps(parameters))


def _start(options: Options[Any], name: str, version: UUID, parameters: str) -> Run:
    new = transitions.NewRun(uuid4(), version, parameters, options.priority)
    with _transaction(options.connection) as connection:
        run_id = _reserve(connection, options, name, new) if options.idempotency_key else new.id
        if run_id == new.id and not transitions.start_run(connection, [new]):
            raise FlowForgeError(
                f"workflow {name!r} was stored after this transaction's snapshot was taken: "
                "deploy it first, or start it in a READ COMMITTED transaction"
            )
    engine().wake(b"now" if options.connection is None else b"soon")
    return Run(run_id, options.organization)


def _reserve(connection: Connection, options: Options[Any], name: str, new: transitions.NewRun) -> UUID:
    key = str(options.idempotency_key)
    canonical = json.dumps([name, json.loads(new.parameters)], sort_keys=True)
    fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
    ttl = engine().settings.idempotency_ttl
    reservation = transitions.Reservation(options.organization, None, key, fingerprint, new.id, ttl)
    run_id, stands_for = transitions.reserve(connection, reservation)
    if stands_for != fingerprint:
        raise IdempotencyConflict(key, run_id)
    return run_id


@contextmanager
def _transaction(connection: Any) -> Iterator[Connection]:
    """Give the psycopg2 connection to write on: the caller's, in its transaction, or ours, in one of its own."""
    if connection is None:
        with begun(engine().database.raw()) as own:
            yield own
    else:
        yield driver_connection(connection)


def driver_connection(connection: Any) -> Connection:
    """Return the psycopg2 connection under what a caller gave. Raises TypeError for anything unknown."""
    found = connection.connection() if isinstance(connection, PeeweeDatabase) else connection
    if isinstance(found, Connection):
        return found
    raise TypeError(f"connection={connection!r}: give a psycopg2 connection or a Peewee database on psycopg2")
