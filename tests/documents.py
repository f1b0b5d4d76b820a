"""README and docs as they are read: their fenced blocks, the words in code, their tables and links."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]

_MARKDOWN = MarkdownIt("commonmark").enable("table")


class Block(NamedTuple):
    """A block of code; `line` is where its text begins. One that is indented and not fenced has no language."""

    document: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.document}:{self.line}"


def blocks(document: str) -> list[Block]:
    """Return the blocks of a document, in order."""
    return [
        Block(document, token.map[0] + 2, token.info.strip(), token.content)
        for token in _tokens(document)
        if token.type in {"fence", "code_block"} and token.map
    ]


def table(document: str, header: str) -> list[list[str]]:
    """Return the rows of a document's tables whose first column is headed so: their cells, as they are written."""
    found: list[list[str]] = []
    for cells in _tables(document):
        if cells[0][0] == header:
            found += cells[1:]
    assert found, f"{document} has no table that begins with {header!r}"
    return found


def _tables(document: str) -> Iterator[list[list[str]]]:
    tokens = iter(_tokens(document))
    for token in tokens:
        if token.type == "table_open":
            parts = takewhile(lambda part: part.type != "table_close", tokens)
            yield _rows(parts)


def _rows(parts: Iterator[Token]) -> list[list[str]]:
    rows: list[list[str]] = []
    for part in parts:
        if part.type == "tr_open":
            rows.append([])
        elif part.type == "inline":
            rows[-1].append(part.content)
    return rows


def links(document: str) -> list[str]:
    """Return where a document's links lead."""
    return [str(token.attrGet("href")) for token in _all(document) if token.type == "link_open"]


def anchors(document: str) -> set[str]:
    """Return the names by which a document's headings can be linked to, as GitHub makes them."""
    tokens = _tokens(document)
    headings = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code(document: str) -> str:
    """Return what stands in code in a document, within sentences and in blocks, a line for each."""
    return "\n".join(token.content for token in _all(document) if token.type in {"fence", "code_inline"})


def spans(cell: str) -> list[str]:
    """Return what stands in code within a cell."""
    return re.findall(r"`([^`]+)`", cell)


def in_code(cell: str) -> str:
    """Return the one thing that stands in code in a cell."""
    (span,) = spans(cell)
    return span


def _all(document: str) -> Iterator[Token]:
    for token in _tokens(document):
        yield token
        yield from token.children or ()


@cache
def _tokens(document: str) -> list[Token]:
    return _MARKDOWN.parse((ROOT / document).read_text(encoding="utf-8"))
