"""A release phase as old processes see it: they work on while the schema grows, and refuse one that is beyond them."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from flowforge import db, migrations
from flowforge.states import RunState
from tests import made_up, previous
from tests.e2e import workflows
from tests.e2e.conftest import ROOT, Fleet, events, owner_pid

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_old_processes_work_on_while_and_after_a_newer_release_migrates(fleet: Fleet) -> None:
    fleet.scheduler()
    fleet.worker()
    assert workflows.numbers.start(n=4).wait(timeout=20) is RunState.SUCCEEDED  # which has prepared the statements
    through = workflows.slow.start(n=3)
    owner_pid(through, "sleep")

    command = [sys.executable, "-m", "tests.made_up", "expand"]
    with subprocess.Popen(command, cwd=ROOT, env=fleet.environment(), stdout=subprocess.DEVNULL) as release:
        during = [workflows.numbers.start(n=4)]
        while release.poll() is None:
            during.append(workflows.numbers.start(n=4))
    after = workflows.numbers.start(n=4)
    late = fleet.worker()

    assert release.returncode == 0
    assert [run.wait(timeout=30) for run in (*during, through, after)] == [RunState.SUCCEEDED] * (len(during) + 2)
    assert ["created", "claimed", "succeeded"] == events(through, "sleep")
    assert "worker.ready" in fleet.log(late)
    assert [None] * 3 == [process.poll() for process in fleet.processes]
    assert not [log for log in map(fleet.log, fleet.processes) if "Traceback" in log or "ERROR" in log]


def test_an_old_process_started_after_a_contracting_migration_says_which_release_to_deploy(
    fleet: Fleet, tmp_path: Path
) -> None:
    made_up.write(made_up.copy(tmp_path), "9001_contract", "select;", oldest="9.8.7")
    with closing(db.open_database(fleet.settings)) as database:
        migrations.migrate(database, tmp_path)

    processes = [fleet.start(module) for module in ("flowforge.actors", "flowforge.scheduler")]
    command = [sys.executable, "-m", "flowforge"]
    migrate, doctor = (
        subprocess.run([*command, word], env=fleet.environment(), capture_output=True, text=True, check=False)
        for word in ("migrate", "doctor")
    )

    refused = "the database needs at least 9.8.7: deploy 9.8.7 first"
    assert [2, 2] == [process.wait(timeout=20) for process in processes]
    assert all(refused in fleet.log(process) for process in processes)
    assert (2, True) == (migrate.returncode, refused in migrate.stderr)
    assert (1, True) == (doctor.returncode, refused in " ".join(doctor.stdout.split()))


def test_the_tests_of_the_release_before_see_a_migration_that_its_code_cannot_run_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """`make previous` runs tests/previous.py with a migration that only adds; here is one that takes something away."""
    migrate = [sys.executable, "-m", "tests.made_up", "contract"]

    failed = previous.run_tests(ROOT, sys.executable, migrate, "tests/integration/verbs/test_defer.py")

    assert failed
    assert re.search(r"UndefinedColumn: column \S*deferred_because does not exist", capfd.readouterr().out)
