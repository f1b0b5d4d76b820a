"""Where each argument of a task comes from: decided, and checked, at the line that defines the task."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import BaseModel

from flowforge.errors import DefinitionError, did_you_mean
from flowforge.states import When
from flowforge.workflow import values
from flowforge.workflow.context import Context
from flowforge.workflow.task import Task, upstream_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Source = dict[str, Any]

_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a new task can refer to: the tasks above it and the fields of the parameters class."""

    workflow: str
    tasks: Mapping[str, Task[..., Any]]
    fields: Mapping[str, Any]


def annotations_of(function: Callable[..., Any], what: str) -> dict[str, Any]:
    """Return the resolved annotations of a function or class. Raises `DefinitionError` that names the cure."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DefinitionError(
            f"{what}: annotation {error.name!r} is not there at run time: import it outside `if TYPE_CHECKING:`, "
            "or define it at the top level of its module"
        ) from None


def fields_of(parameters: type[Any] | None, workflow: str) -> dict[str, Any]:
    """Return the fields of a parameters class (dataclass or pydantic model) with their types."""
    if parameters is None:
        return {}
    if isinstance(parameters, type) and issubclass(parameters, BaseModel):
        return {name: field.annotation for name, field in parameters.model_fields.items()}
    if isinstance(parameters, type) and dataclasses.is_dataclass(parameters):
        hints = annotations_of(parameters, f"workflow {workflow!r}")
        return {field.name: hints[field.name] for field in dataclasses.fields(parameters)}
    raise DefinitionError(
        f"workflow {workflow!r}: parameters must be a dataclass or pydantic model, not {parameters!r}"
    )


def bind(
    function: Callable[..., Any], key: str, given: Mapping[str, Any], when: When, scope: Scope
) -> tuple[dict[str, Source], dict[str, Any]]:
    """
    Decide the source of each argument; return them with the function's resolved annotations.

    Raises `DefinitionError` that names task, argument and remedy.
    """
    what = f"task {key!r} of workflow {scope.workflow!r}"
    parameters = inspect.signature(function).parameters
    annotations = annotations_of(function, what)
    if unknown := [name for name in given if name not in parameters]:
        raise DefinitionError(
            f"{what}: inputs name {unknown[0]!r}, not an argument{did_you_mean(unknown[0], parameters)}"
        )
    sources = {}
    for parameter in parameters.values():
        _check_form(parameter, annotations, what)
        source = _source(parameter, annotations[parameter.name], given, scope, what)
        if source is not None:
            _check_default(parameter, source, when, what)
            sources[parameter.name] = source
    return sources, annotations


def _check_form(parameter: inspect.Parameter, annotations: Mapping[str, Any], what: str) -> None:
    if parameter.kind not in _BY_KEYWORD:
        raise DefinitionError(f"{what}: {parameter} cannot be given by keyword: name each argument")
    if parameter.name not in annotations:
        raise DefinitionError(f"{what}: argument {parameter.name!r} has no annotation: say its type")


def _source(
    parameter: inspect.Parameter, annotation: Any, given: Mapping[str, Any], scope: Scope, what: str
) -> Source | None:
    name = parameter.name
    if name in given:
        return _given(given[name], scope, f"{what}: inputs[{name!r}]")
    if name in scope.tasks and name in scope.fields:
        raise DefinitionError(f"{what}: {name!r} is both a task and a parameter: give the task another key=")
    if name in scope.tasks:
        return {"task": name}
    if name in scope.fields:
        return _field(name, annotation, scope, what)
    if annotation is Context:
        return {"context": True}
    if parameter.default is parameter.empty:
        near = did_you_mean(name, [*scope.tasks, *scope.fields])
        raise DefinitionError(f"{what}: argument {name!r} is no task above, no parameter, and has no default{near}")
    return None


def _field(name: str, annotation: Any, scope: Scope, what: str) -> Source:
    if annotation != scope.fields[name]:
        raise DefinitionError(
            f"{what}: argument {name!r} is {_name(annotation)}, but the parameter is {_name(scope.fields[name])}"
        )
    return {"parameter": name}


def _given(value: Any, scope: Scope, what: str) -> Source:
    if isinstance(value, Task):
        return {"task": key_of(value, scope, what)}
    if isinstance(value, list | tuple) and any(isinstance(item, Task) for item in value):
        return {"tasks": [key_of(item, scope, what) for item in value]}
    if isinstance(value, dict) and any(isinstance(item, Task) for item in value.values()):
        return {"tasks": {str(name): key_of(item, scope, what) for name, item in value.items()}}
    return {"value": values.as_json(value, what)}


def key_of(task: Any, scope: Scope, what: str) -> str:
    """Return the key of a task of this workflow. Raises `DefinitionError` for anything else."""
    if isinstance(task, Task) and scope.tasks.get(task.key) is task:
        return task.key
    raise DefinitionError(f"{what}: {task!r} is not a task of workflow {scope.workflow!r}")


def _check_default(parameter: inspect.Parameter, source: Source, when: When, what: str) -> None:
    if when is not When.ALL_SUCCEEDED and upstream_keys(source) and parameter.default is parameter.empty:
        raise DefinitionError(
            f"{what}: with when={when.value!r} argument {parameter.name!r} needs a default, "
            "for an upstream without result"
        )


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
