"""
The worker process: boot, the one actor, consumer, committer, lease keeper.

`python -m flowforge.actors` is one worker process, and so is `dramatiq -p 1 flowforge.actors`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flowforge.actors.boot import boot
from flowforge.settings import Settings

__all__ = ["boot"]

# Dramatiq's command line takes whatever broker is set once this import is done, so that it must boot here.
if Path(sys.argv[0]).parent.name == "dramatiq" or Path(sys.argv[0]).name == "dramatiq":
    boot(Settings.from_env())[1].watched_by_thread = True
