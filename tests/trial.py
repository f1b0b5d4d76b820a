"""What becomes of tests when a file of ours is another: told by a copy of the tree, in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[1]
_COPIED = ("flowforge", "tests", "schema.sql", "pyproject.toml", "examples", "docs", "README.md", "Makefile")
_LONGEST = 900.0  # seconds
_HOW = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly")


def red(tests: Sequence[str], changed: Mapping[Path, str] | None = None) -> str | None:
    """Return the first of these tests that is red where these files have these texts, or None."""
    with tempfile.TemporaryDirectory(prefix="flowforge-trial-") as directory:
        _copy(Path(directory))
        for file, text in (changed or {}).items():
            (Path(directory) / file).write_text(text)
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *_HOW, *tests],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": directory},
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
        )
    first = re.search(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    return (first[1] if first else ran.stdout[-300:]) if ran.returncode else None


def _copy(directory: Path) -> None:
    """Copy what the tests need."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, directory / name)
