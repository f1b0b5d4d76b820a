"""Each line of a file is told apart, each function found; a file that resists is counted and says why."""

from __future__ import annotations

import io
import sys
import sysconfig
import tokenize
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowforge.embedded.demo.figures import Counts, Function
from flowforge.embedded.demo.source import measure
from flowforge.embedded.demo.survey import list_files, share

EVERYTHING = '''\
#!/usr/bin/env python
"""A module

of four lines, one of them blank.
"""
import os  # a comment beside code is code

TEXT = """
# inside a string: code

"""


class Outer:
    "One line."

    @property
    @staticmethod
    def method(self):
        # a comment
        async def inner():
            """Two
            lines."""
            return [
                1,
                # a comment within a list
            ]

        return inner

    class Nested: "a docstring beside `class` is code"


if os.sep:
    try:
        def guarded(): pass
    except ValueError:
        match os.sep:
            case _:
                def handled(): pass
'''


def write(directory: Path, file: str, content: str | bytes) -> None:
    (directory / file).write_bytes(content.encode() if isinstance(content, str) else content)


def counts_of(directory: Path, content: str | bytes) -> Counts:
    write(directory, "a.py", content)
    return measure(directory, "a.py").counts


def test_every_line_of_a_file_is_told_apart(tmp_path: Path) -> None:
    counts = counts_of(tmp_path, EVERYTHING)

    expected = Counts(
        files=1,
        bytes=len(EVERYTHING),
        lines=40,
        code=21,
        comments=3,
        docstrings=6,
        blank=10,
        functions=4,
        classes=2,
    )
    assert expected == counts


def test_functions_are_found_at_any_depth_and_counted_from_their_def(tmp_path: Path) -> None:
    write(tmp_path, "a.py", EVERYTHING)

    functions = measure(tmp_path, "a.py").functions

    expected = {
        Function("Outer.method", "a.py", line=19, lines=11),
        Function("Outer.method.inner", "a.py", line=21, lines=7),
        Function("guarded", "a.py", line=36, lines=1),
        Function("handled", "a.py", line=40, lines=1),
    }
    assert expected == set(functions)


@pytest.mark.parametrize(
    "suite",
    [
        "for a in b:\n    pass\nelse:\n    {}",
        "try:\n    {}\nfinally:\n    pass",
        "try:\n    pass\nfinally:\n    {}",
        "try:\n    pass\nexcept* E:\n    {}",
        "with a, b:\n    {}",
        "if a: pass\nelif b:\n    {}",
        "match a:\n    case 1 if b:\n        {}",
        "async def g():\n    async for a in b:\n        {}",
    ],
)
def test_a_function_is_found_in_any_suite(tmp_path: Path, suite: str) -> None:
    write(tmp_path, "a.py", suite.format("def found(): pass"))

    names = [function.name.rpartition(".")[2] for function in measure(tmp_path, "a.py").functions]

    assert ["found"] == [name for name in names if name != "g"]


@pytest.mark.parametrize(
    ("content", "told_apart"),
    [
        ("", ""),
        ("\n", "_"),
        ("A = 1", "c"),
        ("# a\r\nA = 1\r\n\r\n", "c#_"),
        ("A = 1\r# a\r", "c#"),
        ("A = 1\n\f\n# a\n", "c#_"),
        ("A = '\\'#'\nB = r'\\\\'\n# a\n", "cc#"),
        ("A = '''\n# a\n'''\n", "ccc"),
        ("A = ('a'\n# a\n'b')\n", "cc#"),
        ("A = 'a\\\n# a'\n", "cc"),
        ("(\n'a'\n# a\n'b')\n", "c#dd"),
        ("'''a\n\n# a'''\n", "dd_"),
        ("A = 1\n'no docstring'\n", "cc"),
        ("f'no docstring'\n", "c"),
        ("def f(): '''a\nb'''\n", "cd"),
        ("\ufeff# a\n'a'\n", "#d"),
        ("# \u2028 is no end of a line\n", "#"),
    ],
)
def test_lines_are_told_apart(tmp_path: Path, content: str, told_apart: str) -> None:
    counts = counts_of(tmp_path, content)

    kinds = "c" * counts.code + "#" * counts.comments + "d" * counts.docstrings + "_" * counts.blank
    assert told_apart == kinds
    assert len(told_apart) == counts.lines


@pytest.mark.parametrize(
    ("content", "lines", "reason"),
    [
        ("def f(:\n\n    pass\n", 3, "invalid syntax (line 1)"),
        (b"# caf\xe9\nA = 1", 2, "invalid or missing encoding declaration"),
        (b"A = 1\r\nB = '\xe9'\r\n\r\n", 3, "codec can't decode byte 0xe9"),
        ("# coding: no-such\n", 1, "unknown encoding: no-such"),
        ("# coding: rot13\n", 1, "is not a text encoding"),
        (b"A = '\0'\n", 1, "null bytes"),
        ("A = " + "-" * 200_000 + "1\n", 1, "too deeply nested"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_counted_and_says_why(
    tmp_path: Path, content: str | bytes, lines: int, reason: str
) -> None:
    write(tmp_path, "a.py", content)

    source = measure(tmp_path, "a.py")

    size = (tmp_path / "a.py").stat().st_size
    assert Counts(files=1, bytes=size, lines=lines, unparsed=lines) == source.counts
    assert reason in source.problem


def test_warnings_of_old_code_do_not_matter_in_any_thread(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "A = '\\d'\nB = 1if A else 2\n")
    filters = list(warnings.filters)
    often = sys.getswitchinterval()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            sources = list(threads.map(lambda _: measure(tmp_path, "a.py"), range(500)))
    finally:
        sys.setswitchinterval(often)

    assert {""} == {source.problem for source in sources}
    assert filters == list(warnings.filters)


def test_comments_are_those_that_tokenize_finds() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    files = [file for file in share(list_files(library), 0, 25) if file != "test/test_fstring.py"]

    for file in files:
        source = measure(library, file)
        if not source.problem:
            assert tokenized_comments(library / file) == source.counts.comments, file


def tokenized_comments(path: Path) -> int:
    with tokenize.open(path) as file:
        lines = file.read().split("\n")
    tokens = tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline)
    starts = [token.start for token in tokens if token.type == tokenize.COMMENT]
    return sum(not lines[line - 1][:column].strip() for line, column in starts)
