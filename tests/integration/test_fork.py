"""A process that has used its connections, and forks."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowforge import db

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


def session() -> int:
    """Return the process id of the server's end of our connection."""
    (row,) = db.proxy.perform(db.fetch, "select pg_backend_pid() as session", {})
    return int(row.session)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_asks_in_a_session_of_its_own_from_the_first_question_on(database: db.Database) -> None:
    """B100."""
    assert database.perform(db.fetch, "select 42 as answer", {})[0].answer == 42
    before = session()

    with multiprocessing.get_context("fork").Pool(1) as pool:
        childs = pool.apply(session)

    assert childs != before
    assert session() == before
