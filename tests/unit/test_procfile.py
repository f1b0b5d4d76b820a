"""A Procfile says what it means, or says which line does not."""

from __future__ import annotations

import pytest

from flowforge.embedded import procfile


def test_commands_come_in_the_order_of_the_file() -> None:
    text = "web: flowforge web --port 8080\n\n# the rest\n  worker :flowforge worker\nclock-1: a: b # c\n"

    commands = procfile.parse(text)

    expected = {"web": "flowforge web --port 8080", "worker": "flowforge worker", "clock-1": "a: b # c"}
    assert list(expected.items()) == list(commands.items())


def test_an_empty_file_has_no_commands() -> None:
    assert procfile.parse("\n# nothing\n") == {}


@pytest.mark.parametrize("line", ["web", "web:", ": command", "two words: command", "wéb: command"])
def test_a_line_without_name_or_command_is_named_with_its_number(line: str) -> None:
    with pytest.raises(ValueError, match=f"Procfile, line 2: expected `name: command`: {line}"):
        procfile.parse(f"# first\n{line}\n")


def test_a_name_may_stand_only_once() -> None:
    with pytest.raises(ValueError, match="Procfile, line 2: 'web' is there already: web: two"):
        procfile.parse("web: one\nweb: two\n")
