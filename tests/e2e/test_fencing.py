"""examples/fencing.py: a zombie's own INSERT is refused in its own transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.script import run_example

if TYPE_CHECKING:
    from pathlib import Path

LINES = """\
A worker owns the payment, and is frozen.
The run succeeded: another worker has booked 1 payment.
The first worker woke up and was refused: there is 1 payment.
What happened: created, claimed, expired, claimed, succeeded, refused.
"""


def test_a_worker_that_wakes_too_late_writes_nothing(tmp_path: Path) -> None:
    """B051: of what a task writes itself; its completion is refused by its token as well, and recorded."""
    ended = run_example("fencing.py", directory=tmp_path)

    assert (ended.returncode, ended.stdout) == (0, LINES), ended.stderr
    assert list(tmp_path.iterdir()) == []
