"""
Prove that nobody who installs FlowForge has to compile: each dependency, and all that these need, is there as a wheel.

For each Python and platform `pip download` fetches the lot, for the package and every extra that is for users, and
refuses sources. The exit code is 1 if anything is missing. pip reads environment markers (`python_version < "3.12"`)
for the Python that runs it, so run this on the oldest one: what newer ones need less is then asked for as well.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from rich.console import Console
from rich.table import Table

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_GLIBC = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 29)))  # up to Debian 10's and RHEL 8's
#: The tags that a machine of each kind accepts; pip adds the older names of manylinux2014 by itself.
PLATFORMS = {
    "manylinux x86_64": [f"{tag}_x86_64" for tag in _GLIBC],
    "manylinux aarch64": [f"{tag}_aarch64" for tag in _GLIBC],
    "macOS arm64": ["macosx_11_0_arm64"],
}
NOT_FOR_USERS = {"dev", "all"}


def main() -> int:
    """Print a table of what was found, and pip's own words where something was not."""
    wanted, complaints = requirements(Path("pyproject.toml")), []
    table = Table("Python", *PLATFORMS, title=" ".join(wanted), title_justify="left")
    for python in PYTHONS:
        cells = []
        for platform, tags in PLATFORMS.items():
            found, errors = download(wanted, python, tags)
            cells.append("[red]missing[/]" if errors else f"{found} wheels")
            complaints += [f"{python}, {platform}: {error}" for error in errors]
        table.add_row(python, *cells)
    console = Console(soft_wrap=True)
    console.print(table)
    for complaint in complaints:
        console.print(complaint, markup=False)
    return int(bool(complaints))


def requirements(file: Path) -> list[str]:
    """Return what the package and its extras for users ask for."""
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    extras = {name: asked for name, asked in project["optional-dependencies"].items() if name not in NOT_FOR_USERS}
    return sorted({*project["dependencies"], *(one for asked in extras.values() for one in asked)})


def download(wanted: list[str], python: str, tags: list[str]) -> tuple[int, list[str]]:
    """Return how many wheels pip fetched, and what it complained about if it could not fetch all."""
    platforms = [word for tag in tags for word in ("--platform", tag)]
    with tempfile.TemporaryDirectory(prefix="flowforge-wheels-") as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", directory, "--only-binary=:all:"]
        answer = subprocess.run(
            [*command, "--python-version", python, *platforms, *wanted], capture_output=True, text=True, check=False
        )
        found = len(list(Path(directory).glob("*.whl")))
    errors = [line for line in answer.stderr.splitlines() if line.startswith("ERROR")]
    return found, (errors or [answer.stderr]) if answer.returncode else []


if __name__ == "__main__":
    sys.exit(main())
