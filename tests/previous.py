"""
Run the tests of the release before this one, with its code, on databases that this tree's code has migrated.

docs/upgrades.md tells which release that is; vX.Y.Z is its tag. While there is none, this tree stands for it, and a
made-up migration for the next release's. Left out are tests that compare the whole schema with what that release says
of it: they see every change, harmless or not.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.releases import releases

ROOT = Path(__file__).parents[1]

#: Every verb and its races, every constraint, and real processes.
TESTS = (
    "tests/integration/verbs",
    "tests/contract/test_constraints.py",
    "tests/e2e/test_worker.py",
    "-k=not test_every_check_and_unique_constraint and not test_every_foreign_key",
)


def main() -> int:
    """Run them; return pytest's exit code."""
    if len(known := releases()) == 1:
        return run_tests(ROOT, sys.executable, [sys.executable, "-m", "tests.made_up", "expand"], *TESTS)
    with tempfile.TemporaryDirectory() as directory:
        check_out(f"v{known[-2].name}", Path(directory))
        python = f"{directory}/.venv/bin/python"
        return run_tests(Path(directory), python, [sys.executable, "-P", "-m", "flowforge", "migrate"], *TESTS)


def check_out(tag: str, directory: Path) -> None:
    """Lay out the tree that the tag names, and install it as it installs itself."""
    archive = subprocess.run(["git", "archive", tag], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=directory, input=archive, check=True)
    subprocess.run(["make", "setup"], cwd=directory, check=True)


def run_tests(tree: Path, python: str, migrate: list[str], *arguments: str) -> int:
    """Run a tree's tests on databases that a command migrates; return pytest's exit code."""
    environment = {**os.environ, "FLOWFORGE_TEST_MIGRATE": shlex.join(migrate)}
    command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--maxfail", "5", *arguments]
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
