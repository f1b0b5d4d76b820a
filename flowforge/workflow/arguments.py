"""The arguments of one attempt, from stored inputs, the run's parameters and the results of upstream tasks."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pydantic import PydanticUserError, ValidationError

from flowforge.errors import UnreadableValue
from flowforge.workflow import values
from flowforge.workflow.task import upstream_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.workflow.context import Context
    from flowforge.workflow.task import Task


def data_upstream(inputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the keys of the tasks whose results the inputs need."""
    return sorted({key for source in inputs.values() for key in upstream_keys(source)})


def arguments(
    task: Task[..., Any],
    inputs: Mapping[str, Mapping[str, Any]],
    parameters: Mapping[str, Any],
    results: Mapping[str, Any],
    context: Context,
) -> dict[str, Any]:
    """
    Return the keyword arguments for the task's function.

    `results` holds the parsed JSON of each upstream that succeeded; an argument that needs another is left to its
    default. Raises `UnreadableValue` that names the argument when a value does not fit its annotation.
    """
    given = {}
    for name, source in inputs.items():
        if "context" in source:
            given[name] = context
        elif "parameter" in source and source["parameter"] not in parameters:
            continue
        elif all(key in results for key in upstream_keys(source)):
            given[name] = _read(task, name, _value(source, parameters, results))
    return given


def _read(task: Task[..., Any], name: str, value: Any) -> Any:
    try:
        return values.decode(value, task.annotations[name])
    except (ValidationError, PydanticUserError) as error:
        raise UnreadableValue(f"argument {name!r} of task {task.key!r} does not fit its annotation: {error}") from error


def _value(source: Mapping[str, Any], parameters: Mapping[str, Any], results: Mapping[str, Any]) -> Any:
    if "parameter" in source:
        return parameters[source["parameter"]]
    if "value" in source:
        return copy.deepcopy(source["value"])  # the next attempt gets it too
    if "task" in source:
        return results[source["task"]]
    tasks = source["tasks"]
    if isinstance(tasks, dict):
        return {name: results[key] for name, key in tasks.items()}
    return [results[key] for key in tasks]
