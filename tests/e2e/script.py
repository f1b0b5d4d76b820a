"""Running an example as a user does, and seeing that none of its processes is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from tests.e2e.conftest import ROOT
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.conftest import Fleet

_MARK = "STARTED_BY_THIS_TEST"


def run_example(
    name: str, words: Sequence[str] = (), *, directory: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `examples/NAME` in a directory, with no setting but those given; return when all its processes are gone."""
    mark = uuid4().hex
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWFORGE_", "WFFORMAT_"))}
    for setting in ("DATABASE_URL", "REDIS_URL", "PYTHONPATH"):
        plain.pop(setting, None)
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *words],
        cwd=directory,
        env={**plain, **environment, _MARK: mark},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    wait_for(lambda: not marked(mark), seconds=5)
    return ended


def servers_of(fleet: Fleet) -> dict[str, str]:
    """Return the settings that name a fleet's servers."""
    names = ("DATABASE_URL", "REDIS_URL", "FLOWFORGE_NAMESPACE")
    return {name: fleet.environment()[name] for name in names}


def marked(mark: str) -> list[int]:
    """Return the processes that have inherited a mark."""
    wanted = f"{_MARK}={mark}".encode()
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if wanted in _environment(entry)]


def _environment(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""
