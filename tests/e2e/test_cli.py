"""The command line as a user meets it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from flowforge import transitions
from flowforge.monitor import Turns
from tests import factories
from tests.e2e import workflows
from tests.e2e.conftest import ROOT, Fleet, owner_pid
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from flowforge.db import Database
    from flowforge.embedded.servers import PostgresServer
    from flowforge.settings import Settings


def flowforge(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flowforge", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def environment(fleet: Fleet) -> dict[str, str]:
    return {**fleet.environment(), "COLUMNS": "200"}


def test_a_workflow_is_deployed_started_and_shown(fleet: Fleet, environment: dict[str, str]) -> None:
    fleet.scheduler()
    fleet.worker()

    deployed = flowforge(environment, "deploy")
    started = flowforge(environment, "start", "numbers", "n=4", "--wait", "--json")
    run = json.loads(started.stdout)
    shown = flowforge(environment, "runs", "show", run["id"][:8])
    listed = flowforge(environment, "runs", "list", "--json")

    assert "numbers version 1 is current (4 tasks)" in deployed.stdout
    assert (started.returncode, run["state"]) == (0, "succeeded")
    assert re.search(r"total +succeeded +3", shown.stdout)
    assert run["id"][:13] in flowforge(environment, "runs", "list").stdout
    assert [(row["id"], row["workflow"]) for row in json.loads(listed.stdout)] == [(run["id"], "numbers")]


def test_a_running_task_shows_how_far_it_is(fleet: Fleet, environment: dict[str, str]) -> None:
    """B092: what a task says of itself is text, never markup."""
    fleet.scheduler()
    fleet.worker()
    run = workflows.slow.start(n=5)
    owner_pid(run, "sleep")

    shown = flowforge(environment, "runs", "show", str(run.id))

    assert re.search(r"sleep +running +1 .* \d+/500 naps \[/\], on ", shown.stdout)


def test_migrate_says_what_it_applied_and_then_nothing(environment: dict[str, str]) -> None:
    assert flowforge(environment, "migrate").stdout == "nothing to apply\n"


WRONG_WORDS = {
    "run numbers": ("did you mean `start numbers` or `runs show numbers`?", 2),
    "start nubmers": ("no workflow 'nubmers' was deployed (did you mean 'numbers'?)", 1),
    "start numbers nn=4": ("has no parameter 'nn' (did you mean 'n'?)", 1),
    "start numbers n=many": ("parameter 'n'", 1),
    "start numbers 4": ("write key=value", 2),
    "runs show xyz": ("'xyz' is no run id", 1),
    "runs show abc": ("no run's id begins with 'abc'", 1),
}


def test_a_wrong_word_is_answered_with_the_right_one(environment: dict[str, str]) -> None:
    flowforge(environment, "deploy")

    answers = {words: flowforge(environment, *words.split()) for words in WRONG_WORDS}

    for words, (said, code) in WRONG_WORDS.items():
        assert said in " ".join(answers[words].stderr.split())
        assert code == answers[words].returncode


BROKEN = {
    "FLOWFORGE_MODULES": ("nope", "deploy", "FLOWFORGE_MODULES='nope': there is no module 'nope' here"),
    "DATABASE_URL": (
        "postgresql://postgres@/x?host=/nowhere",
        "runs list",
        "PostgreSQL at DATABASE_URL does not answer",
    ),
}


@pytest.mark.parametrize("variable", BROKEN)
def test_a_broken_setting_is_said_in_one_line(environment: dict[str, str], variable: str) -> None:
    value, command, said = BROKEN[variable]

    answer = flowforge({**environment, variable: value}, *command.split())

    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.returncode == 2


def test_a_database_without_the_schema_is_told_how_to_get_it(
    environment: dict[str, str], postgres: PostgresServer
) -> None:
    answer = flowforge({**environment, "DATABASE_URL": postgres.url}, "runs", "list")

    assert "the database lacks 0001_initial: run `flowforge migrate`" in answer.stderr
    assert answer.returncode == 2


def test_a_missing_setting_is_named_with_an_example(environment: dict[str, str]) -> None:
    answer = flowforge({**environment, "DATABASE_URL": ""}, "runs", "list")

    assert "DATABASE_URL is not set: set it, for example to postgresql://" in answer.stderr
    assert answer.returncode == 2


def test_a_doctor_finds_nothing_on_a_healthy_deployment(environment: dict[str, str]) -> None:
    answer = flowforge(environment, "doctor", "--json")

    findings = {finding["what"]: finding["ok"] for finding in json.loads(answer.stdout)}
    assert len(findings) > 8
    assert all(findings.values())
    assert answer.returncode == 0


def test_a_start_without_the_code_says_that_nothing_was_checked(environment: dict[str, str]) -> None:
    flowforge(environment, "deploy")

    answer = flowforge({**environment, "FLOWFORGE_MODULES": ""}, "start", "numbers", "m=4")

    assert answer.returncode == 0
    assert answer.stderr == "parameters not checked: no workflow 'numbers' in FLOWFORGE_MODULES here\n"


@pytest.mark.parametrize("arguments", [["greeting"], ["greeting", "name=World", "--wait"]])
def test_a_habit_from_other_tools_is_answered(environment: dict[str, str], arguments: list[str]) -> None:
    answer = flowforge(environment, "run", *arguments)

    assert "did you mean `start greeting` or `runs show greeting`?" in answer.stderr
    assert answer.returncode == 2


@pytest.mark.parametrize("url", ["postgresql+psycopg2://u:secret@h/d", "mysql://u:secret@h/d"])
def test_the_url_of_another_driver_or_server_is_refused_without_its_secret(
    environment: dict[str, str], url: str
) -> None:
    answer = flowforge({**environment, "DATABASE_URL": url}, "runs", "list")

    assert "it must begin with postgresql://, without a driver's name" in answer.stderr
    assert "secret" not in answer.stderr
    assert answer.returncode == 2


def test_a_doctor_counts_what_must_never_be(environment: dict[str, str], database: Database) -> None:
    flowforge(environment, "deploy")
    assert flowforge(environment, "start", "many", "n=1").returncode == 0
    database.execute_sql("delete from flowforge.outbox_message")

    answer = flowforge(environment, "doctor", "--json")

    assert answer.stderr == ""
    broken = {finding["what"]: finding["note"] for finding in json.loads(answer.stdout) if not finding["ok"]}
    assert broken == {"ready task runs without exactly one dispatch at their token": "1"}
    assert answer.returncode == 1
    database.execute_sql("delete from flowforge.workflow_run")


def test_a_doctor_sees_that_nobody_serves_a_queue_and_counts_what_was_refused(
    environment: dict[str, str], database: Database
) -> None:
    row = factories.start_single(database, queue="gpu", attempts=2)
    (late,) = factories.claim(database, row, lease=-1)
    database.perform(transitions.expire, limit=1)
    database.perform(transitions.finish, [factories.outcome(late)])
    database.execute_sql("update flowforge.outbox_message set available_at = available_at - interval '2 minutes'")

    answer = flowforge(environment, "doctor", "--json")

    findings = {finding["what"]: finding["note"] for finding in json.loads(answer.stdout)}
    assert "nothing of queue 'gpu' runs, and 1 are due, for 1" in findings["queues"]
    assert findings["refused completions"].startswith("1, the last at ")
    assert answer.returncode == 1


def test_a_doctor_sees_that_no_scheduler_does_its_duties_any_more(
    environment: dict[str, str], redis: Redis, settings: Settings
) -> None:
    turns = Turns(redis, settings.namespace)
    turns.tell("expire_leases", every=-1)

    answer = flowforge(environment, "doctor", "--json")

    broken = {finding["what"]: finding["note"] for finding in json.loads(answer.stdout) if not finding["ok"]}
    assert list(broken) == ["schedulers"]
    assert "expire_leases was last done" in broken["schedulers"]
    assert "start a scheduler" in broken["schedulers"]
    assert answer.returncode == 1


@pytest.mark.soak
def test_a_doctor_sees_a_scheduler_that_is_stopped(fleet: Fleet, environment: dict[str, str]) -> None:
    scheduler = fleet.scheduler()

    def seen() -> str:
        findings = json.loads(flowforge(environment, "doctor", "--json").stdout)
        return next(str(one["note"]) for one in findings if one["what"] == "schedulers")

    wait_for(lambda: seen() == "8 of 8 duties seen, none late", seconds=40)
    scheduler.send_signal(signal.SIGSTOP)
    wait_for(lambda: "publish was last done" in seen(), seconds=40)
    scheduler.send_signal(signal.SIGCONT)
    wait_for(lambda: "none late" in seen(), seconds=40)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    log = tmp_path / "dev.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "flowforge", "dev", "tests.e2e.workflows"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=output,
            text=True,
        )
    yield process, log
    process.kill()
    process.wait()


def test_dev_runs_everything_and_ctrl_c_leaves_nothing(dev: tuple[subprocess.Popen[str], Path]) -> None:
    process, log = dev
    wait_for(lambda: "worker.ready" in log.read_text(), seconds=40)
    given = dict(re.findall(r"^export (DATABASE_URL|REDIS_URL)='?(.*?)'?$", log.read_text(), re.MULTILINE))
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "FLOWFORGE_MODULES": "tests.e2e.workflows",
        **given,
    }
    family = psutil.Process(process.pid).children(recursive=True)

    started = flowforge(environment, "start", "numbers", "--wait")
    process.send_signal(signal.SIGINT)

    assert "succeeded" in started.stdout
    assert process.wait(timeout=30) == 0
    assert len(family) >= 5
    assert psutil.wait_procs(family, timeout=5)[1] == []


def test_the_demo_survives_its_own_kill_and_leaves_nothing(tmp_path: Path) -> None:
    """On a small tree, so that it is short; `make demo` surveys the whole standard library."""
    import sysconfig  # noqa: PLC0415

    tree = Path(sysconfig.get_path("stdlib")) / "asyncio"
    command = [sys.executable, "-m", "flowforge", "demo", str(tree), "--report", "report.html"]

    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert "the merged figures equal the recount" in answer.stdout
    assert answer.returncode == 0
    assert "</html>" in (tmp_path / "report.html").read_text()
