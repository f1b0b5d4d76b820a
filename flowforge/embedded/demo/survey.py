"""
Survey a source tree: list its files, share them out, read the shares anywhere, merge what was found.

The survey is the same however many shares there were and in whatever order they come. `recount` makes it again without
shares, `differences` says where the two disagree. Everything returned survives JSON.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import astuple, fields, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.embedded.demo.figures import Content, Counts, Function, Package, Share, Survey, Unparsed
from flowforge.embedded.demo.source import Source, measure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FIGURES = [figure.name for figure in fields(Counts)]
LONGEST = 20  # kept by each share as by the survey: all of the longest may be in one share
SKIPPED = frozenset({"__pycache__", "dist-packages", "node_modules", "site-packages"})


def list_files(directory: Path) -> list[str]:
    """
    List the tree's Python files, sorted, relative to `directory`.

    Installed packages, caches, hidden directories and linked directories are left out. A directory that cannot be
    listed stands in the list itself: reading it fails, and so it is counted.
    """
    if not directory.is_dir():
        raise NotADirectoryError(f"not a directory: {directory}")
    closed: list[OSError] = []
    paths: list[Path] = []
    for root, folders, names in os.walk(directory, onerror=closed.append):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        paths += [Path(root, name) for name in names if name.endswith(".py")]
    paths += [Path(error.filename) for error in closed]
    return sorted(_printable(path.relative_to(directory)) for path in paths)


def share(files: Sequence[str], number: int, of: int) -> list[str]:
    """Take share `number` of so many, counted from 0. By stride, for neighbours are often alike in size."""
    if not 0 <= number < of:
        raise ValueError(f"share {number} of {of}: there is none; they count from 0")
    return list(files[number::of])


def read_share(directory: Path, files: Sequence[str]) -> Share:
    """Read these files of the tree."""
    sources = [measure(directory, file) for file in files]
    packages: Counter[str] = Counter()
    for source in sources:
        packages[_package(source)] += source.counts.lines
    return Share(
        totals=_add(source.counts for source in sources),
        longest=_longest(function for source in sources for function in source.functions),
        contents=_unite((source.sha256, _content([source])) for source in sources if source.counts.bytes),
        packages=dict(packages),
        unparsed=[_unparsed(source) for source in sources if source.problem],
    )


def merge(shares: Sequence[Share]) -> Survey:
    """Make one survey of all shares."""
    packages: Counter[str] = Counter()
    for part in shares:
        packages.update(part.packages)
    contents = _unite(item for part in shares for item in part.contents.items())
    return Survey(
        totals=_add(part.totals for part in shares),
        longest=_longest(function for part in shares for function in part.longest),
        duplicates=_costliest(content for content in contents.values() if len(content.files) > 1),
        packages=_largest(Package(name, lines) for name, lines in packages.items()),
        unparsed=sorted((file for part in shares for file in part.unparsed), key=lambda file: file.file),
    )


def recount(directory: Path) -> Survey:
    """Survey the tree in one go: every file anew, with no shares and none of what merges them."""
    sources = [measure(directory, file) for file in list_files(directory)]
    same = [[*group] for _, group in groupby(sorted(sources, key=_digest), key=_digest)]
    packages = [(name, [*group]) for name, group in groupby(sources, key=_package)]
    return Survey(
        totals=Counts(**{name: sum(getattr(source.counts, name) for source in sources) for name in FIGURES}),
        longest=_longest(function for source in sources for function in source.functions),
        duplicates=_costliest(_content(group) for group in same if len(group) > 1 and group[0].counts.bytes),
        packages=_largest(Package(name, sum(source.counts.lines for source in group)) for name, group in packages),
        unparsed=[_unparsed(source) for source in sources if source.problem],
    )


def differences(merged: Survey, recounted: Survey) -> list[str]:
    """Say in sentences where the two disagree; nothing where they agree."""
    sentences = [
        f"{name}: {ours:,} after the merge, {theirs:,} by the recount."
        for name in FIGURES
        if (ours := getattr(merged.totals, name)) != (theirs := getattr(recounted.totals, name))
    ]
    for name in ("longest", "duplicates", "packages", "unparsed"):
        sentences += _disagreements(name, getattr(merged, name), getattr(recounted, name))
    return sentences


def _disagreements(name: str, merged: list[object], recounted: list[object]) -> list[str]:
    if merged == recounted:
        return []
    sentences = [f"{name}: only after the merge: {entry}." for entry in merged if entry not in recounted]
    sentences += [f"{name}: only by the recount: {entry}." for entry in recounted if entry not in merged]
    return sentences or [f"{name}: the same entries, but not in the same order and number."]


def _printable(path: Path) -> str:
    # A name that is no text cannot go through JSON. Escaped it names no file, so reading it fails, and is counted.
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def _package(source: Source) -> str:
    package, slash, _ = source.file.partition("/")
    return package + slash


def _digest(source: Source) -> str:
    return source.sha256


def _unparsed(source: Source) -> Unparsed:
    return Unparsed(source.file, source.counts.lines, source.problem)


def _content(same: Sequence[Source]) -> Content:
    return Content(same[0].counts.bytes, same[0].counts.lines, [source.file for source in same])


def _add(counts: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*(astuple(one) for one in counts), strict=True)))


def _unite(contents: Iterable[tuple[str, Content]]) -> dict[str, Content]:
    united: dict[str, Content] = {}
    for digest, content in contents:
        known = united[digest].files if digest in united else []
        united[digest] = replace(content, files=sorted([*known, *content.files]))
    return united


def _longest(functions: Iterable[Function]) -> list[Function]:
    return sorted(functions, key=lambda one: (-one.lines, one.file, one.line, one.name))[:LONGEST]


def _costliest(contents: Iterable[Content]) -> list[Content]:
    return sorted(contents, key=lambda content: (-content.needless, content.files))


def _largest(packages: Iterable[Package]) -> list[Package]:
    return sorted(packages, key=lambda package: (-package.lines, package.name))
