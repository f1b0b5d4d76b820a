"""examples/etl.py does what it says, from anywhere, with nothing but an installed FlowForge."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg2

from tests.e2e.conftest import ROOT
from tests.e2e.script import run_example, servers_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Fleet

LINES = [
    r"Rolled back: there is no booking and no run ([0-9a-f-]{36})\.",
    r"Committed: there is a booking of 2026-11-29, and run ([0-9a-f-]{36})\.",
    r"A second start with the same idempotency key gave the same run\.",
    r"It succeeded\.",
    r"transform gave Totals\(orders=100, cents=507900\) at attempt 2\.",
    r"8 shards together counted 100 orders\.",
    r"publish said '100 orders, 5079\.00 EUR', archive 'orders/2026/11/29\.parquet'\.",
    r"clean_up removed the scratch files of run ([0-9a-f-]{36})\.",
    r"Inline it succeeded too, with the same results\.",
]


def told(output: str) -> list[str]:
    """See that the lines are those expected; return the run ids in them."""
    found = re.fullmatch("\n".join(LINES) + "\n", output)
    assert found, output
    return list(found.groups())


def test_the_etl_example_runs_on_servers_of_its_own_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ended = run_example("etl.py", directory=tmp_path)

    assert (0, "") == (ended.returncode, ended.stderr), ended.stderr
    never, committed, cleaned = told(ended.stdout)
    assert never != committed == cleaned
    assert [] == list(tmp_path.iterdir())


def test_the_etl_example_uses_your_deployment_and_is_safe_to_run_again(fleet: Fleet, tmp_path: Path) -> None:
    fleet.scheduler()
    fleet.worker(FLOWFORGE_MODULES="etl", PYTHONPATH=str(ROOT / "examples"))

    first, second = (run_example("etl.py", directory=tmp_path, **servers_of(fleet)) for _ in range(2))

    assert (0, 0) == (first.returncode, second.returncode), first.stderr + second.stderr
    committed = told(first.stdout)[1]
    assert committed == told(second.stdout)[1]
    assert [committed] == runs(fleet)


def test_the_etl_example_says_in_one_line_that_a_server_does_not_answer(tmp_path: Path) -> None:
    unreachable = {"DATABASE_URL": "postgresql://postgres@/none?host=/nowhere", "REDIS_URL": "redis://127.0.0.1:1/0"}

    ended = run_example("etl.py", directory=tmp_path, **unreachable)

    assert 1 == ended.returncode
    assert ended.stderr.startswith("error: PostgreSQL at DATABASE_URL does not answer: "), ended.stderr


def runs(fleet: Fleet) -> list[str]:
    connection = psycopg2.connect(fleet.settings.database_url)
    with connection.cursor() as cursor:
        cursor.execute("select id::text from flowforge.workflow_run")
        found = cursor.fetchall()
    connection.close()
    return [run_id for (run_id,) in found]
