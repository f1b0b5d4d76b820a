"""README's first screen does what it shows."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from flowforge import Settings
from tests.e2e.conftest import ROOT, Fleet

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "README.md").read_text(encoding="utf-8")
PREAMBLE = """
from dataclasses import dataclass
from datetime import date

from flowforge import Context, Retry, Workflow


@dataclass(frozen=True)
class Sales:
    day: date


"""
CALLER = """
import os
import psycopg2
from sales import *

connection, day = psycopg2.connect(os.environ["DATABASE_URL"]), date(2026, 11, 29)
with connection, connection.cursor() as cursor:
    cursor.execute("create table booking (day date)")
"""


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [block for of, block in found if of == language]


def shape(shown: str) -> list[str]:
    """Return what `runs show` always shows alike: without ids and durations."""
    lines = [re.sub(r"[0-9a-f-]{36}|\d+ ms|━", "", line) for line in shown.splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip()]


def test_the_first_screen_fits_and_says_when_not_to_use_it() -> None:
    assert "**Use something else if**" in "\n".join(README.splitlines()[:40])


def test_every_setting_is_named() -> None:
    variables = {field.metadata["env"] for field in dataclasses.fields(Settings)}

    assert {name for name in variables if f"`{name}`" not in README} == set()


def test_the_first_example_runs_and_looks_as_shown(fleet: Fleet, tmp_path: Path) -> None:
    definition, start = blocks("python")[0].split("\n\n")
    (tmp_path / "sales.py").write_text(PREAMBLE + definition)
    fleet.scheduler()
    fleet.worker(FLOWFORGE_MODULES="sales", PYTHONPATH=f"{tmp_path}:{ROOT}")
    environment = {**fleet.environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}", "COLUMNS": "100"}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    run_id = python("-c", CALLER + start + "print(run.id)\nassert run.result(transform) == 2066").strip()
    shown = python("-m", "flowforge", "runs", "show", run_id)

    print(shown)  # noqa: T201 - what to paste when the form changes
    assert shape(blocks("")[0]) == shape(shown)
