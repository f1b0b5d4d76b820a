"""docs/testing.md is a test suite: its blocks are the files that they name, and pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.conftest import ROOT

if TYPE_CHECKING:
    from flowforge.embedded.servers import PostgresServer, ValkeyServer

PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_block_is_a_file() -> None:
    assert len(BLOCKS) == PAGE.count("```python") == len({name for name, _ in BLOCKS})


def test_every_fixture_and_option_is_named() -> None:
    told = set(re.findall(r"`(flowforge_\w+)`|(--flowforge-[\w-]+)", PAGE))
    package = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "flowforge" / "testing").glob("*.py"))

    there = set(re.findall(r"^def (flowforge_\w+)|addoption\(\"(--[\w-]+)", package, re.MULTILINE))

    assert there == {names for names in told if names != ("flowforge_test_", "")}


def test_the_blocks_pass(tmp_path: Path, postgres: PostgresServer, valkey: ValkeyServer) -> None:
    for name, block in BLOCKS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(block, encoding="utf-8")
    tests = sum(len(re.findall(r"^def test_", block, re.MULTILINE)) for _, block in BLOCKS)
    (command,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "FLOWFORGE"))}

    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env={
            **environment,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "PYTEST_ADDOPTS": "-W error -p no:cacheprovider",
            "DATABASE_URL": postgres.url,
            "REDIS_URL": valkey.url,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert re.search(rf"= {tests} passed in", done.stdout), done.stdout + done.stderr
