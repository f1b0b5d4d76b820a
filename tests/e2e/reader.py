"""A reader who does what a document shows, from top to bottom, on servers of its own."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING
from uuid import uuid4

import django
import django.conf
import psycopg2
import sqlparse
from django.db import connections
from psycopg2 import sql
from psycopg2.extensions import parse_dsn

from flowforge import Workflow
from flowforge.testing import Worker
from tests.documents import ROOT
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.documents import Block

#: Statements that only define: after them a workflow may still lack tasks.
_DEFINE = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
#: Commands that go on until they are stopped, and what each says once it is ready.
_STAYS = {r"flowforge (dev|worker)\b|dramatiq ": "worker.ready", r"flowforge scheduler\b": "scheduler.ready"}
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
#: How documents write the first characters of an id, here of the run that was told last, and the database's name.
SOME_ID, SOME_DATABASE = "3f2a", "mydb"
_PATIENCE = 60.0  # seconds for one line


class Reader:
    """Runs blocks: Python in one module, lines of shell in one shell, SQL on the database of both."""

    def __init__(self, database_url: str, directory: Path, *, passes_over: re.Pattern[str]) -> None:
        """Begin to read. Lines of shell that match `passes_over` are not run."""
        self.module = ModuleType(f"read_{uuid4().hex}")
        self._url, self._passes_over, self._opened = database_url, passes_over, ExitStack()
        self._worker, self._served = Worker(), dict[str, int]()
        self._opened.callback(self._worker.stop)
        self._loop = self._opened.enter_context(asyncio.Runner())
        self._shell = self._opened.enter_context(closing(Shell(directory)))
        sys.modules[self.module.__name__] = self.module
        self._opened.callback(sys.modules.pop, self.module.__name__)

    def close(self) -> None:
        """Stop what was started."""
        self._opened.close()

    def read(self, block: Block) -> None:
        """Do what a block shows. Raises whatever goes wrong."""
        {"python": self.python, "sh": self.sh, "sql": self.sql}[block.language](block)

    def python(self, block: Block) -> None:
        """Execute Python; `await` may stand outside functions, as in `python -m asyncio`."""
        tree = ast.increment_lineno(ast.parse(block.text), block.line - 1)
        for statement in tree.body:
            if not isinstance(statement, _DEFINE):
                self._serve()
            self._execute(ast.Module([statement], []), str(ROOT / block.document))

    def _execute(self, tree: ast.Module, file: str) -> None:
        compiled = compile(tree, file, "exec", flags=_TOP_LEVEL_AWAIT, dont_inherit=True)
        returned = eval(compiled, vars(self.module))
        if inspect.iscoroutine(returned):
            self._loop.run(returned)

    def _serve(self) -> None:
        """Have the worker run every workflow that is there by now."""
        workflows = [value for value in vars(self.module).values() if isinstance(value, Workflow) and value.tasks]
        there = {workflow.name: len(workflow.tasks) for workflow in workflows}
        if there != self._served:
            self._worker.serve(*workflows)
            self._served = there

    def sql(self, block: Block) -> None:
        """Execute statements, one after another."""
        with closing(psycopg2.connect(self._url)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            for statement in sqlparse.split(re.sub(rf"\b{SOME_DATABASE}\b", connection.info.dbname, block.text)):
                cursor.execute(statement)

    def sh(self, block: Block) -> None:
        """Execute lines of shell, each of which must end with 0."""
        for line in block.text.replace("\\\n", "").splitlines():
            command = line.partition("  #")[0].strip()
            if command and not command.startswith("#") and not self._passes_over.match(command):
                code, said = self._shell.run(command)
                assert code == 0, f"{block.place}: {command!r} ended with {code}:\n{said}"


class Shell:
    """A shell in a directory, which keeps what its lines export; what does not end by itself goes on beside it."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._some_id = directory, SOME_ID
        self._staying: list[str] = []
        self._process = subprocess.Popen(
            ["sh"], cwd=directory, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, line: str) -> tuple[int, str]:
        """Run a line to its end, or until it is ready; return its exit code and what it said."""
        line = re.sub(rf"\b{SOME_ID}\b", self._some_id, line)
        for command, word in _STAYS.items():
            if re.match(command, line):
                return self._start(line, word)
        code, said = self._ask(line)
        if shown := _UUID.findall(said):
            self._some_id = shown[0][:13]
        return code, said

    def _start(self, line: str, word: str) -> tuple[int, str]:
        log = self._directory / f"{len(self._staying)}.log"
        log.touch()
        _, pid = self._ask(f"{line} > {log} 2>&1 & echo $!")
        self._staying.append(pid.strip())
        wait_for(lambda: word in log.read_text() or self._ask(f"kill -0 {pid}")[0], seconds=_PATIENCE, every=0.1)
        said = log.read_text()
        for export in re.findall(r"^export .*$", said, re.MULTILINE):
            self._ask(export)  # as the reader of `flowforge dev` is told to
        return int(word not in said), said

    def _ask(self, line: str) -> tuple[int, str]:
        assert self._process.stdin
        mark = uuid4().hex
        self._process.stdin.write(f"{{ {line}\n}} < /dev/null\nprintf '\\n{mark} %d\\n' $?\n")
        self._process.stdin.flush()
        overdue = threading.Timer(_PATIENCE, self._process.kill)
        overdue.start()
        try:
            *said, last = self._hear(mark)
        finally:
            overdue.cancel()
        assert last.startswith(mark), f"the shell ended at {line!r}: {''.join(said)}"
        return int(last.split()[1]), "".join(said)

    def _hear(self, mark: str) -> Iterator[str]:
        """Yield what the shell says, up to the line with the mark; an empty line if it ends before that."""
        assert self._process.stdout
        while True:
            yield (line := self._process.stdout.readline())
            if not line or line.startswith(mark):
                return

    def close(self) -> None:
        """Stop what goes on, the last first; each must end in an orderly way. Nothing is left."""
        try:
            for pid in reversed(self._staying):
                code, said = self._ask(f"kill {pid}; wait {pid}")
                assert code == 0, said
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


@contextmanager
def django_on(url: str) -> Iterator[None]:
    """Make this the `default` database of Django, for the block."""
    parts = parse_dsn(url)
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts["user"]}
    database |= {"HOST": parts["host"], "PORT": parts["port"]}
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={"default": dict(database)})
        django.setup()
    connections.settings["default"].update(database)
    try:
        yield
    finally:
        for made in connections.all(initialized_only=True):
            made.close()
            del connections[made.alias]


@contextmanager
def roles_forgotten(url: str) -> Iterator[None]:
    """Drop the roles that the block makes: they are the whole server's."""
    before = _roles(url)
    try:
        yield
    finally:
        with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
            for name in map(sql.Identifier, _roles(url) - before):
                cursor.execute(sql.SQL("drop owned by {name} cascade; drop role {name}").format(name=name))


def _roles(url: str) -> set[str]:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("select rolname from pg_roles")
        return {name for (name,) in cursor.fetchall()}
