"""The public Workflow: a definition that can be started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, overload

from flowforge.client.inline import InlineRun, run_inline
from flowforge.client.starting import Options, Prepared
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.workflow import Definition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from flowforge.client.run import Run
    from flowforge.durations import Duration

P = ParamSpec("P")


class Workflow(Definition[P]):
    """
    A workflow: a name, the class of its parameters, and tasks written as plain functions.

        sales = Workflow("daily-sales", Sales)

        @sales.task
        def extract(day: date) -> list[Order]: ...

        run = sales.start(day=date(2026, 11, 29))
    """

    @overload
    def __init__(self: Workflow[[]], name: str, *, description: str = ..., deadline: Duration | None = ...) -> None: ...

    @overload
    def __init__(
        self, name: str, parameters: Callable[P, object], *, description: str = ..., deadline: Duration | None = ...
    ) -> None: ...

    def __init__(
        self, name: str, parameters: Any = None, *, description: str = "", deadline: Duration | None = None
    ) -> None:
        """
        Define a workflow.

        `name` is 1-63 of `[a-z0-9._-]`, a letter or digit first; `parameters` is a dataclass or pydantic model. A run
        that is not over `deadline` after its start is cancelled.
        """
        super().__init__(name, parameters, description=description, deadline=deadline)

    def options(
        self,
        *,
        connection: Any = None,
        idempotency_key: str | None = None,
        priority: int = 0,
        deadline: Duration | None = None,
        organization: UUID = DEFAULT_ORGANIZATION,
    ) -> Options[P]:
        """Return a view of this workflow whose starts have these options; see `Options`."""
        return Options(self, connection, idempotency_key, priority, deadline, organization)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Start a run in a transaction of its own. Raises `ParameterError` or `UnstorableValue`."""
        return self.options().start(*args, **kwargs)

    async def start_async(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Start a run like `start`, without blocking the event loop."""
        return await self.options().start_async(*args, **kwargs)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Check a start, for `start_many` to make it. Raises `ParameterError` or `UnstorableValue`."""
        return self.options().prepare(*args, **kwargs)

    def start_many(self, starts: Iterable[Prepared]) -> list[Run]:
        """Start many runs in one statement and one transaction, in the order given; see `Options.start_many`."""
        return self.options().start_many(starts)

    async def start_many_async(self, starts: Iterable[Prepared]) -> list[Run]:
        """Start many runs like `start_many`, without blocking the event loop."""
        return await self.options().start_many_async(starts)

    def run_inline(self, *args: P.args, **kwargs: P.kwargs) -> InlineRun:
        """
        Run the same plan in this process, one task after the other, without servers: for tests.

        Retries, rules and values are the engine's, and so is the order: what is due first starts first. Nobody waits.
        Usable inside a running event loop, which it blocks. Raises `ParameterError` or `UnstorableValue`.
        """
        return run_inline(self, self.encode(*args, **kwargs))
