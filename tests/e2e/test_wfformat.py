"""Eight recorded workflows of real science, replayed by real worker processes; the history proves the order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import psycopg2
import pytest

from examples import wfformat
from flowforge.states import RunState
from tests.e2e.conftest import ROOT

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from flowforge import Run
    from tests.e2e.conftest import Fleet

INSTANCES = ROOT.parent / "shared" / "data" / "wfinstances"
CRITICAL_PATH = 1.5  # seconds: what each replay takes at least

pytestmark = pytest.mark.skipif(not INSTANCES.is_dir(), reason=f"no recorded workflows at {INSTANCES}")

History = dict[str, dict[str, list["datetime"]]]


@pytest.fixture
def workers(fleet: Fleet, files: list[Path]) -> Fleet:
    fleet.scheduler()
    for _ in range(2):
        fleet.worker(
            PYTHONPATH=str(ROOT / "examples"),
            FLOWFORGE_MODULES="wfformat",
            FLOWFORGE_LEASE="15",
            FLOWFORGE_THREADS="32",
            WFFORMAT_FILES=os.pathsep.join(map(str, files)),
        )
    return fleet


@pytest.fixture
def files() -> list[Path]:
    return sorted(INSTANCES.glob("*.json"))


def test_eight_recorded_workflows_keep_their_order_and_run_each_task_once(workers: Fleet, files: list[Path]) -> None:
    assert 8 == len(files)

    runs = {file: replay(file) for file in files}

    states = {file.name: run.wait(timeout=60) for file, run in runs.items()}
    assert dict.fromkeys(states, RunState.SUCCEEDED) == states
    for file, run in runs.items():
        parents = parents_in(file)
        assert parents == stored_parents(workers, run), file
        history = history_of(workers, run)
        assert parents.keys() == history.keys(), file
        assert_each_ran_once(history)
        assert_parents_ended_first(parents, history)


def replay(file: Path) -> Run:
    recording = wfformat.read(file)
    return wfformat.build(recording).start(speed=recording.critical_path / CRITICAL_PATH)


def parents_in(file: Path) -> dict[str, set[str]]:
    """Read the file without the example's help; each of these eight has ids that are keys as they are."""
    tasks = json.loads(file.read_text())["workflow"]["specification"]["tasks"]
    return {task["id"]: set(task["parents"]) for task in tasks}


def stored_parents(fleet: Fleet, run: Run) -> dict[str, set[str]]:
    """Return the edges of the version that the run executed, as the database has them."""
    query = """
        select t.key, array_remove(array_agg(u.key), null)
          from flowforge.workflow_run r
          join flowforge.task t on t.workflow_id = r.workflow_id
          left join flowforge.task_dependency d on d.downstream_id = t.id
          left join flowforge.task u on u.id = d.upstream_id
         where r.id = %s
         group by t.key
    """
    return {key: set(parents) for key, parents in rows(fleet, query, run)}


def history_of(fleet: Fleet, run: Run) -> History:
    """Return for each task run the times of each kind of its events, as the database has them."""
    query = """
        select t.key, e.kind, e.created_at
          from flowforge.task_run_event e
          join flowforge.task_run tr on tr.id = e.task_run_id
          join flowforge.task t on t.id = tr.task_id
         where tr.workflow_run_id = %s
    """
    history: History = defaultdict(lambda: defaultdict(list))
    for key, kind, at in rows(fleet, query, run):
        history[key][kind].append(at)
    return history


def rows(fleet: Fleet, query: str, run: Run) -> list[tuple]:
    connection = psycopg2.connect(fleet.settings.database_url)
    with connection.cursor() as cursor:
        cursor.execute(query, (str(run.id),))
        found = cursor.fetchall()
    connection.close()
    return found


def assert_each_ran_once(history: History) -> None:
    for key, events in history.items():
        counts = {kind: len(times) for kind, times in events.items()}
        assert {"created": 1, "readied": 1, "claimed": 1, "succeeded": 1} == counts, key


def assert_parents_ended_first(parents: dict[str, set[str]], history: History) -> None:
    for key, named in parents.items():
        (claimed,) = history[key]["claimed"]
        assert all(claimed >= ended for parent in named for ended in history[parent]["succeeded"]), key
