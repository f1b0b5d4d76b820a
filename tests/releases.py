"""The releases and their migrations, as docs/upgrades.md tells them to operators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_TEXT = (Path(__file__).parents[1] / "docs" / "upgrades.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (\d+\.\d+\.\d+) \| (.+) \| (\d+\.\d+\.\d+) \|$", re.MULTILINE)


class Release(NamedTuple):
    """A release, the migrations that came with it, and the oldest release that runs on their result."""

    name: str
    migrations: tuple[str, ...]
    oldest: str


def releases() -> list[Release]:
    """Return the releases, the oldest first; the last is the one that this tree is to become."""
    return [Release(name, tuple(re.findall(r"`(\w+)`", told)), oldest) for name, told, oldest in _ROW.findall(_TEXT)]
