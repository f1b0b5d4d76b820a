"""README's first screen does what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from typing import TYPE_CHECKING

from flowforge import Settings
from tests.documents import ROOT, blocks, in_code, spans, table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Fleet

README = (ROOT / "README.md").read_text(encoding="utf-8")
#: What the first example leaves to its reader: the parameters of its workflow, and a connection for its start.
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

connection, day = psycopg2.connect(os.environ["DATABASE_URL"]), date(2026, 11, 29)
with connection, connection.cursor() as cursor:
    cursor.execute("create table booking (day date)")
"""


def first(language: str) -> str:
    """Return the first fenced block of a language."""
    return next(block.text for block in blocks("README.md") if block.language == language)


def shape(shown: str) -> list[str]:
    """Return what `runs show` always shows alike: without ids and durations."""
    lines = [re.sub(r"[0-9a-f-]{36}|\d+ ms|━", "", line) for line in shown.splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip()]


def test_the_first_screen_fits_and_says_when_not_to_use_it() -> None:
    assert "**Use something else if**" in "\n".join(README.splitlines()[:40])


def test_every_setting_is_told_with_its_default() -> None:
    rows = table("README.md", "setting")
    defaults = {in_code(row[0]): row[2].strip("`") for row in rows if re.fullmatch(r"`?\w+`?", row[2])}

    assert {name for row in rows for name in spans(row[0])} == {field.metadata["env"] for field in fields(Settings)}
    assert Settings.from_env(defaults) == Settings()


def test_the_first_example_runs_and_looks_as_shown(fleet: Fleet, tmp_path: Path) -> None:
    definition, start = first("python").split("\n\n")
    (tmp_path / "sales.py").write_text(PREAMBLE + definition)
    fleet.scheduler()
    fleet.worker(FLOWFORGE_MODULES="sales", PYTHONPATH=f"{tmp_path}:{ROOT}")
    environment = {**fleet.environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}", "COLUMNS": "100"}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    caller = f"from sales import *\n{CALLER}{start}print(run.id)\nassert run.result(transform) == 2066"
    run_id = python("-c", caller).strip()
    shown = python("-m", "flowforge", "runs", "show", run_id)

    print(shown)  # noqa: T201 - what to paste when the form changes
    assert shape(first("text")) == shape(shown)
