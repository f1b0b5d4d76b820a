"""Read a Procfile: which processes an application consists of, one `name: command` a line."""

from __future__ import annotations

import re

_LINE = re.compile(r"([A-Za-z0-9_-]+)\s*:\s*(\S.*)")


def parse(text: str) -> dict[str, str]:
    """
    Return the command of each name, in the order of the file; empty lines and lines that begin with # are skipped.

    ValueError names the line that is neither, or that names a process for the second time.
    """
    commands: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        name, command = _split(number, entry)
        if name in commands:
            raise _error(number, entry, f"{name!r} is there already")
        commands[name] = command
    return commands


def _split(number: int, entry: str) -> tuple[str, str]:
    match = _LINE.fullmatch(entry)
    if match is None:
        raise _error(number, entry, "expected `name: command`")
    return match[1], match[2]


def _error(number: int, entry: str, reason: str) -> ValueError:
    return ValueError(f"Procfile, line {number}: {reason}: {entry}")
