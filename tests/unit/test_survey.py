"""The demo's survey finds what stands in the files, and finds the same however the files are shared out."""

from __future__ import annotations

import io
import os
import sys
import sysconfig
import tempfile
import tokenize
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from flowforge.embedded.demo.figures import Content, Counts, Function, Package, Share, Survey, Unparsed
from flowforge.embedded.demo.source import measure
from flowforge.embedded.demo.survey import LONGEST, differences, list_files, merge, read_share, recount, share

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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path, "everything.py", EVERYTHING)
    write(tmp_path, "empty.py", "")
    write(tmp_path, "pack/__init__.py", "")
    write(tmp_path, "pack/one.py", "A = 1\n")
    write(tmp_path, "pack/deep/two.py", "A = 1\n")
    write(tmp_path, "pack/windows.py", b"def f():\r\n    # comment\r\n    return 1\r\n")
    write(tmp_path, "broken/syntax.py", "def f(:\n\n    pass\n")
    write(tmp_path, "broken/latin.py", b"# caf\xe9\nA = 1")
    return tmp_path


def write(directory: Path, file: str, content: str | bytes) -> None:
    path = directory / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def counts_of(directory: Path, content: str | bytes) -> Counts:
    write(directory, "a.py", content)
    return measure(directory, "a.py").counts


def survey_in(directory: Path, shares: int) -> Survey:
    files = list_files(directory)
    return merge([read_share(directory, share(files, number, shares)) for number in range(shares)])


# --- listing and sharing ---


def test_it_lists_python_files_sorted_and_relative(tree: Path) -> None:
    write(tree, "pack/readme.txt", "no")

    files = list_files(tree)

    expected = ["broken/latin.py", "broken/syntax.py", "empty.py", "everything.py"]
    expected += ["pack/__init__.py", "pack/deep/two.py", "pack/one.py", "pack/windows.py"]
    assert expected == files


@pytest.mark.parametrize("folder", ["site-packages", "__pycache__", ".venv", "pack/node_modules"])
def test_it_passes_over_what_is_not_the_trees_own(tmp_path: Path, folder: str) -> None:
    write(tmp_path, f"{folder}/a.py", "A = 1\n")

    assert [] == list_files(tmp_path)


def test_it_does_not_follow_a_linked_directory(tmp_path: Path) -> None:
    write(tmp_path, "real/a.py", "A = 1\n")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "round").symlink_to(tmp_path)

    assert ["real/a.py"] == list_files(tmp_path)


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere"):
        list_files(tmp_path / "nowhere")


def test_a_directory_that_cannot_be_listed_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.py", "A = 1\n")
    write(tmp_path, "closed/b.py", "B = 1\n")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    survey = recount(tmp_path)

    assert [Unparsed("closed", 0, "Not a regular file")] == survey.unparsed
    assert 2 == survey.totals.files


@given(files=st.lists(st.text(max_size=3), max_size=40), of=st.integers(1, 50))
def test_shares_hold_every_file_once_and_are_level(files: list[str], of: int) -> None:
    shares = [share(files, number, of) for number in range(of)]

    assert sorted(files) == sorted(file for part in shares for file in part)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("number", "of"), [(-1, 2), (2, 2), (0, 0)])
def test_a_share_that_does_not_exist_is_refused(number: int, of: int) -> None:
    with pytest.raises(ValueError, match=f"share {number} of {of}"):
        share(["a.py"], number, of)


# --- one file ---


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


def test_a_file_that_cannot_be_read_is_counted_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.py")

    survey = recount(tmp_path)

    expected = [Unparsed("gone.py", 0, "No such file or directory"), Unparsed("pipe.py", 0, "Not a regular file")]
    assert expected == survey.unparsed
    assert Counts(files=2) == survey.totals
    assert [] == survey.duplicates


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_file_whose_name_is_no_text_is_counted(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.py")).write_text("A = 1\n")

    survey = survey_in(tmp_path, shares=1)

    assert [Unparsed(r"caf\xe9.py", 0, "No such file or directory")] == survey.unparsed


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
    files = share(list_files(library), 0, 25)

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


# --- the tree ---


def test_a_survey_holds_what_was_written(tree: Path) -> None:
    survey = survey_in(tree, shares=3)

    expected = Survey(
        totals=Counts(
            files=8,
            bytes=len(EVERYTHING) + 6 + 6 + 39 + 18 + 12,
            lines=40 + 1 + 1 + 3 + 3 + 2,
            code=21 + 1 + 1 + 2,
            comments=3 + 1,
            docstrings=6,
            blank=10,
            unparsed=3 + 2,
            functions=4 + 1,
            classes=2,
        ),
        longest=[
            Function("Outer.method", "everything.py", line=19, lines=11),
            Function("Outer.method.inner", "everything.py", line=21, lines=7),
            Function("f", "pack/windows.py", line=1, lines=3),
            Function("guarded", "everything.py", line=36, lines=1),
            Function("handled", "everything.py", line=40, lines=1),
        ],
        duplicates=[Content(bytes=6, lines=1, files=["pack/deep/two.py", "pack/one.py"])],
        packages=[Package("everything.py", 40), Package("broken/", 5), Package("pack/", 5), Package("empty.py", 0)],
        unparsed=[
            Unparsed("broken/latin.py", 2, "invalid or missing encoding declaration"),
            Unparsed("broken/syntax.py", 3, "invalid syntax (line 1)"),
        ],
    )
    assert [] == differences(survey, expected)
    assert expected == survey


def test_the_longest_functions_are_found_though_all_are_in_one_share(tmp_path: Path) -> None:
    lengths = range(1, LONGEST + 6)
    write(tmp_path, "a.py", "".join(f"def f{lines}():\n" + "    pass\n" * (lines - 1 or 1) for lines in lengths))
    write(tmp_path, "b.py", "def g(): pass\n")

    survey = survey_in(tmp_path, shares=2)

    assert LONGEST == len(survey.longest)
    assert [function.name for function in recount(tmp_path).longest] == [function.name for function in survey.longest]


def test_an_empty_tree_has_an_empty_survey(tmp_path: Path) -> None:
    expected = Survey(Counts(), [], [], [], [])

    assert expected == survey_in(tmp_path, shares=2) == recount(tmp_path) == merge([])


def test_shares_and_surveys_survive_json(tree: Path) -> None:
    found = read_share(tree, list_files(tree))
    survey = merge([found])

    shares, surveys = TypeAdapter(Share), TypeAdapter(Survey)

    assert found == shares.validate_json(shares.dump_json(found), strict=True)
    assert survey == surveys.validate_json(surveys.dump_json(survey), strict=True)


SNIPPETS = ["", "A = 1\n", "# a\n", "\n", "'''a\n# b\n'''\n", "def f():\n    def g(): pass\n", "class C: '#'\n", "(\n"]
sources = st.lists(st.sampled_from(SNIPPETS), max_size=4).map("".join)
names = st.from_regex(r"([ab]/){0,2}[a-e]\.py", fullmatch=True)


@settings(deadline=None, max_examples=60)
@given(tree=st.dictionaries(names, sources, max_size=12), shares=st.integers(1, 15), data=st.data())
def test_sharing_and_merging_is_counting_once(tree: dict[str, str], shares: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file, content in tree.items():
            write(directory, file, content)
        files = list_files(directory)
        parts = [read_share(directory, share(files, number, shares)) for number in range(shares)]

        survey = merge(data.draw(st.permutations(parts)))

        assert [] == differences(survey, recount(directory))
        assert survey == recount(directory)
        assert survey.totals.lines == sum(package.lines for package in survey.packages)


# --- what differs is said ---


def test_equal_surveys_have_no_differences(tree: Path) -> None:
    assert [] == differences(recount(tree), recount(tree))


@pytest.mark.parametrize("figure", [figure.name for figure in fields(Counts)])
def test_a_changed_figure_is_told(tree: Path, figure: str) -> None:
    survey = recount(tree)
    right = getattr(survey.totals, figure)
    wrong = replace(survey, totals=replace(survey.totals, **{figure: right + 1000}))

    assert [f"{figure}: {right + 1000:,} after the merge, {right:,} by the recount."] == differences(wrong, survey)


@pytest.mark.parametrize("name", ["longest", "duplicates", "packages", "unparsed"])
def test_a_lost_entry_is_told_from_either_side(tree: Path, name: str) -> None:
    survey = recount(tree)
    lost = getattr(survey, name)[0]
    less = replace(survey, **{name: getattr(survey, name)[1:]})

    assert [f"{name}: only by the recount: {lost}."] == differences(less, survey)
    assert [f"{name}: only after the merge: {lost}."] == differences(survey, less)


def test_a_changed_order_is_told(tree: Path) -> None:
    survey = recount(tree)
    turned = replace(survey, packages=survey.packages[::-1])

    assert ["packages: the same entries, but not in the same order and number."] == differences(turned, survey)


def test_a_share_merged_twice_is_told(tree: Path) -> None:
    part = read_share(tree, list_files(tree))

    told = differences(merge([part, part]), recount(tree))

    assert "files: 16 after the merge, 8 by the recount." in told
