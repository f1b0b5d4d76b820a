"""The words of the states are one set: in Python and in schema.sql; and the rules decide as their table says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowforge.states import RUN_TERMINAL, TASK_TERMINAL, RunEvent, RunState, TaskEvent, TaskState, When

if TYPE_CHECKING:
    from enum import StrEnum

SCHEMA = (Path(__file__).parents[2] / "schema.sql").read_text(encoding="utf-8")

#: (failed, unsucceeded) -> which rules are met.
TABLE = {
    (0, 0): {When.ALL_SUCCEEDED, When.NONE_FAILED, When.ALL_DONE},
    (0, 1): {When.NONE_FAILED, When.ALL_DONE},
    (1, 1): {When.ALL_DONE, When.ANY_FAILED},
    (1, 3): {When.ALL_DONE, When.ANY_FAILED},
}


def words_of(constraint: str) -> set[str]:
    """Return the literals in a CHECK of schema.sql."""
    (check,) = re.findall(rf"constraint {constraint}\s+check \((.*?)\)[,\n]", SCHEMA, flags=re.DOTALL)
    return set(re.findall(r"'(\w+)'", check))


@pytest.mark.parametrize(("failed", "unsucceeded"), TABLE)
def test_a_rule_is_met_as_its_table_says(failed: int, unsucceeded: int) -> None:
    met = {when for when in When if when.met(failed=failed, unsucceeded=unsucceeded)}

    assert met == TABLE[failed, unsucceeded]


@pytest.mark.parametrize(
    ("words", "constraint"),
    [
        (RunState, "wfrun_state_valid"),
        (TaskState, "taskrun_state_valid"),
        (When, "task_when_valid"),
        (When, "taskrun_when_valid"),
        (RunEvent, "wfrun_event_kind_valid"),
        (TaskEvent, "taskrun_event_kind_valid"),
        (RUN_TERMINAL, "wfrun_finished_at_matches_state"),
        (TASK_TERMINAL, "taskrun_finished_at_matches_state"),
    ],
)
def test_python_and_the_schema_know_the_same_words(words: type[StrEnum], constraint: str) -> None:
    assert {word.value for word in words} == words_of(constraint)


def test_every_terminal_state_has_an_event_of_its_name() -> None:
    assert {state.value for state in RUN_TERMINAL} <= {event.value for event in RunEvent}
    assert {state.value for state in TASK_TERMINAL} <= {event.value for event in TaskEvent}
