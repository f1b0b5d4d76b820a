"""Eight recorded workflows of real science, replayed by real worker processes; the history proves the order."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from typing import TYPE_CHECKING

import psycopg2
import pytest

from examples import wfformat
from flowforge.states import RunState
from tests.e2e.conftest import ROOT
from tests.e2e.script import run_example, servers_of

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from flowforge import Run
    from tests.e2e.conftest import Fleet

INSTANCES = ROOT.parent / "shared" / "data" / "wfinstances"
CRITICAL_PATH = 1.5  # seconds: what each replay takes at least

needs_instances = pytest.mark.skipif(not INSTANCES.is_dir(), reason=f"no recorded workflows at {INSTANCES}")

History = dict[str, dict[str, list["datetime"]]]


@pytest.fixture
def workers(fleet: Fleet, files: list[Path]) -> Fleet:
    fleet.scheduler()
    for _ in range(2):
        fleet.worker(**for_replays(*files))
    return fleet


def for_replays(*files: Path) -> dict[str, str]:
    """Return the settings of a worker that knows these files; a lease that a busy machine does not lose."""
    return {
        "PYTHONPATH": str(ROOT / "examples"),
        "FLOWFORGE_MODULES": "wfformat",
        "FLOWFORGE_LEASE": "15",
        "FLOWFORGE_THREADS": "32",
        "WFFORMAT_FILES": os.pathsep.join(map(str, files)),
    }


@pytest.fixture
def files() -> list[Path]:
    return sorted(INSTANCES.glob("*.json"))


@needs_instances
def test_eight_recorded_workflows_keep_their_order_and_run_each_task_once(workers: Fleet, files: list[Path]) -> None:
    assert 8 == len(files)

    runs = {file: replay(file) for file in files}

    states = {file.name: run.wait(timeout=60) for file, run in runs.items()}
    assert dict.fromkeys(states, RunState.SUCCEEDED) == states
    for file, run in runs.items():
        parents = parents_in(file)
        assert parents == stored_parents(workers, run.id), file
        history = history_of(workers, run.id)
        assert parents.keys() == history.keys(), file
        assert_each_ran_once(history)
        assert_parents_ended_first(parents, history)
        assert_it_took_the_critical_path(history)


def replay(file: Path) -> Run:
    recording = wfformat.read(file)
    return wfformat.build(recording).start(speed=recording.critical_path / CRITICAL_PATH)


def parents_in(file: Path) -> dict[str, set[str]]:
    """Read the file without the example's help; each of these eight has ids that are keys as they are."""
    tasks = json.loads(file.read_text())["workflow"]["specification"]["tasks"]
    return {task["id"]: set(task["parents"]) for task in tasks}


def stored_parents(fleet: Fleet, run_id: object) -> dict[str, set[str]]:
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
    return {key: set(parents) for key, parents in rows(fleet, query, run_id)}


def history_of(fleet: Fleet, run_id: object) -> History:
    """Return for each task run the times of each kind of its events, as the database has them."""
    query = """
        select t.key, e.kind, e.created_at
          from flowforge.task_run_event e
          join flowforge.task_run tr on tr.id = e.task_run_id
          join flowforge.task t on t.id = tr.task_id
         where tr.workflow_run_id = %s
    """
    history: History = defaultdict(lambda: defaultdict(list))
    for key, kind, at in rows(fleet, query, run_id):
        history[key][kind].append(at)
    return history


def rows(fleet: Fleet, query: str, run_id: object) -> list[tuple]:
    connection = psycopg2.connect(fleet.settings.database_url)
    with connection.cursor() as cursor:
        cursor.execute(query, (str(run_id),))
        found = cursor.fetchall()
    connection.close()
    return found


def assert_each_ran_once(history: History) -> None:
    """A worker that claims ahead gives back what it cannot start at once: such a claim ran nothing."""
    for key, events in history.items():
        given_back = len(events.pop("handed_back", []))
        assert {"created", "claimed", "succeeded"} == events.keys() - {"readied"}, key
        assert (1, 1) == (len(events["claimed"]) - given_back, len(events["succeeded"])), key


def assert_parents_ended_first(parents: dict[str, set[str]], history: History) -> None:
    for key, named in parents.items():
        claimed = min(history[key]["claimed"])
        assert all(claimed >= ended for parent in named for ended in history[parent]["succeeded"]), key


def assert_it_took_the_critical_path(history: History) -> None:
    first = min(at for events in history.values() for at in events["claimed"])
    last = max(at for events in history.values() for at in events["succeeded"])
    assert (last - first).total_seconds() >= CRITICAL_PATH


@pytest.fixture
def diamond(tmp_path: Path) -> Path:
    parents = {"last": ["left", "a right one"], "left": ["first"], "a right one": ["first"], "first": []}
    specified = [{"id": task, "parents": named} for task, named in parents.items()]
    executed = [{"id": task, "runtimeInSeconds": 10} for task in parents]
    workflow = {"specification": {"tasks": specified}, "execution": {"tasks": executed}}
    file = tmp_path / "diamond.json"
    file.write_text(json.dumps({"schemaVersion": "1.5", "workflow": workflow}))
    return file


@pytest.fixture
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


def figures(output: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z][a-z/N -]+?) {2,}(.+)$", output, re.MULTILINE))


def test_the_script_replays_a_file_on_servers_of_its_own_and_leaves_nothing_behind(diamond: Path, empty: Path) -> None:
    ended = run_example("wfformat.py", [str(diamond), "--speed", "100"], directory=empty)

    assert (0, "") == (ended.returncode, ended.stderr), ended.stdout
    found = figures(ended.stdout)
    assert ("4", "4") == (found["tasks"], found["edges"])
    assert re.fullmatch(r"[0-9a-f-]{36} succeeded", found["run"])
    assert found["critical path/N"].startswith("0.30 s")
    assert "0.40 s" == found["sequential/N"]
    assert float(found["wall time"].split()[0]) >= 0.3
    assert [] == list(empty.iterdir())


@pytest.mark.parametrize("workers", ["1", "0"], ids=["the script's", "yours"])
def test_on_servers_of_yours_its_tasks_do_not_meet_your_other_workers(
    fleet: Fleet, diamond: Path, empty: Path, workers: str
) -> None:
    fleet.worker()
    if workers == "0":
        fleet.scheduler()
        fleet.worker(FLOWFORGE_QUEUES="wfformat.diamond", **for_replays(diamond))

    ended = run_example(
        "wfformat.py", [str(diamond), "--speed", "100", "--workers", workers], directory=empty, **servers_of(fleet)
    )

    assert (0, "") == (ended.returncode, ended.stderr), ended.stdout
    history = history_of(fleet, figures(ended.stdout)["run"].split()[0])
    assert {"first", "left", "last", wfformat.key_of("a right one")} == history.keys()
    assert_each_ran_once(history)


def test_the_script_says_in_one_line_why_it_cannot_replay(diamond: Path, empty: Path) -> None:
    diamond.write_text("{}")

    ended = run_example("wfformat.py", [str(diamond)], directory=empty)

    assert (2, "") == (ended.returncode, ended.stdout)
    assert ended.stderr.startswith(f"error: {diamond}: schemaVersion: missing (in {{}}): only WfFormat 1.5 is read")
    assert 1 == ended.stderr.count("\n")
