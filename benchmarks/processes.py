"""A deployment of real processes for benchmarks: servers, schedulers and workers, each by its process id."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.deployment import temporary_database
from flowforge import client
from flowforge.embedded.servers import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.settings import Settings


class Processes:
    """Schedulers and workers; what they say goes nowhere."""

    def __init__(self, settings: Settings, modules: str) -> None:
        self._environment = {
            **os.environ,
            "DATABASE_URL": settings.database_url,
            "REDIS_URL": settings.redis_url,
            "FLOWFORGE_MODULES": modules,
        }
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start `flowforge.scheduler` or `flowforge.actors`."""
        command, environment = [sys.executable, "-m", module], {**self._environment, **environment}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._all.append(process)
        return process

    def stop(self) -> None:
        """End all that still run."""
        for process in self._all:
            process.kill()
            process.wait()


@contextmanager
def deployment(modules: str) -> Iterator[tuple[Settings, Processes]]:
    """Start servers for the block, and have the process's own client use them."""
    with temporary_database() as durable, ValkeyServer() as valkey:
        settings = replace(durable, redis_url=valkey.url)
        client.configure(settings)
        processes = Processes(settings, modules)
        try:
            yield settings, processes
        finally:
            processes.stop()
            client.engine().database.close()
