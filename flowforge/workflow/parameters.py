"""A run's parameters: checked against the parameters class, and written as JSON."""

from __future__ import annotations

import inspect
import reprlib
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from flowforge.errors import ParameterError, did_you_mean
from flowforge.workflow import values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def encode(
    workflow: str, parameters: Any, fields: Iterable[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """
    Check arguments against a parameters class, None for no parameters; return them as JSON text.

    Raises `ParameterError` that names the field, the value and the remedy.
    """
    if parameters is None:
        return _encode_nothing(workflow, args, kwargs)
    signature = inspect.signature(parameters)
    if unknown := [name for name in kwargs if name not in signature.parameters]:
        near = did_you_mean(unknown[0], signature.parameters)
        raise ParameterError(f"workflow {workflow!r} has no parameter {unknown[0]!r}{near}")
    try:
        checked = values.decode(signature.bind(*args, **kwargs).arguments, parameters)
    except TypeError as error:
        raise ParameterError(f"workflow {workflow!r}: {error}") from None
    except ValidationError as error:
        raise ParameterError(f"workflow {workflow!r}: {_first(error)}") from None
    return values.encode({name: getattr(checked, name) for name in fields}, f"parameters of workflow {workflow!r}")


def _encode_nothing(workflow: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    if args or kwargs:
        raise ParameterError(f"workflow {workflow!r} takes no parameters: give it a parameters class")
    return "{}"


def _first(error: ValidationError) -> str:
    """Say the first problem: where, what, and the value that was given."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    return f"parameter {field!r}: {problem['msg']} (got {reprlib.repr(problem['input'])})"
