"""A process that has used its connections, and forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.settings import Settings

ROOT = Path(__file__).parents[2]


def test_every_child_opens_its_own_and_each_reply_belongs_to_its_question(settings: Settings) -> None:
    """B100: 2000 rounds of three questions in two children and two threads of their parent, all at once."""
    environment = {**os.environ, "DATABASE_URL": settings.database_url, "REDIS_URL": settings.redis_url}

    answer = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-m", "tests.integration.forking"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (answer.returncode, answer.stderr) == (0, "")
    first, second, thread, later_in_thread, parent, later = json.loads(answer.stdout)
    assert [found["wrong"] for found in (first, second, thread, later_in_thread, parent, later)] == [0] * 6
    assert parent["sessions"] == later["sessions"] == [later["before"]]
    assert thread["sessions"] == later_in_thread["sessions"]
    assert len({*first["sessions"], *second["sessions"], *thread["sessions"], *parent["sessions"]}) == 4
