"""The processes of the load's own: workers and schedulers, behind proxies; each that ends is replaced at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from psycopg2.extensions import parse_dsn

from flowforge.chaos.effects import QUEUE
from flowforge.chaos.proxy import Proxy
from flowforge.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.settings import Settings

WORKER, SCHEDULER = "worker", "scheduler"
_MODULES = {WORKER: "flowforge.actors", SCHEDULER: "flowforge.scheduler"}
#: A process that cannot start while a server is away, or has itself replaced after it has interrupted user code.
_EXPLAINED = {2, 75}
_POSTGRES_PORT, _REDIS_PORT = "5432", 6379


class Crew:
    """Workers and schedulers by name, such as `worker.1`; what they say goes to files in a directory."""

    def __init__(self, settings: Settings, directory: Path, *, workers: int, schedulers: int) -> None:
        """Prepare, without starting. Raises `SettingsError` where a URL leaves no room for a proxy."""
        self._directory = directory
        self._names = [f"{WORKER}.{n}" for n in range(workers)] + [f"{SCHEDULER}.{n}" for n in range(schedulers)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._open = ExitStack()
        self.postgres, dsn = _before_postgres(settings.database_url)
        self.redis, url = _before_redis(settings.redis_url)
        self._environment = {
            **os.environ,
            "DATABASE_URL": dsn,
            "REDIS_URL": url,
            "FLOWFORGE_MODULES": "flowforge.chaos.workflows",
            "FLOWFORGE_QUEUES": QUEUE,
        }
        #: Endings of processes that nobody here had caused, with their exit codes.
        self.unexplained: list[str] = []
        self._doomed: set[int] = set()

    def __enter__(self) -> Self:
        """Start the proxies and all processes."""
        for proxy in (self.postgres, self.redis):
            self._open.enter_context(proxy)
        self.replace()
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes, in an orderly way if they heed it, and the proxies."""
        for process in self._processes.values():
            self._signal(process, signal.SIGCONT)
            self._signal(process, signal.SIGTERM)
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            process.kill()
            process.wait()
        self._open.close()

    def replace(self) -> None:
        """Start each process that does not run."""
        for name in self._names:
            process = self._processes.get(name)
            if process and process.poll() is None:
                continue
            if process and process.pid not in self._doomed and process.returncode not in _EXPLAINED:
                self.unexplained.append(f"{name} ended with {process.returncode}")
            with (self._directory / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-m", _MODULES[name.partition(".")[0]]]
                self._processes[name] = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def named(self, kind: str) -> list[str]:
        """Return the names of the workers, or of the schedulers."""
        return [name for name in self._names if name.startswith(kind)]

    def kill(self, name: str) -> None:
        """Kill a process without a word."""
        self._doomed.add(self._processes[name].pid)
        self._signal(self._processes[name], signal.SIGKILL)

    def freeze(self, name: str) -> None:
        """Stop a process where it is."""
        self._signal(self._processes[name], signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a process go on, if it still is the one that was frozen."""
        self._signal(self._processes[name], signal.SIGCONT)

    def terminate(self, name: str) -> None:
        """Tell a process to end in an orderly way."""
        self._doomed.add(self._processes[name].pid)
        self._signal(self._processes[name], signal.SIGTERM)

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        if process.poll() is None:
            process.send_signal(number)


def _before_postgres(url: str) -> tuple[Proxy, str]:
    """Return a proxy before PostgreSQL, and the connection string that leads through it."""
    parts = parse_dsn(url)
    host, port = parts.get("host", ""), parts.get("port", _POSTGRES_PORT)
    if "," in host or parts.get("sslmode") in {"verify-ca", "verify-full"}:
        raise SettingsError("DATABASE_URL", "…", "chaos cuts by a proxy: give one host, without verified TLS")
    here = not host or host.startswith("/")
    proxy = Proxy(f"{host or '/var/run/postgresql'}/.s.PGSQL.{port}" if here else (host, int(port)))
    user, password = (quote(parts.pop(name, ""), safe="") for name in ("user", "password"))
    options = {name: value for name, value in parts.items() if name not in {"host", "port", "dbname"}}
    address = f"{user}{f':{password}' if password else ''}@127.0.0.1:{proxy.port}"
    return proxy, f"postgresql://{address}/{quote(parts.get('dbname', user), safe='')}?{urlencode(options)}"


def _before_redis(url: str) -> tuple[Proxy, str]:
    parts = urlsplit(url)
    if parts.scheme != "redis" or not parts.hostname:
        raise SettingsError("REDIS_URL", f"{parts.scheme}://…", "chaos cuts by a proxy: give redis://host:port/db")
    proxy = Proxy((parts.hostname, parts.port or _REDIS_PORT))
    credentials, at, _ = parts.netloc.rpartition("@")
    return proxy, urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{proxy.port}"))
