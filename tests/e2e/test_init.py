"""What `flowforge init` writes runs, and it overwrites nothing."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg2
import pytest
from typer.testing import CliRunner

from flowforge import FlowForgeError, RunNotCommitted, Settings
from flowforge.cli import init
from flowforge.cli.app import app
from flowforge.states import RunState
from tests.e2e.conftest import ROOT, Fleet
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTER = Path(init.__file__).with_name("starter")
#: As in a terminal in which this Python's virtual environment is active, and nothing is set.
TERMINAL = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "my project"
    directory.mkdir()
    return directory


def run_init(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flowforge", "init", *arguments]
    return subprocess.run(command, cwd=directory, env=TERMINAL, capture_output=True, text=True, timeout=60, check=False)


def contents(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text() if path.is_file() else "" for path in directory.rglob("*")
    }


@contextmanager
def kept_running(script: str, directory: Path) -> Iterator[Path]:
    """Run a shell's script beside the block and end it by Ctrl-C; give the file with what it says."""
    log = directory.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(["sh", "-c", script], cwd=directory, env=TERMINAL, stdout=output, stderr=output)
    try:
        yield log
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=40) == 0
        assert psutil.wait_procs(family, timeout=5)[1] == []
    finally:
        process.kill()
        process.wait()


def test_the_three_commands_that_it_says_bring_a_run_to_its_end(project: Path) -> None:
    answer = run_init(project)
    settings, dev, start = re.findall(r"^  (.+?) +# ", answer.stdout, re.MULTILINE)

    with kept_running(f"{settings}\nexec {dev}", project) as log:
        wait_for(lambda: "worker.ready" in log.read_text(), seconds=60)
        urls = dict(re.findall(r"^export (DATABASE_URL|REDIS_URL)='?(.*?)'?$", log.read_text(), re.MULTILINE))
        started = subprocess.run(
            ["sh", "-c", start], cwd=project, env={**TERMINAL, **urls}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    assert re.fullmatch(r"[0-9a-f-]{36} succeeded\n", started.stdout)
    assert sorted(path.name for path in project.iterdir() if path.is_file()) == [
        ".env", ".env.example", "Procfile", "workflows.py",
    ]  # fmt: skip


def test_the_written_function_starts_a_run_in_the_callers_transaction(
    fleet: Fleet, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_init(project.parent, project.name, "--module", "first_steps").returncode == 0
    monkeypatch.syspath_prepend(project)
    first_steps = importlib.import_module("first_steps")
    monkeypatch.delitem(sys.modules, "first_steps")
    fleet.scheduler()
    fleet.worker(FLOWFORGE_MODULES="first_steps", PYTHONPATH=f"{project}:{ROOT}")
    connection = psycopg2.connect(fleet.settings.database_url)
    with connection, connection.cursor() as cursor:
        cursor.execute("create table guest (name text)")

    lost = first_steps.invite(connection, "nobody")
    connection.rollback()
    with connection:
        run = first_steps.invite(connection, "World")

    assert run.wait(timeout=30) is RunState.SUCCEEDED
    assert run.result(first_steps.deliver) == "delivered: Hello, World!"
    with pytest.raises(RunNotCommitted):
        lost.wait(timeout=1)
    connection.close()


@pytest.mark.parametrize("file", ["workflows.py", "workflows/__init__.py", "Procfile", ".env.example", ".env"])
def test_nothing_is_written_where_a_file_exists(file: str, project: Path) -> None:
    (project / file).parent.mkdir(exist_ok=True)
    (project / file).write_text("mine")
    before = contents(project)

    with pytest.raises(FlowForgeError, match=f"^{re.escape(str(project / file))} exists: nothing was written"):
        init.init(project)

    assert contents(project) == before


def test_a_refusal_is_said_in_one_line(project: Path) -> None:
    (project / "Procfile").touch()

    answer = run_init(project)

    assert re.fullmatch(r"error .*/my project/Procfile exists: .*\n", answer.stderr)
    assert answer.returncode == 1


def test_a_link_that_leads_nowhere_is_not_written_through(project: Path) -> None:
    (project / "Procfile").symlink_to(project.parent / "elsewhere")

    with pytest.raises(FlowForgeError, match="Procfile exists"):
        init.init(project)

    assert [path.name for path in project.iterdir()] == ["Procfile"]
    assert not (project.parent / "elsewhere").exists()


def test_what_was_written_is_taken_back_when_a_file_cannot_be(project: Path) -> None:
    with pytest.raises(FileNotFoundError):
        init._write(project, {"first": "text", "no such directory/second": "text"})

    assert contents(project) == {}


@pytest.mark.parametrize("name", ["a-b", "a.b", "class", "2nd", "", "json", "psycopg2", "__main__"])
def test_a_module_that_could_not_be_imported_is_refused(name: str, project: Path) -> None:
    answer = CliRunner().invoke(app, ["init", str(project), "--module", name])

    assert f"Invalid value for --module: {name!r}" in answer.stderr
    assert answer.exit_code == 2
    assert contents(project) == {}


def test_a_directory_that_cannot_be_made_is_named(project: Path) -> None:
    (project / "file").touch()

    with pytest.raises(FlowForgeError, match=r"nothing was written: .*/file/below: Not a directory"):
        init.init(project / "file" / "below")


def test_the_example_names_every_setting_and_its_default() -> None:
    text = (STARTER / "env.example").read_text()
    named = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE))
    defaults = dict(re.findall(r"^#([A-Z_]+)=(.*)$", text, re.MULTILINE))

    assert named.keys() == {field.metadata["env"] for field in dataclasses.fields(Settings)}
    assert named.keys() - defaults.keys() == {"DATABASE_URL", "REDIS_URL", "FLOWFORGE_MODULES"}
    assert Settings.from_env(defaults) == Settings()
