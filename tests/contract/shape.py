"""The shape of a verb's text: its CTEs, what each of them locks and changes, and on which others it depends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from flowforge.db import load_statements

STATEMENTS = load_statements("flowforge.transitions")

#: The order in which every verb locks.
LOCK_ORDER = ("idempotency_key", "workflow_run", "task_run", "outbox_message", "pause")

_HEAD = re.compile(r"\b(\w+)(?: \([\w, ]+\))? as (materialized )?\(")
_LOCK = re.compile(r"from flowforge\.(\w+) (\w+)\b.*\bfor no key update\b", re.DOTALL)
_CHANGE = re.compile(r"\b(?:update|delete from) flowforge\.(\w+)")
_MEET = re.compile(r"\binsert into flowforge\.(\w+)\b.*\bon conflict\b", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """One CTE of a statement, or (`name` is empty) what follows the last."""

    name: str
    materialized: bool
    text: str

    @cached_property
    def locks(self) -> tuple[str, str] | None:
        """The table whose rows this part locks, and its alias here."""
        found = _LOCK.search(self.text)
        return (found[1], found[2]) if found else None

    @cached_property
    def meets(self) -> str | None:
        """The table into which this part inserts rows that others may be inserting: then it waits for those."""
        found = _MEET.search(self.text)
        return found[1] if found else None

    @property
    def waits_for(self) -> str | None:
        """The table for whose rows this part waits while others have them."""
        return self.locks[0] if self.locks else self.meets

    @cached_property
    def changes(self) -> str | None:
        """The table whose rows this part updates or deletes."""
        found = _CHANGE.search(self.text)
        return found[1] if found else None


def plain(statement: str) -> str:
    """Return a statement without its comments and the texts that it quotes."""
    return re.sub(r"--.*", "", statement)


def parts(statement: str) -> list[Part]:
    """Return a statement's CTEs in order, and last what follows them."""
    text, found, end = plain(statement), [], 0
    while head := _HEAD.search(text, end):
        end = _closing(text, head.end())
        found.append(Part(head[1], bool(head[2]), text[head.end() : end]))
    return [*found, Part("", materialized=False, text=text[end:])]


def needs(part: Part, among: list[Part]) -> list[Part]:
    """Return the parts that must be done before this one: those it reads, and in turn those that they read."""
    earlier = among[: among.index(part)]
    direct = [other for other in earlier if re.search(rf"\b(?:from|join|using) {other.name}\b", part.text)]
    return [other for other in earlier if other in direct or any(other in needs(one, among) for one in direct)]


def _closing(text: str, start: int) -> int:
    depth, place = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        place += 1
    return place - 1
