"""The wheel and the sdist hold what they must; each installs, and runs its demo, in a directory with a space."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.documents import blocks
from tests.e2e.conftest import ROOT
from tests.support import wait_for

if TYPE_CHECKING:
    from pathlib import Path

#: What is no module, and yet is read at run time or by tools.
NEEDED = {"py.typed", "schema.sql", "transitions/statements.sql", "embedded/demo/report.html", "cli/starter/Procfile"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist, and a wheel from it."""
    return build(tmp_path_factory.mktemp("what was built "))


def build(directory: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "build", *options, "--outdir", str(directory), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return directory


def archive(directory: Path, ending: str) -> Path:
    (found,) = directory.glob(f"flowforge-*{ending}")
    return found


def wheel_files(directory: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive(directory, ".whl")) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def sources() -> set[str]:
    """Return every file of the package, as the repository has it."""
    files = (path for path in (ROOT / "flowforge").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in files}


def test_the_wheel_holds_the_whole_package_the_schema_and_the_license(built: Path) -> None:
    files = wheel_files(built)

    assert {name for name in files if ".dist-info/" not in name} == sources() | {"flowforge/schema.sql"}
    assert {f"flowforge/{name}" for name in NEEDED} <= files.keys()
    assert files["flowforge/schema.sql"] == (ROOT / "schema.sql").read_bytes()
    (licence,) = [name for name in files if name.endswith(".dist-info/licenses/LICENSE")]
    assert files[licence] == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_holds_the_repository(built: Path) -> None:
    with tarfile.open(archive(built, ".tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert sources() <= names
    assert {"schema.sql", "LICENSE", "README.md", "CHANGELOG.md", "Makefile", "Procfile", "pyproject.toml"} <= names
    assert {"tests/e2e/test_install.py", "tools/wheels.py", "docs/execution-model.md", "examples/etl.py"} <= names


def test_the_repository_builds_the_same_wheel_as_the_sdist(built: Path, tmp_path: Path) -> None:
    assert wheel_files(build(tmp_path, "--wheel")) == wheel_files(built)


@pytest.mark.soak
@pytest.mark.parametrize("ending", [".whl", ".tar.gz"])
def test_the_demo_runs_from_an_empty_directory_with_a_space_and_leaves_no_process(
    ending: str, built: Path, tmp_path: Path
) -> None:
    flowforge = install(archive(built, ending), tmp_path / "a venv")
    directory = tmp_path / "an empty directory"
    directory.mkdir()

    code, said, family, names = run([str(flowforge), "demo"], directory)

    assert "the merged figures equal the recount" in said
    assert (directory / "error.log").read_text() == ""
    assert code == 0
    assert {"postgres", "valkey-server"} <= names
    assert psutil.wait_procs(family, timeout=5)[1] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="asks make what it would run")
def test_the_readme_says_what_each_make_target_runs() -> None:
    targets = re.findall(r"^\.PHONY: help (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    for target in targets:
        prepare = "--always-make" if target == "setup" else "--old-file=.venv/ready"
        would_run = subprocess.check_output(
            ["make", "--dry-run", prepare, target], cwd=ROOT, env={"PATH": os.defpath}, text=True
        )
        lines = [line.strip() for line in would_run.splitlines() if not line.startswith("touch ")]
        assert "\n".join([f"# make {target}", *lines, ""]) in readme


@pytest.mark.soak
def test_every_line_of_the_readme_that_installs_or_stands_for_a_make_target_runs(built: Path, tmp_path: Path) -> None:
    """
    But for `pytest -m soak`, which is what runs this test; mutants of one verb and one fault only: all take an hour.

    Lines that begin with `make` run the others, as the test above says.
    """
    with tarfile.open(archive(built, ".tar.gz")) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (here,) = tmp_path.iterdir()
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    path = os.pathsep.join([str(tmp_path / "venv" / "bin"), os.environ["PATH"]])
    lines = [line for line in lines_of_shell("README.md") if re.match(r"pip install |.*\.venv\b", line)]
    lines = [re.sub(r"(tests.mutants)$", r"\1 forget", line) for line in lines]
    lines = [re.sub(r"(tests.faults)$", r"\1 B026", line) for line in lines]
    assert len(lines) > len(("install", "setup", "demo", "test", "previous", "check", "bench", "wheels", "clean"))

    for line in lines:
        if "-m soak" not in line:
            assert (line, *outcome(line, here, path)) == (line, 0, "")


def lines_of_shell(document: str) -> list[str]:
    text = "".join(block.text for block in blocks(document) if block.language == "sh")
    return [line.partition("  #")[0].strip() for line in text.replace("\\\n", "").splitlines()]


def outcome(line: str, directory: Path, path: str) -> tuple[int, str]:
    """Run a line of shell to its end, or until it serves and has had its Ctrl-C; return exit code and last words."""
    log = directory.parent / "line.log"
    with log.open("w") as output:
        command, environment = ["sh", "-c", f"exec env {line}"], {**os.environ, "PATH": path}
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=output)
    try:
        if " dev " in line:
            wait_for(lambda: "worker.ready" in log.read_text(), seconds=60)
            process.send_signal(signal.SIGINT)
        code = process.wait(timeout=1500)
    finally:
        process.kill()
    return code, log.read_text()[-4000:] if code else ""


def install(archive: Path, environment: Path) -> Path:
    """Install with the servers in a fresh virtual environment; return the command."""
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    command = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", f"{archive}[embedded]"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return environment / "bin" / "flowforge"


def run(command: list[str], directory: Path) -> tuple[int, str, set[psutil.Process], set[str]]:
    """Run to the end with nothing set; return the exit code, what was said, and all descendants with their names."""
    family: set[psutil.Process] = set()
    names: set[str] = set()
    said, errors = directory / "output.log", directory / "error.log"
    with said.open("w") as output, errors.open("w") as error:
        process = subprocess.Popen(command, cwd=directory, env={"PATH": os.defpath}, stdout=output, stderr=error)

    def ended() -> bool:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
            family.update(children)
            names.update(child.name() for child in children)
        return process.poll() is not None

    try:
        wait_for(ended, seconds=240, every=0.2)
    finally:
        process.kill()
    return process.wait(), said.read_text(), family, names
