"""What there is stands in README or docs, where a reader looks for it; and what they say of it is so."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import typer

import flowforge
import flowforge.testing
from flowforge import FlowForgeError, Settings, errors
from flowforge.broker import Runway
from flowforge.cli.app import app
from flowforge.db import load_statements
from flowforge.monitor import Turns
from flowforge.states import RunEvent, RunState, TaskEvent, TaskState, When
from tests.documents import DOCUMENTS, ROOT, anchors, code, in_code, links, spans, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

OPERATIONS, MODEL = "docs/operations.md", "docs/execution-model.md"


def told(name: str, documents: list[str] = DOCUMENTS) -> bool:
    """Whether a name stands in code in one of the documents."""
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code(document)) for document in documents)


def test_every_public_name_is_told() -> None:
    public = {*flowforge.__all__, *flowforge.testing.__all__} - {"pytest_addoption"}  # pytest's own name, for a hook

    assert {name for name in public if not told(name)} == set()


def test_every_command_is_told_with_its_options() -> None:
    said = {re.sub(r" [^a-z].*", "", in_code(row[0])): spans(row[1]) for row in table(OPERATIONS, "command")}
    there = dict(commands(typer.main.get_command(app)))

    assert there.keys() == said.keys()
    assert {name: options - set(said[name]) for name, options in there.items() if options - set(said[name])} == {}


def commands(command: Any, path: str = "flowforge") -> Iterator[tuple[str, set[str]]]:
    """Yield each command that is not hidden, and its options; a group only if it has options of its own."""
    options = {name for parameter in command.params if parameter.param_type_name == "option" for name in parameter.opts}
    below = getattr(command, "commands", {})
    if options or not below:
        yield path, options
    for name, one in below.items():
        if not one.hidden:
            yield from commands(one, f"{path} {name}")


def test_every_setting_is_told_with_its_default() -> None:
    said = {in_code(row[0]): row[2] for row in table(OPERATIONS, "setting")}
    defaults = {name: in_code(cell) for name, cell in said.items() if "`" in cell}

    assert said.keys() == {field.metadata["env"] for field in dataclasses.fields(Settings)}
    assert said.keys() - defaults.keys() == {"DATABASE_URL", "REDIS_URL", "FLOWFORGE_MODULES", "FLOWFORGE_QUEUES"}
    assert Settings.from_env(defaults) == Settings()


def test_every_error_is_told() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    there = {one.__name__ for one in classes if issubclass(one, FlowForgeError) and one is not FlowForgeError}

    assert {in_code(row[0]) for row in table("docs/errors.md", "error")} == there


def test_every_state_and_rule_is_told() -> None:
    words = {*RunState, *TaskState, *When}

    assert {word for word in words if not told(word, [MODEL])} == set()


@pytest.mark.parametrize(("header", "kinds"), [("of a run", RunEvent), ("of a task run", TaskEvent)])
def test_every_kind_of_event_is_told(header: str, kinds: type[RunEvent | TaskEvent]) -> None:
    said = [kind for row in table(MODEL, header) for kind in spans(row[0])]

    assert sorted(said) == sorted(kinds)


def test_every_finding_of_the_doctor_is_told() -> None:
    said = {in_code(row[0]) for row in table(OPERATIONS, "line")}
    first = {"settings", "redis", "postgres", "schedulers", "migrations", "queues", "refused completions"}

    assert said == first | load_statements("flowforge.insights", "invariants.sql").keys()


def test_keys_in_redis_are_those_that_are_told(redis: Redis, settings: Settings) -> None:
    space = settings.namespace
    runway, turns = Runway(redis, space), Turns(redis, space)
    runway.push("default", [b"dispatch"])
    runway.wake()
    runway.tell_progress(UUID(int=1), 1, 2, "note")
    turns.tell("publish", every=0.25)

    there = {key.decode(): (redis.type(key).decode(), redis.ttl(key)) for key in redis.scan_iter(f"{space}:*")}
    said: dict[str, tuple[str, int]] = {}
    for key, kind, _, lives in table(OPERATIONS, "key"):
        form = re.compile(re.sub("<.*?>", ".+", in_code(key)).replace("flowforge", space, 1))
        said |= {name: (kind, 86_400 if lives == "a day" else -1) for name in there if form.fullmatch(name)}
    assert len(there) == len(("dispatch", "wake", "progress", "turns"))
    assert said == there


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        if "://" not in link:
            assert target.exists(), link
            assert not anchor or anchor in anchors(str(target.resolve().relative_to(ROOT))), link
