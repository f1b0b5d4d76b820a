"""Starting runs: in a transaction of our own, or in the caller's. One statement for one run or for thousands."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec
from uuid import UUID, uuid4

from flowforge import insights, transitions
from flowforge.client import callers
from flowforge.client.deploying import ensure_stored
from flowforge.client.engine import engine, migrated
from flowforge.client.offload import offload
from flowforge.client.run import Run
from flowforge.db import begun
from flowforge.durations import positive
from flowforge.errors import DefinitionError, FlowForgeError, IdempotencyConflict, OptionError, UnknownWorkflow
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.transitions import NewRun
from flowforge.workflow import values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from flowforge.durations import Duration
    from flowforge.workflow import Definition

P = ParamSpec("P")

#: Asked run id -> the run that it is, and whether that was asked for with the same.
Answers = dict[UUID, tuple[UUID, bool]]

_KEY = re.compile(r"[^\x00\ud800-\udfff]{1,255}")  # what PostgreSQL can hold


@dataclass(frozen=True)
class Prepared:
    """A start that was checked and not made yet: for `start_many`, which makes a run of its own of it each time."""

    workflow: str
    organization: UUID
    new: NewRun

    def afresh(self) -> Prepared:
        """Return the same start of another run."""
        return replace(self, new=self.new._replace(id=uuid4()))


def _is_key(key: object) -> bool:
    return isinstance(key, str) and bool(_KEY.fullmatch(key))


class Conflict(NamedTuple):
    """A start, and the run of something else for which its key stands."""

    start: Prepared
    run_id: UUID

    @property
    def question(self) -> tuple[str, dict[str, UUID]]:
        """What that run was asked for: a statement and its parameters."""
        return insights.ASKED_FOR, {"run": self.run_id}

    def error(self, rows: Sequence[callers.Row]) -> IdempotencyConflict:
        """Return the error that names what differs, from the rows that answer `question`."""
        return IdempotencyConflict(
            str(self.start.new.key), self.run_id, [part for row in rows for part in self._differs(*row)]
        )

    def _differs(self, workflow: str, parameters: str) -> list[str]:
        if workflow != self.start.workflow:
            return [f"workflow {workflow!r}"]
        before, now = json.loads(parameters), json.loads(self.start.new.parameters)
        names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        return [f"parameter {name!r}" for name in names]


@dataclass(frozen=True)
class Options(Generic[P]):
    """
    A view of a workflow with options for its starts, apart from the run's own parameters.

    `connection` is the caller's, of psycopg2, psycopg, SQLAlchemy, Django or Peewee: the run is started in its open
    transaction, and exists if that commits. With an `idempotency_key` equal starts are one run. A lower `priority`
    (-100 to 100) goes first. A run that is not over `deadline` after its start is cancelled: a duration such as `2h`.
    """

    definition: Definition[P]
    connection: Any = None
    idempotency_key: str | None = None
    priority: int = 0
    deadline: Duration | None = None
    organization: UUID = DEFAULT_ORGANIZATION

    def __post_init__(self) -> None:
        """Refuse what the database would refuse, before that ends the caller's transaction."""
        if type(self.priority) is not int or not -100 <= self.priority <= 100:  # noqa: PLR2004 - as schema.sql says
            raise OptionError("priority", self.priority, "it must be a whole number between -100 and 100")
        if self.idempotency_key is not None and not _is_key(self.idempotency_key):
            raise OptionError(
                "idempotency_key", self.idempotency_key, "it must be a text of 1-255 characters, none NUL"
            )
        self._allowed()

    def _allowed(self) -> float | None:
        """Return the seconds from a run's start to its deadline. Raises `OptionError` for what is no duration."""
        try:
            return None if self.deadline is None else positive(self.deadline, "deadline")
        except DefinitionError as error:
            remedy = "write a duration of more than none, such as 90, '30m' or '2h'"
            raise OptionError("deadline", self.deadline, remedy) from error

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """
        Start a run with the code's version of the workflow.

        Raises `ParameterError`, `UnstorableValue` or `IdempotencyConflict`; nothing is written then.
        """
        return self.start_many([self.prepare(*args, **kwargs)])[0]

    async def start_async(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Start a run like `start`, on an asynchronous connection; without one in a transaction of its own."""
        return (await self.start_many_async([await offload(self.prepare, *args, **kwargs)]))[0]

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """
        Check a start and store the version that it needs; `start_many` makes it, on its own connection.

        Raises `ParameterError` or `UnstorableValue`.
        """
        parameters = self.definition.encode(*args, **kwargs)
        version = ensure_stored(self.definition, self.organization)
        return self._prepared(self.definition.name, version, parameters)

    def start_many(self, starts: Iterable[Prepared]) -> list[Run]:
        """
        Start all of these in one statement; return their runs in the same order.

        Raises `OptionError` when two of them have one key, and `IdempotencyConflict`: no run is started then, or in the
        caller's transaction those of the others, until that is rolled back.
        """
        if not (prepared := _all(starts)):
            return []
        with self._one_transaction(len(prepared)):
            answers = _answers(callers.fetch(self.connection, *_statement(prepared)))
            if found := _conflict(prepared, answers):
                raise found.error(callers.fetch(self.connection, *found.question))
        return self._started(prepared, answers)

    async def start_many_async(self, starts: Iterable[Prepared]) -> list[Run]:
        """Start all of these like `start_many`, on an asynchronous connection or, without one, on ours."""
        if self.connection is None or not (prepared := _all(starts)):
            return await offload(self.start_many, starts)
        answers = _answers(await callers.fetch_async(self.connection, *_statement(prepared)))
        if found := _conflict(prepared, answers):
            raise found.error(await callers.fetch_async(self.connection, *found.question))
        return await offload(self._started, prepared, answers)

    def _one_transaction(self, starts: int) -> AbstractContextManager[object]:
        """Return the block that a conflict leaves unwritten: one start alone writes nothing then anyhow."""
        ours = self.connection is None and starts > 1
        return begun(engine().database.raw()) if ours else nullcontext()

    def _prepared(self, name: str, version: UUID, parameters: str) -> Prepared:
        values.check_size(parameters, engine().settings.value_limit, f"parameters of workflow {name!r}")
        return Prepared(
            name,
            self.organization,
            NewRun(uuid4(), version, parameters, self.priority, self.idempotency_key, self._allowed()),
        )

    def _started(self, prepared: Sequence[Prepared], answers: Answers) -> list[Run]:
        """Wake a publisher, and return the runs."""
        engine().wake(b"now" if self.connection is None else b"soon")
        return [Run(answers[one.new.id][0], one.organization) for one in prepared]


def _all(starts: Iterable[Prepared]) -> list[Prepared]:
    prepared = [one.afresh() for one in starts]
    keys = Counter((one.organization, one.new.key) for one in prepared if one.new.key is not None)
    if twice := [key for (_, key), times in keys.items() if times > 1]:
        raise OptionError("idempotency_key", twice[0], "two starts of one start_many have it: leave one of them out")
    return prepared


def _statement(prepared: Sequence[Prepared]) -> tuple[str, dict[str, Any]]:
    ttl = engine().settings.idempotency_ttl
    return transitions.START_RUN, transitions.start_run_parameters([one.new for one in prepared], key_ttl=ttl)


def _answers(rows: Iterable[callers.Row]) -> Answers:
    return {UUID(str(id_)): (UUID(str(run_id)), same) for id_, run_id, same in rows}


def _conflict(prepared: Sequence[Prepared], answers: Answers) -> Conflict | None:
    """Return the first start whose key stands for something else, if any. Raises when a workflow was not seen."""
    for one in prepared:
        if one.new.id not in answers:
            raise FlowForgeError(
                f"workflow {one.workflow!r} was stored after this transaction's snapshot was taken: "
                "deploy it first, or start it in a READ COMMITTED transaction"
            )
        run_id, same = answers[one.new.id]
        if not same:
            return Conflict(one, run_id)
    return None


def start_by_name(
    name: str, parameters: Mapping[str, Any], *, organization: UUID = DEFAULT_ORGANIZATION, **options: Any
) -> Run:
    """
    Start a run of a workflow's current version, the one deployed last; `parameters` is plain JSON data.

    Raises `UnknownWorkflow` when none of that name was deployed.
    """
    engine()
    with migrated():
        current = insights.current_version(organization, name)
    if current is None:
        raise UnknownWorkflow(name, insights.deployed_names(organization))
    view: Options[Any] = Options(definition=None, organization=organization, **options)  # type: ignore[arg-type]
    encoded = values.encode(parameters, f"parameters of workflow {name!r}")
    return view.start_many([view._prepared(name, current.id, encoded)])[0]  # noqa: SLF001 - the view without a definition
