"""Who does something, until there are users: the account and the machine that the process runs under."""

from __future__ import annotations

import getpass
import os
import socket


def principal() -> str:
    """Return `cli:user@host`; the user by number where it has no name, as in many containers."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"cli:{user}@{socket.gethostname()}"[:200]
