"""
Each answer of docs/faults.md, undone: the test that is named there must turn red.

`make mutants` reads the table, makes the change of each row in a copy of the tree, and runs that row's test.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.trial import ROOT, red

DOCUMENT = ROOT / "docs/faults.md"
_AT_ONCE = 2
_CODE = r"`` ?(.+?) ?``|`([^`]+)`"
_ROW = re.compile(rf"^\| (B\d{{3}}) \| `([^`]+)` \| `([^`]+)` \| (?:{_CODE}) \| (?:{_CODE}) \|$", re.MULTILINE)
_NOT = re.compile(r"^\| (B\d{3}) \| (?!`)(.+) \|$", re.MULTILINE)


class Fault(NamedTuple):
    """A row: the test that shows the answer, and the change of a file of ours that takes the answer away."""

    id: str
    test: str
    file: Path
    code: str
    instead: str

    def apply(self) -> str:
        """Return the file's text with the change."""
        text = (ROOT / self.file).read_text()
        if text.count(self.code) != 1:
            raise LookupError(f"{self.id}: {self.code!r} is {text.count(self.code)} times in {self.file}, not once")
        return text.replace(self.code, self.instead)


def faults(document: str) -> list[Fault]:
    """Return the rows that name a change."""
    return [
        Fault(id_, test, Path(file), *(plain(a or b) for a, b in ((code, code1), (instead, instead1))))
        for id_, test, file, code, code1, instead, instead1 in _ROW.findall(document)
    ]


def plain(code: str) -> str:
    """Return code as it stands in its file: a table escapes the bars."""
    return code.replace("\\|", "|")


def not_ours(document: str) -> dict[str, str]:
    """Return id -> why it cannot happen here, of those that do not apply."""
    return dict(_NOT.findall(document))


def main() -> int:
    """Try all rows, or those of the ids that are named; return 1 if any change leaves its test green."""
    rows = [row for row in faults(DOCUMENT.read_text()) if not sys.argv[1:] or row.id in sys.argv[1:]]
    if first := red(sorted({row.test for row in rows})):
        sys.stdout.write(f"{first} is red without any change\n")
        return 1
    green = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for row, first in zip(rows, pool.map(lambda one: red([one.test], {one.file: one.apply()}), rows), strict=True):
            green += first is None
            sys.stdout.write(f"{row.id} {row.file} {'red: ' + first if first else 'STAYS GREEN: ' + row.test}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(rows)} answers undone, {green} not noticed\n")
    return int(green > 0)


if __name__ == "__main__":
    sys.exit(main())
