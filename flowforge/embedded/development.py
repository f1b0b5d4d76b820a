"""A whole deployment on one machine: embedded servers, the release command to its end, the Procfile's processes."""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from flowforge.embedded import procfile
from flowforge.embedded.servers import PostgresServer, ValkeyServer
from flowforge.embedded.supervisor import Program, Supervisor
from flowforge.errors import FlowForgeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

logger = logging.getLogger(__name__)

RELEASE = "release"
_WITHOUT_PROCFILE = """
release: flowforge migrate && flowforge deploy
scheduler: flowforge scheduler
worker: flowforge worker
"""
_NEEDS_SHELL = re.compile(r"[|&;<>()$`*?~#\[\]{}]")


@contextmanager
def deployment(modules: Sequence[str], data: Path | None = None) -> Iterator[dict[str, str]]:
    """
    Start PostgreSQL and Valkey, for the block; give the environment that points at them.

    `data` keeps PostgreSQL's data for the next time; without it everything is temporary.
    """
    with PostgresServer(data) as postgres, ValkeyServer() as valkey:
        environment = {"DATABASE_URL": postgres.url, "REDIS_URL": valkey.url, "PATH": _path()}
        if modules:
            environment["FLOWFORGE_MODULES"] = ",".join(modules)
        yield environment


def commands(directory: Path) -> dict[str, str]:
    """Return the commands of a directory's Procfile, or those that every FlowForge needs."""
    file = directory / "Procfile"
    try:
        return procfile.parse(file.read_text(encoding="utf-8") if file.exists() else _WITHOUT_PROCFILE)
    except ValueError as error:
        raise FlowForgeError(str(error)) from None


def release(command: str, environment: Mapping[str, str]) -> None:
    """Run the release command to its end. Raises FlowForgeError unless its exit code is 0."""
    code = subprocess.run(words(command), env={**os.environ, **environment}, check=False).returncode
    if code:
        raise FlowForgeError(f"the release command ended with exit code {code}: {command}")


def supervise(
    commands: Mapping[str, str], environment: Mapping[str, str], *, grace: float, echo: TextIO | None = None
) -> Supervisor:
    """Return a supervisor of commands, by name."""
    programs = [Program(name, words(command), environment) for name, command in commands.items()]
    return Supervisor(programs, grace=grace, echo=echo)


@contextmanager
def running(
    commands: Mapping[str, str], environment: Mapping[str, str], *, grace: float, echo: TextIO | None = None
) -> Iterator[None]:
    """Keep commands running beside the block; none is left after it."""
    supervisor = supervise(commands, environment, grace=grace, echo=echo)
    thread = threading.Thread(target=supervisor.run, name="flowforge-supervisor")
    thread.start()
    try:
        yield
    finally:
        supervisor.stop()
        thread.join()


def words(command: str) -> list[str]:
    """Return the words of a command; one that needs a shell is left to it."""
    return ["sh", "-c", command] if _NEEDS_SHELL.search(command) else shlex.split(command)


def _path() -> str:
    """Return PATH with the directory of this Python first: that is where `flowforge` is installed."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
