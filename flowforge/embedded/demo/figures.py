"""What a survey counts and finds, in types that JSON has, so that tasks can hand it on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """What can be added up. A comment after code is code, and so is a string that is no docstring."""

    files: int = 0
    bytes: int = 0
    lines: int = 0
    code: int = 0
    comments: int = 0
    docstrings: int = 0
    blank: int = 0
    unparsed: int = 0
    functions: int = 0
    classes: int = 0


@dataclass(frozen=True)
class Function:
    """A function or method, at any depth; its lines are counted from its `def`, not from its decorators."""

    name: str
    file: str
    line: int
    lines: int

    def __str__(self) -> str:
        return f"{self.name} in {self.file}:{self.line} ({self.lines:,} lines)"


@dataclass(frozen=True)
class Content:
    """The files that hold the same bytes."""

    bytes: int
    lines: int
    files: list[str]

    @property
    def needless(self) -> int:
        """The bytes that would be saved by keeping one copy."""
        return self.bytes * (len(self.files) - 1)

    def __str__(self) -> str:
        return f"{' = '.join(self.files)} ({self.bytes:,} bytes each)"


@dataclass(frozen=True)
class Package:
    """A top-level package (`json/`) or module (`abc.py`) of the tree."""

    name: str
    lines: int

    def __str__(self) -> str:
        return f"{self.name} ({self.lines:,} lines)"


@dataclass(frozen=True)
class Unparsed:
    """A file that could not be read, decoded or parsed, and why."""

    file: str
    lines: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} ({self.lines:,} lines): {self.reason}"


@dataclass(frozen=True)
class Share:
    """What was found in some of the files. `contents` is by SHA-256, without the empty files, which repeat nothing."""

    totals: Counts
    longest: list[Function]
    contents: dict[str, Content]
    packages: dict[str, int]
    unparsed: list[Unparsed]


@dataclass(frozen=True)
class Survey:
    """What was found in all files: the longest functions, costliest duplicates and largest packages first."""

    totals: Counts
    longest: list[Function]
    duplicates: list[Content]
    packages: list[Package]
    unparsed: list[Unparsed]
