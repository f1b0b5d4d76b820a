"""The example reads WfFormat files as they are, and says what is wrong with those it cannot replay."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import wfformat
from flowforge.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DIAMOND = {"last": ["left", "right"], "left": ["first"], "right": ["first"], "first": []}


def instance(parents: Mapping[str, Sequence[str]], seconds: Mapping[str, float] | None = None) -> dict[str, Any]:
    runtimes = seconds if seconds is not None else dict.fromkeys(parents, 1.5)
    return {
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {"tasks": [{"id": task, "parents": list(named)} for task, named in parents.items()]},
            "execution": {"tasks": [{"id": task, "runtimeInSeconds": value} for task, value in runtimes.items()]},
        },
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "Diamond 1.json"


def recorded(file: Path, content: object) -> wfformat.Recording:
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return wfformat.read(file)


def refused(file: Path, content: object) -> str:
    with pytest.raises(wfformat.WfFormatError) as caught:
        recorded(file, content)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    return message.removeprefix(f"{file}: ")


def test_parents_come_before_their_children_whatever_the_order_in_the_file(file: Path) -> None:
    recording = recorded(file, instance(DIAMOND))

    assert ["first", "left", "right", "last"] == list(recording.parents)
    assert frozenset({"left", "right"}) == recording.parents["last"]
    assert list(recording.parents) == list(recording.seconds)


def test_the_workflow_has_the_tasks_and_edges_of_the_file(file: Path) -> None:
    workflow = wfformat.build(recorded(file, instance(DIAMOND, {"first": 4, "left": 0.5, "right": 0, "last": 1})))

    edges = {key: task.upstream for key, task in workflow.tasks.items()}
    assert {"first": (), "left": ("first",), "right": ("first",), "last": ("left", "right")} == edges
    assert {"seconds": {"value": 0.5}, "speed": {"parameter": "speed"}} == workflow.tasks["left"].inputs
    assert "wfformat.diamond-1" == workflow.name


def test_one_version_serves_every_speed(file: Path) -> None:
    workflow = wfformat.build(recorded(file, instance(DIAMOND, dict.fromkeys(DIAMOND, 0.02))))

    assert "succeeded" == workflow.run_inline(speed=10.0).state
    assert '{"speed": 2.5}' == workflow.encode(speed=2.5)
    with pytest.raises(ParameterError, match=r"speed.*greater than 0.*got 0"):
        workflow.encode(speed=0.0)


def test_the_critical_path_is_the_slowest_chain(file: Path) -> None:
    recording = recorded(file, instance(DIAMOND, {"first": 1, "left": 5, "right": 2, "last": 1}))

    assert (4, 9.0, 7.0) == (recording.edges, recording.sequential, recording.critical_path)


def test_a_parent_that_is_named_twice_is_one_edge(file: Path) -> None:
    assert 1 == recorded(file, instance({"a": [], "b": ["a", "a"]})).edges


def test_ids_that_are_keys_stay_as_they_are() -> None:
    ids = ["mProject_ID0000001", "NFCORE.SRA:FASTQ-DUMP_1", "x" * 200]

    assert ids == [wfformat.key_of(name) for name in ids]


def test_other_ids_become_keys_that_show_what_they_were() -> None:
    key = wfformat.key_of("merge (all) / ü")

    assert key.startswith("merge__all_____")
    assert wfformat.key_of("merge (all) / ü") == key
    assert wfformat.key_of("merge [all] / ü") != key


@given(st.sets(st.text(max_size=260) | st.sampled_from(["", "speed", "seconds", "a b", "a_b", "x" * 201, "x" * 202])))
def test_different_ids_have_different_keys(ids: set[str]) -> None:
    keys = {wfformat.key_of(name) for name in ids}

    assert len(ids) == len(keys)
    assert all(re.fullmatch(r"[A-Za-z0-9_.:-]{1,200}", key) for key in keys)


def test_a_task_may_be_named_like_the_parameter(file: Path) -> None:
    workflow = wfformat.build(recorded(file, instance({"speed": [], "seconds": ["speed"]}, {"speed": 0, "seconds": 0})))

    assert "succeeded" == workflow.run_inline(speed=1.0).state


def test_a_cycle_is_shown(file: Path) -> None:
    message = refused(file, instance({"a": ["c"], "b": ["a"], "c": ["b"], "d": []}))

    assert message.startswith("workflow.specification.tasks: the tasks wait for each other: ")
    assert {"a", "b", "c"} == set(re.findall(r"\b[abcd]\b(?= ->| ->|:)", message))
    assert message.endswith(": remove one parent")


def test_a_task_that_waits_for_itself_is_a_cycle(file: Path) -> None:
    assert "wait for each other: a -> a: remove one parent" in refused(file, instance({"a": ["a"]}))


def test_an_unknown_parent_is_named_with_the_nearest_task(file: Path) -> None:
    assert (
        "workflow.specification.tasks: task 'b' has the parent 'split_2', which is no task: "
        "correct the parent (did you mean 'split_1'?), or add the task"
    ) == refused(file, instance({"split_1": [], "b": ["split_2"]}))


def test_a_task_without_a_runtime_is_named(file: Path) -> None:
    assert (
        "workflow.execution.tasks: no runtimeInSeconds for task 'b': "
        "give the task's recorded runtime, 0 seconds or more"
    ) == refused(file, instance({"a": [], "b": []}, {"a": 1}))


def test_a_runtime_without_a_task_is_named(file: Path) -> None:
    message = refused(file, instance({"a": []}, {"a": 1, "b": 1}))

    assert "workflow.execution.tasks: 'b' has a runtime, but is not among workflow.specification.tasks: " in message


@pytest.mark.parametrize("value", [-0.5, None, "12", True, float("nan"), float("inf")])
def test_a_runtime_must_be_a_number_of_seconds(file: Path, value: object) -> None:
    message = refused(file, instance({"a": []}, {"a": value}))  # type: ignore[dict-item]

    assert message.startswith("workflow.execution.tasks[0].runtimeInSeconds: Input should be ")
    assert message.endswith(": give the task's recorded runtime, 0 seconds or more")


def test_a_missing_runtime_shows_the_entry(file: Path) -> None:
    content = instance({"a": []})
    del content["workflow"]["execution"]["tasks"][0]["runtimeInSeconds"]

    assert (
        "workflow.execution.tasks[0].runtimeInSeconds: missing (in {'id': 'a'}): "
        "give the task's recorded runtime, 0 seconds or more"
    ) == refused(file, content)


@pytest.mark.parametrize("version", ["1.4", 1.5, None])
def test_another_schema_version_is_refused(file: Path, version: object) -> None:
    message = refused(file, instance({"a": []}) | {"schemaVersion": version})

    assert message.startswith(f"schemaVersion: Input should be '1.5' (in {version!r}): only WfFormat 1.5 is read")


def test_two_tasks_cannot_share_an_id(file: Path) -> None:
    content = instance({"a": []})
    content["workflow"]["specification"]["tasks"] *= 2

    assert "workflow.specification.tasks: two tasks have the id 'a'" in refused(file, content)


def test_a_workflow_without_tasks_is_refused(file: Path) -> None:
    assert refused(file, instance({})).startswith("workflow.specification.tasks: List should have at least 1 item")


@pytest.mark.parametrize("text", ["", "{", "tasks: []", "{'a': 1}", '"\udc80"'])
def test_a_file_that_is_not_json_is_refused(file: Path, text: str) -> None:
    file.write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(wfformat.WfFormatError, match=r"Diamond 1\.json: not JSON \(.+\): give a WfFormat 1\.5 file"):
        wfformat.read(file)


@pytest.mark.parametrize("text", ["[]", "null", "1"])
def test_json_of_another_form_is_refused(file: Path, text: str) -> None:
    assert f"Input should be an object (in {text.replace('null', 'None')}): " in refused(file, text)


def test_a_specification_without_an_execution_is_refused(file: Path) -> None:
    content = instance({"a": []})
    del content["workflow"]["execution"]

    message = refused(file, content)

    assert message.startswith("workflow.execution.tasks: missing (in {")
    assert message.endswith(": give the recorded runtimes: a specification alone cannot be replayed")


def test_a_task_that_does_not_say_its_parents_is_refused(file: Path) -> None:
    content = instance({"a": [], "b": ["a"]})
    del content["workflow"]["specification"]["tasks"][1]["parents"]

    assert "workflow.specification.tasks[1].parents: missing (in {'id': 'b'}): give each " in refused(file, content)


def test_a_file_that_is_not_there_is_refused(file: Path) -> None:
    with pytest.raises(wfformat.WfFormatError, match=r"cannot be read .No such file or directory.: give the path"):
        wfformat.read(file)
