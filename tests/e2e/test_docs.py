"""What README and docs show is run: Python, SQL and lines of shell, and the values that tables list."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest

from flowforge import Settings, UnstorableValue
from flowforge.client.engine import configured
from flowforge.workflow import values
from tests.documents import DOCUMENTS, ROOT, Block, blocks, in_code, table
from tests.e2e import workflows
from tests.e2e.reader import Reader, django_on, roles_forgotten
from tests.e2e.test_readme import CALLER, PREAMBLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import Fleet

RUN = {"python", "sh", "sql"}
SHOWN = {"text", "mermaid"}
#: Documents that another test reads.
READ_BY = {"docs/testing.md": "tests/e2e/test_docs_testing.py"}
#: Lines of shell that another test runs.
LINES_READ_BY = {
    r"make |pip install |.*\.venv\b": "tests/e2e/test_install.py::"
    "test_every_line_of_the_readme_that_installs_or_stands_for_a_make_target_runs",
}
#: What a document leaves to its reader.
PREPARED = {"README.md": PREAMBLE + CALLER}
#: The project in whose directory lines of shell are run.
WORKFLOWS = """
from dataclasses import dataclass
from datetime import date

from flowforge import Workflow


@dataclass(frozen=True)
class Sales:
    day: date


sales = Workflow("daily-sales", Sales)


@sales.task
def extract(day: date) -> list[int]:
    return [day.year, day.month, day.day]
"""


def runnable(document: str) -> list[Block]:
    """Return the blocks of a document that this test runs."""
    return [block for block in blocks(document) if block.language in RUN and document not in READ_BY]


@pytest.fixture
def reader(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader with servers, in the directory of a project, in a terminal in which all settings are made."""
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp" / "workflows.py").write_text(WORKFLOWS)
    for name, value in {
        "DATABASE_URL": settings.database_url,
        "REDIS_URL": settings.redis_url,
        "FLOWFORGE_NAMESPACE": settings.namespace,
        "FLOWFORGE_MODULES": "myapp.workflows",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }.items():
        monkeypatch.setenv(name, value)
    url, passes_over = settings.database_url, re.compile("|".join(LINES_READ_BY))
    with ExitStack() as opened:
        opened.enter_context(roles_forgotten(url))
        opened.enter_context(django_on(url))
        engine = opened.enter_context(configured(dataclasses.replace(settings, threads=4, grace=5)))
        opened.callback(engine.database.close)
        yield opened.enter_context(closing(Reader(url, tmp_path, passes_over=passes_over)))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_says_what_it_is(document: str) -> None:
    assert {block.place: block.language for block in blocks(document) if block.language not in RUN | SHOWN} == {}


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if runnable(document)])
def test_what_a_document_shows_runs(reader: Reader, document: str) -> None:
    reader.python(Block(f"before {document}", 1, "python", PREPARED.get(document, "")))

    for block in runnable(document):
        reader.read(block)


def test_what_this_test_passes_over_another_runs() -> None:
    for document, file in READ_BY.items():
        assert Path(document).name in (ROOT / file).read_text()
    for place in LINES_READ_BY.values():
        file, _, test = place.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text()


@pytest.fixture
def names(reader: Reader) -> dict[str, Any]:
    """What docs/calling.md has defined when it comes to values."""
    for block in runnable("docs/calling.md"):
        if block.language == "python" and re.search("^class ", block.text, re.MULTILINE):
            reader.python(block)
    return vars(reader.module)


def test_values_are_written_and_read_back_as_the_table_says(names: dict[str, Any], database_url: str) -> None:
    written = [row for row in table("docs/calling.md", "value") if len(row) == len(("value", "text", "annotation"))]
    assert written
    for row in written:
        value, text, annotation = eval(in_code(row[0]), names), in_code(row[1]), eval(in_code(row[2]), names)
        assert values.encode(value, row[0]) == text
        read = values.decode(stored(text, database_url), annotation)
        assert (read, type(read)) == (value, type(value))


def stored(text: str, database_url: str) -> Any:
    """Return JSON as it comes back from the database."""
    with closing(psycopg2.connect(database_url)) as connection, connection.cursor() as cursor:
        cursor.execute("select %s::jsonb", (text,))
        return cursor.fetchone()[0]


def test_values_are_refused_as_the_table_says(names: dict[str, Any]) -> None:
    refused = [row for row in table("docs/calling.md", "value") if len(row) == len(("value", "words"))]
    assert refused
    for row in refused:
        value = eval(in_code(row[0]), names)
        with pytest.raises(UnstorableValue) as caught:
            values.check_size(values.encode(value, "it"), Settings().value_limit, "it")
        assert in_code(row[1]) in str(caught.value)


def test_processes_hold_at_most_as_many_connections_as_is_told(fleet: Fleet, database_url: str) -> None:
    workflows.slow.start(n=1)  # this process's own connection
    before = connections(database_url)
    fleet.scheduler()
    fleet.worker()

    assert workflows.slow.start(n=1).wait(timeout=30) == "succeeded"

    held = connections(database_url) - before
    told = {row[0]: row[1] for row in table("docs/operations.md", "process") if "start, " in row[1]}
    assert held["flowforge"] == int(re.findall(r"^1, and (\d+) once it has worked", told["a worker process"])[0])
    assert 1 < held["flowforge-scheduler"] <= int(re.findall(r"^(\d+): start, ", told["a scheduler"])[0])


def connections(database_url: str) -> Counter[str]:
    """Return how many connections to a database there are, by the name of the application."""
    with closing(psycopg2.connect(database_url)) as connection, connection.cursor() as cursor:
        cursor.execute("select application_name from pg_stat_activity where datname = current_database()")
        return Counter(name for (name,) in cursor.fetchall())
