"""Starting runs: in a transaction of our own, or in the caller's."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec
from uuid import UUID, uuid4

from peewee import Database as PeeweeDatabase
from peewee import Proxy as PeeweeProxy
from psycopg2.extensions import connection as Connection  # noqa: N812

from flowforge import insights, transitions
from flowforge.client.deploying import ensure_stored
from flowforge.client.engine import engine
from flowforge.client.run import Run
from flowforge.db import begun
from flowforge.errors import FlowForgeError, IdempotencyConflict, OptionError, UnknownWorkflow
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.workflow import values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.workflow import Definition

P = ParamSpec("P")

_KEY = re.compile(r"[^\x00]{1,255}")


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

    def __post_init__(self) -> None:
        """Refuse what the database would refuse, before that ends the caller's transaction."""
        if not -100 <= self.priority <= 100:  # noqa: PLR2004 - as schema.sql says
            raise OptionError("priority", self.priority, "it must lie between -100 and 100")
        if self.idempotency_key is not None and not _KEY.fullmatch(self.idempotency_key):
            raise OptionError("idempotency_key", self.idempotency_key, "it must be 1-255 characters, none of them NUL")

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
    engine()
    current = insights.current_version(organization, name)
    if current is None:
        raise UnknownWorkflow(name, insights.deployed_names(organization))
    view: Options[Any] = Options(definition=None, organization=organization, **options)  # type: ignore[arg-type]
    return _start(view, name, current.id, values.encode(parameters, f"parameters of workflow {name!r}"))


def _start(options: Options[Any], name: str, version: UUID, parameters: str) -> Run:
    new = transitions.NewRun(uuid4(), version, parameters, options.priority)
    with begun(driver_connection(options.connection)) as connection:
        run_id = _reserve(connection, options, name, new) if options.idempotency_key else new.id
        if run_id is None or (run_id == new.id and not transitions.start_run(connection, [new])):
            raise FlowForgeError(
                f"workflow {name!r} was stored after this transaction's snapshot was taken: "
                "deploy it first, or start it in a READ COMMITTED transaction"
            )
    engine().wake(b"now" if options.connection is None else b"soon")
    return Run(run_id, options.organization)


def _reserve(connection: Connection, options: Options[Any], name: str, new: transitions.NewRun) -> UUID | None:
    """Return the run that the key stands for, or None when the transaction does not see the workflow."""
    key = str(options.idempotency_key)
    canonical = json.dumps([name, json.loads(new.parameters)], sort_keys=True)
    fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
    ttl = engine().settings.idempotency_ttl
    reservation = transitions.Reservation(options.organization, None, key, fingerprint, new.id, new.workflow_id, ttl)
    reserved = transitions.reserve(connection, reservation)
    if reserved is None:
        return None
    run_id, stands_for = reserved
    if stands_for != fingerprint:
        raise IdempotencyConflict(key, run_id)
    return run_id


def driver_connection(connection: Any) -> Connection:
    """Return the psycopg2 connection under what a caller gave, or ours for None. Raises TypeError for anything else."""
    if connection is None:
        return engine().database.raw()
    database = connection.obj if isinstance(connection, PeeweeProxy) else connection
    found = database.connection() if isinstance(database, PeeweeDatabase) else database
    if isinstance(found, Connection):
        return found
    raise TypeError(f"connection={connection!r}: give a psycopg2 connection or a Peewee database on psycopg2")
