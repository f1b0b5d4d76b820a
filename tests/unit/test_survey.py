"""The demo's survey finds what stands in the files, and finds the same however the files are shared out."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from flowforge.embedded.demo.figures import Content, Counts, Function, Package, Share, Survey, Unparsed
from flowforge.embedded.demo.survey import LONGEST, differences, list_files, merge, read_share, recount, share

NESTED = """\
'A docstring.'

class C:
    def method(self):
        # why
        return 1
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path, "nested.py", NESTED)
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


def survey_in(directory: Path, shares: int) -> Survey:
    files = list_files(directory)
    return merge([read_share(directory, share(files, number, shares)) for number in range(shares)])


# --- listing and sharing ---


def test_it_lists_python_files_sorted_and_relative(tree: Path) -> None:
    write(tree, "pack/readme.txt", "no")

    files = list_files(tree)

    expected = ["broken/latin.py", "broken/syntax.py", "empty.py", "nested.py"]
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


# --- the tree ---


def test_a_survey_holds_what_was_written(tree: Path) -> None:
    survey = survey_in(tree, shares=3)

    expected = Survey(
        totals=Counts(
            files=8,
            bytes=78 + 6 + 6 + 39 + 18 + 12,
            lines=6 + 1 + 1 + 3 + 3 + 2,
            code=3 + 1 + 1 + 2,
            comments=1 + 1,
            docstrings=1,
            blank=1,
            unparsed=3 + 2,
            functions=1 + 1,
            classes=1,
        ),
        longest=[
            Function("C.method", "nested.py", line=4, lines=3),
            Function("f", "pack/windows.py", line=1, lines=3),
        ],
        duplicates=[Content(bytes=6, lines=1, files=["pack/deep/two.py", "pack/one.py"])],
        packages=[Package("nested.py", 6), Package("broken/", 5), Package("pack/", 5), Package("empty.py", 0)],
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
