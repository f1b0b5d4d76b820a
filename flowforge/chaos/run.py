"""A run of chaos: the load, the troubles, a calm in which all must end, and the verdict."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg2
import redis as redis_client

from flowforge import client, insights
from flowforge.broker import connect_redis
from flowforge.chaos import effects, workflows
from flowforge.chaos.crew import Crew
from flowforge.chaos.load import Load
from flowforge.chaos.trouble import Trouble, plan
from flowforge.db import GONE
from flowforge.errors import DatabaseUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from uuid import UUID

    from flowforge.settings import Settings

logger = logging.getLogger(__name__)

_STEP = 0.05  # seconds
_STARTING = 0.9  # of the time, in which the load is started
_AWAY = (*GONE, psycopg2.Error, redis_client.RedisError, DatabaseUnreachable)


class Restarts(Protocol):
    """A server that was started here."""

    def restart(self) -> object:
        """Stop it and start it again."""


@dataclass(frozen=True)
class Order:
    """What is asked for. `servers` are embedded ones, `postgres` and `redis`, that may be restarted and wiped whole."""

    seconds: float = 60.0
    task_runs: int = 2_000
    workers: int = 3
    schedulers: int = 2
    seed: int = 1
    calm: float = 180.0
    directory: Path = Path()
    servers: dict[str, Restarts] = field(default_factory=dict)


@dataclass
class Verdict:
    """What was done, what became of it, and what is wrong: nothing, if all numbers of `wrong` are 0."""

    order: Order
    troubles: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)
    #: Seconds in all, and those of the calm until the last run had ended.
    took: float = 0.0
    calm: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.wrong.values()) and not self.unexplained


def run(settings: Settings, order: Order) -> Verdict:
    """Cause chaos on the deployment that the settings name, and judge. The process's own client is used for it."""
    return _Chaos(settings, order).carry_out()


class _Chaos:
    def __init__(self, settings: Settings, order: Order) -> None:
        self._settings, self._order, self._verdict = settings, order, Verdict(order)
        self._load = Load(order.seed)
        self._crew = Crew(settings, order.directory, workers=order.workers, schedulers=order.schedulers)
        self._ends: list[tuple[float, Callable[[], object]]] = []  # when something stalled or frozen goes on
        self._deadlocks = self._deadlocks_seen = 0

    def carry_out(self) -> Verdict:
        database = client.engine().database
        for workflow in (one for one in vars(workflows).values() if isinstance(one, client.Workflow)):
            client.deploy(workflow)
        since = effects.prepare(database.raw())
        self._deadlocks_seen = effects.deadlocks(database.raw())
        began = time.monotonic()
        with self._crew:
            try:
                self._disturb(began)
                self._calm(since)
            except BaseException:
                self._leave(since)
                raise
        self._judge(since)
        self._verdict.took = time.monotonic() - began
        return self._verdict

    def _leave(self, since: datetime) -> None:
        """Leave nothing behind that nobody carries out: lift what is paused, and cancel what is left of the load."""
        self._go_on(math.inf)
        self._try(self._load.calm)
        self._try(lambda: self._load.abandon(effects.left(client.engine().database.raw(), since)))

    def _disturb(self, began: float) -> None:
        troubles = plan(self._order.seed, self._order.seconds, servers=bool(self._order.servers))
        while (now := time.monotonic() - began) < self._order.seconds:
            share = min(1.0, now / (self._order.seconds * _STARTING))
            if self._load.task_runs < share * self._order.task_runs:
                self._try(self._load.start)
            while troubles and troubles[0].at <= now:
                self._cause(troubles.pop(0))
            self._go_on(time.monotonic())
            self._crew.replace()
            time.sleep(_STEP)

    def _cause(self, trouble: Trouble) -> None:
        self._verdict.troubles[trouble.kind] += 1
        word, _, what = trouble.kind.partition(" ")
        logger.info("chaos.%s what=%s victim=%d lasts=%.1f", word, what, trouble.victim, trouble.lasts)
        getattr(self, f"_{word}")(what, trouble)

    def _victim(self, kind: str, trouble: Trouble) -> str:
        names = self._crew.named(kind)
        return names[trouble.victim % len(names)]

    def _kill(self, what: str, trouble: Trouble) -> None:
        self._crew.kill(self._victim(what, trouble))

    def _terminate(self, what: str, trouble: Trouble) -> None:
        self._crew.terminate(self._victim(what, trouble))

    def _freeze(self, what: str, trouble: Trouble) -> None:
        name = self._victim(what, trouble)
        self._crew.freeze(name)
        self._later(trouble.lasts, lambda: self._crew.thaw(name))

    def _cut(self, what: str, _: Trouble) -> None:
        getattr(self._crew, what).cut()

    def _stall(self, what: str, trouble: Trouble) -> None:
        proxy = getattr(self._crew, what)
        proxy.stall()
        self._later(trouble.lasts, proxy.flow)

    def _wipe(self, _what: str, _trouble: Trouble) -> None:
        self._try(self._wipe_runway)

    def _wipe_runway(self) -> None:
        client_ = connect_redis(self._settings)
        if self._order.servers:
            client_.flushall()
        else:
            client_.delete(f"{self._settings.namespace}:dispatch:{effects.QUEUE}")

    def _restart(self, what: str, _: Trouble) -> None:
        if what == "postgres":
            self._try(self._count_deadlocks)
            self._deadlocks_seen = 0  # a restart may lose the count
        self._order.servers[what].restart()
        if what == "postgres":
            self._try(lambda: setattr(self, "_deadlocks_seen", effects.deadlocks(client.engine().database.raw())))

    def _decide(self, _what: str, _trouble: Trouble) -> None:
        self._try(lambda: logger.info("chaos.decided %s", self._load.decide()))

    def _hold(self, _what: str, trouble: Trouble) -> None:
        self._try(self._load.hold_up)
        self._later(trouble.lasts, lambda: self._try(self._load.go_on))

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self._ends.append((time.monotonic() + seconds, act))

    def _go_on(self, now: float) -> None:
        due = [entry for entry in self._ends if entry[0] <= now]
        self._ends = [entry for entry in self._ends if entry[0] > now]
        for _, act in due:
            act()

    def _try(self, act: Callable[[], Any]) -> bool:
        """Do what needs the servers; one that is away is no news here. Say whether it was done."""
        try:
            act()
        except _AWAY as error:
            logger.info("chaos.server_away error=%s", str(error).strip())
            return False
        return True

    def _calm(self, since: datetime) -> None:
        """Let what is frozen or stalled go on, start what is left of the load, and wait until all runs have ended."""
        self._go_on(math.inf)
        began, calm = time.monotonic(), False
        while self._in_time(began) and not (calm and self._all_ended(since)):
            if self._load.task_runs < self._order.task_runs:
                self._try(self._load.start)
                continue
            calm = calm or self._try(self._load.calm)
            self._crew.replace()
            time.sleep(_STEP)
        self._verdict.calm = time.monotonic() - began

    def _all_ended(self, since: datetime) -> bool:
        left: list[list[UUID]] = []
        self._try(lambda: left.append(effects.left(client.engine().database.raw(), since)))
        return left == [[]]

    def _in_time(self, began: float) -> bool:
        return time.monotonic() - began < self._order.calm

    def _count_deadlocks(self) -> None:
        seen = effects.deadlocks(client.engine().database.raw())
        self._deadlocks += max(0, seen - self._deadlocks_seen)
        self._deadlocks_seen = seen

    def _judge(self, since: datetime) -> None:
        connection = client.engine().database.raw()
        self._count_deadlocks()
        self._verdict.counts = effects.counts(connection, since)
        self._verdict.unexplained = self._crew.unexplained
        self._verdict.wrong = {
            "runs that have not ended": len(effects.left(connection, since)),
            "deadlocks": self._deadlocks,
            **effects.wrong(connection, since),
            **insights.broken_invariants(connection),
        }
