"""init: what a project begins with. The texts stand in `starter/`; all of them are written, or none."""

from __future__ import annotations

import importlib.util
import keyword
import os
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from flowforge.errors import FlowForgeError

#: The next three commands, and what is to be said of each.
NEXT = {
    "set -a; . ./.env; set +a": "take over the settings",
    "flowforge dev": "run the Procfile on PostgreSQL and Valkey of its own; Ctrl-C ends everything",
    "flowforge start greeting name=World --wait": "in another terminal, with the two URLs set that it prints",
}


def init(
    directory: Annotated[Path, typer.Argument(help="The project; made if it is not there.")] = Path(),
    module: Annotated[str, typer.Option(help="Name of the workflow module.")] = "workflows",
) -> None:
    """Write a first workflow, a Procfile, .env.example and .env; overwrite nothing."""
    _require_name(module)
    directory = directory.resolve()
    _require_new(directory, module)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory, _texts(module))
    except OSError as error:
        raise FlowForgeError(f"nothing was written: {error.filename or directory}: {error.strerror}") from None
    typer.echo(f"wrote {', '.join(_files(module))} in {directory}\n\nNext, there:")
    for command, note in NEXT.items():
        typer.echo(f"  {command:<{max(map(len, NEXT))}}  # {note}")


def _files(module: str) -> dict[str, str]:
    """Return the name in `starter/` of each file to write."""
    return {f"{module}.py": "workflows.py", "Procfile": "Procfile", ".env.example": "env.example", ".env": "env"}


def _texts(module: str) -> dict[str, str]:
    starter = resources.files("flowforge.cli") / "starter"
    texts = {file: Template((starter / name).read_text(encoding="utf-8")) for file, name in _files(module).items()}
    return {file: text.substitute(module=module) for file, text in texts.items()}


def _require_name(module: str) -> None:
    """Refuse what cannot be imported by this name."""
    if not module.isidentifier() or keyword.iskeyword(module):
        raise typer.BadParameter(
            f"{module!r} is no name for a module: write one like my_workflows", param_hint="--module"
        )


def _require_new(directory: Path, module: str) -> None:
    """Refuse to overwrite, and a module that another would hide or that would hide another."""
    for file in (*_files(module), f"{module}/__init__.py"):
        if os.path.lexists(directory / file):
            raise FlowForgeError(f"{directory / file} exists: nothing was written; move it, or name another directory")
    if module in sys.modules or ((spec := importlib.util.find_spec(module)) and spec.origin):
        raise typer.BadParameter(
            f"{module!r} is the name of another module: write one like my_{module}", param_hint="--module"
        )


def _write(directory: Path, texts: Mapping[str, str]) -> None:
    """Write new files; where one cannot be written, or has come into being meanwhile, take the others back."""
    written: list[Path] = []
    try:
        for name, text in texts.items():
            with (directory / name).open("x", encoding="utf-8", newline="\n") as file:
                written.append(directory / name)
                file.write(text)
    except OSError:
        for path in written:
            path.unlink()
        raise
