"""
Measure one Python source file.

Every line is exactly one of code, comment, docstring, blank or unparsed, so the five always add up to `lines`.
A file that cannot be read, decoded or parsed is measured as far as possible and carries the reason: nothing is hidden.
"""

from __future__ import annotations

import ast
import hashlib
import re
import threading
import warnings
from dataclasses import dataclass, field
from importlib.util import decode_source
from typing import TYPE_CHECKING

from flowforge.embedded.demo.figures import Counts, Function

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Comments and strings, split as `tokenize` does but twenty times as fast: with it, Python 3.11 needs 13 seconds for its
# own library. Strings are matched so that a `#` within one is passed over. One difference: from 3.12 on a comment may
# stand within an f-string; here it is part of the string, so code.
TOKEN = re.compile(
    r"""
    (?P<comment_line> ^ [ \t\f]* \# [^\n]* ) | \# [^\n]*
    | \"{3} (?: [^\\]    | \\. )*? \"{3} | '{3} (?: [^\\]    | \\. )*? '{3}
    | \"    (?: [^\\\n"] | \\. )*  \"    | '    (?: [^\\\n'] | \\. )*  '
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)

Block = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
SUITES = ("body", "handlers", "cases", "orelse", "finalbody")  # where a `def` may stand; most nodes are elsewhere

# Warning filters belong to the process, and tasks are threads: without a lock, one thread restores another's filters.
warning_filters = threading.Lock()


@dataclass(frozen=True)
class Source:
    """One file, measured. `problem` says why it could not be parsed; `sha256` is empty if it could not be read."""

    file: str
    counts: Counts
    sha256: str = ""
    functions: list[Function] = field(default_factory=list)
    problem: str = ""


def measure(directory: Path, file: str) -> Source:
    """Measure `file`, a path relative to `directory`."""
    try:
        content = _read(directory / file)
    except OSError as error:
        return Source(file, Counts(files=1), problem=error.strerror or str(error))
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        text, tree = _parse(content)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        return Source(file, _count_unparsed(content), sha256, problem=_reason(error))
    blocks = list(_blocks(tree))
    functions = [_function(name, node, file) for name, node in blocks if not isinstance(node, ast.ClassDef)]
    return Source(file, _count(content, text, tree, blocks), sha256, functions)


def _read(path: Path) -> bytes:
    # Opening a pipe would wait for a writer for ever.
    if path.exists() and not path.is_file():
        raise OSError(None, "Not a regular file")
    return path.read_bytes()


def _parse(content: bytes) -> tuple[str, ast.Module]:
    with warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = decode_source(content)
        return text, ast.parse(text)


def _reason(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{error.msg} (line {error.lineno})"
    return "too deeply nested" if isinstance(error, RecursionError | MemoryError) else str(error)


def _count_unparsed(content: bytes) -> Counts:
    # Latin-1 decodes anything and leaves line ends as they are.
    lines = len(_lines(content.decode("latin-1").replace("\r\n", "\n").replace("\r", "\n")))
    return Counts(files=1, bytes=len(content), lines=lines, unparsed=lines)


def _count(content: bytes, text: str, tree: ast.Module, blocks: list[tuple[str, Block]]) -> Counts:
    lines = _lines(text)
    blank = {number for number, line in enumerate(lines, start=1) if not line.strip()}
    comments = set(_comment_lines(text))
    documented = [tree, *(node for _, node in blocks)]
    docstrings = {number for node in documented for number in _docstring_lines(node, lines)} - blank - comments
    classes = sum(isinstance(node, ast.ClassDef) for _, node in blocks)
    return Counts(
        files=1,
        bytes=len(content),
        lines=len(lines),
        code=len(lines) - len(blank) - len(comments) - len(docstrings),
        comments=len(comments),
        docstrings=len(docstrings),
        blank=len(blank),
        functions=len(blocks) - classes,
        classes=classes,
    )


def _lines(text: str) -> list[str]:
    # Not splitlines(), which ends a line at a form feed too; Python's parser does not.
    return text.removesuffix("\n").split("\n") if text else []


def _comment_lines(text: str) -> Iterator[int]:
    line, position = 1, 0
    for token in TOKEN.finditer(text):
        if token["comment_line"] is not None:
            line += text.count("\n", position, token.start())
            position = token.start()
            yield line


def _docstring_lines(node: ast.Module | Block, lines: list[str]) -> range:
    match node.body:
        case [ast.Expr(value=ast.Constant(value=str(), lineno=first, end_lineno=int(last), col_offset=column)), *_]:
            # `def f(): "text"` is a line of code.
            shared = lines[first - 1][:column].strip()
            return range(first + 1 if shared else first, last + 1)
    return range(0)


def _blocks(tree: ast.Module) -> Iterator[tuple[str, Block]]:
    # Every class and function with its qualified name. Not by recursion, which has a limit.
    todo: list[tuple[str, ast.AST]] = [("", tree)]
    while todo:
        prefix, node = todo.pop()
        if isinstance(node, Block):
            yield prefix + node.name, node
            prefix = f"{prefix}{node.name}."
        todo += [(prefix, child) for suite in SUITES for child in getattr(node, suite, ())]


def _function(name: str, node: Block, file: str) -> Function:
    last = node.lineno if node.end_lineno is None else node.end_lineno
    return Function(name, file, node.lineno, last - node.lineno + 1)
