"""Both strict checkers accept the documentation's example, infer its results, and refuse its misuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = "tests/typing/api.py"

CHECKERS = {
    "mypy": ["mypy", "--strict", "--follow-imports=silent", EXAMPLE],
    "pyright": ["pyright", "--pythonpath", sys.executable, EXAMPLE],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_example_is_accepted_and_its_misuse_refused(checker: str) -> None:
    command = [sys.executable, "-m", *CHECKERS[checker]]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
