"""
One frozen `Settings`, read from the environment once per process and passed on.

Each default is written once, beside its unit. Nothing else in the package reads the environment.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from flowforge import faults
from flowforge.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.replace(",", " ").split() if word)


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not 0 < (value := kind(text)) < math.inf:
            raise ValueError(text)
        return value

    return parse


@dataclass(frozen=True, slots=True)
class Settings:
    """
    What a process needs to know.

    Each field names its environment variable and the way its text is read.
    """

    #: Not shown, because URLs hold passwords.
    database_url: str = field(default="", repr=False, metadata={"env": "DATABASE_URL"})
    redis_url: str = field(default="", repr=False, metadata={"env": "REDIS_URL"})
    #: Prefix of every key in Redis: two FlowForges can share one server.
    namespace: str = field(default="flowforge", metadata={"env": "FLOWFORGE_NAMESPACE"})
    #: Modules that define workflows and actors, in import order.
    modules: tuple[str, ...] = field(default=(), metadata={"env": "FLOWFORGE_MODULES", "parse": _words})
    #: Queues that a worker serves; empty means those of the tasks in its modules.
    queues: tuple[str, ...] = field(default=(), metadata={"env": "FLOWFORGE_QUEUES", "parse": _words})
    #: Seconds that a worker owns a task run without renewing.
    lease: float = field(default=15.0, metadata={"env": "FLOWFORGE_LEASE", "parse": _positive(float)})
    #: Seconds that running attempts may take to finish after SIGTERM.
    grace: float = field(default=30.0, metadata={"env": "FLOWFORGE_GRACE", "parse": _positive(float)})
    #: Seconds that running attempts may take to finish once they were cancelled.
    cancel_grace: float = field(default=10.0, metadata={"env": "FLOWFORGE_CANCEL_GRACE", "parse": _positive(float)})
    #: Threads of one worker process.
    threads: int = field(default=8, metadata={"env": "FLOWFORGE_THREADS", "parse": _positive(int)})
    #: Dispatches of one queue that may wait in Redis.
    runway: int = field(default=256, metadata={"env": "FLOWFORGE_RUNWAY", "parse": _positive(int)})
    #: Bytes of JSON that a run's parameters, or a task's result, may have.
    value_limit: int = field(default=1_048_576, metadata={"env": "FLOWFORGE_VALUE_LIMIT", "parse": _positive(int)})
    #: Seconds for which an idempotency key stands for its run.
    idempotency_ttl: float = field(
        default=86400.0, metadata={"env": "FLOWFORGE_IDEMPOTENCY_TTL", "parse": _positive(float)}
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """
        Read the settings.

        Raises `SettingsError` that names the variable, its value and the remedy.
        """
        environ = os.environ if environ is None else environ
        return cls(**{f.name: _read(f.metadata, environ) for f in fields(cls) if environ.get(f.metadata["env"])})

    def require(self, *names: str) -> Settings:
        """
        Return these settings if the named ones have a value.

        Raises `SettingsError` that names the first that has none.
        """
        for name in names:
            if not getattr(self, name):
                raise SettingsError(_ENV[name], None, f"set it, for example to {_EXAMPLES[name]}")
        return self


def _read(metadata: Mapping[str, Any], environ: Mapping[str, str]) -> Any:
    name, parse = metadata["env"], metadata.get("parse", str)
    try:
        return parse(environ[name])
    except ValueError:
        raise SettingsError(name, environ[name], "it must be a positive number") from None


def arm_faults(environ: Mapping[str, str] | None = None) -> None:
    """
    Arm the points that FLOWFORGE_CRASH_AT and FLOWFORGE_PAUSE_AT name: a word each, as `faults` reads it, with commas.

    They are no fields of `Settings`, because no deployment has them. Raises `SettingsError`.
    """
    environ = os.environ if environ is None else environ
    for name, arm in (("FLOWFORGE_CRASH_AT", faults.crash_at), ("FLOWFORGE_PAUSE_AT", faults.pause_at)):
        for word in _words(environ.get(name, "")):
            try:
                arm(word)
            except ValueError as error:
                raise SettingsError(name, word, str(error)) from None


_ENV = {f.name: f.metadata["env"] for f in fields(Settings)}
_EXAMPLES = {
    "database_url": "postgresql://user:password@localhost:5432/mydb",
    "redis_url": "redis://localhost:6379/0",
    "modules": "myapp.workflows",
}
