"""The user's modules and the workflows in them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dramatiq

from flowforge.errors import DefinitionError, FlowForgeError, ForeignBroker, SettingsError
from flowforge.workflow import Definition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from flowforge.workflow import Task


class Registry:
    """Workflows by name."""

    def __init__(self, definitions: Iterable[Definition[Any]]) -> None:
        self.workflows: dict[str, Definition[Any]] = {}
        for definition in definitions:
            other = self.workflows.setdefault(definition.name, definition)
            if other is not definition:
                raise DefinitionError(f"two workflows are named {definition.name!r}: rename one of them")

    @property
    def queues(self) -> list[str]:
        """The queues that the workflows' tasks name; the default one where there is no task."""
        tasks = (task for workflow in self.workflows.values() for task in workflow.tasks.values())
        return sorted({task.queue for task in tasks} or {"default"})

    def task(self, workflow: str, key: str) -> Task[..., Any] | None:
        """Return a task of this code, or None."""
        definition = self.workflows.get(workflow)
        return definition.tasks.get(key) if definition else None

    def cannot_run(self, workflow: str, key: str, inputs: Mapping[str, Any] | None) -> str | None:
        """Say why this code cannot run a task with the inputs that are stored for it, or None if it can."""
        if workflow not in self.workflows:
            return f"no workflow {workflow!r} in the worker's FLOWFORGE_MODULES"
        task = self.task(workflow, key)
        if task is None:
            return f"the code's workflow {workflow!r} has no task {key!r}"
        return "its definition cannot be found" if inputs is None else task.cannot_take(inputs)


def load(modules: Iterable[str], broker: dramatiq.Broker | None = None) -> Registry:
    """
    Import the user's modules in order, the working directory included; return the workflows at their top level.

    Raises `ForeignBroker` when one of them replaced `broker` as Dramatiq's, and whatever an import raises.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: dict[int, Definition[Any]] = {}
    for name in modules:
        module = _import(name)
        if broker is not None and dramatiq.get_broker() is not broker:
            raise ForeignBroker(name)
        found |= {id(value): value for value in vars(module).values() if isinstance(value, Definition)}
    return Registry(found.values())


def _import(name: str) -> ModuleType:
    """Import a module; one that calls `sys.exit` must not end the process as if all were well."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise SettingsError("FLOWFORGE_MODULES", name, f"there is no module {error.name!r} here") from None
        raise
    except SystemExit as error:
        raise FlowForgeError(f"module {name!r} called sys.exit({error.code!r}) while it was imported") from error
