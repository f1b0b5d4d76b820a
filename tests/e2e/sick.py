"""
A module that makes the process sick that imports it, as SICK says; not if the file SICK_ONCE exists already.

A thread is killed when the file SICK_WHEN exists, or at once.

A worker imports it by FLOWFORGE_MODULES; `-m tests.e2e.sick` is a scheduler.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any

import redis

from flowforge import watch
from flowforge.actors.runtime import Runtime
from flowforge.broker import Runway
from flowforge.scheduler.__main__ import main
from flowforge.scheduler.duties import Job
from tests.support import wait_for


def kill(name: str) -> None:
    """End the first thread of that name or class, once it runs, by SystemExit: nothing does so more silently."""

    def there() -> threading.Thread | None:
        running = [one for one in threading.enumerate() if one.is_alive()]
        return next((one for one in running if name in {one.name, type(one).__name__}), None)

    def raise_in(thread: threading.Thread) -> bool:
        if thread.is_alive():  # or another has its number by now
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        return not thread.is_alive()

    wait_for(Path(os.environ.get("SICK_WHEN", "/")).exists)
    ill = wait_for(there)
    wait_for(lambda: raise_in(ill), every=0.1)  # where it is in a finalizer, the first is only reported


def fail(*_: Any, **__: Any) -> Any:
    """Fail as a connection does that is not rebuilt."""
    raise redis.ConnectionError("still the old socket")


def hang(*_: Any, **__: Any) -> Any:
    """Never come back."""
    threading.Event().wait()


def fall_ill(illness: str, name: str) -> None:
    """Kill a thread of that name, let each fetch `fail` or `hang`, the boot fail, a duty or the import hang."""
    watch._EVERY = 0.1
    sys.modules["flowforge.actors.boot"]._LONGEST_FETCH = 2.0 if name == "fetch" else 5.0
    if illness == "kill":
        threading.Thread(target=kill, args=(name,), daemon=True).start()
    elif name == "duty":
        sys.modules["flowforge.scheduler.build"].JOBS = (Job(hang, every=0.1, limit=0.1),)
    elif name == "boot":
        Runtime.start = fail  # type: ignore[method-assign]
    elif name == "import":
        Path(os.environ.get("SICK_HANGS", os.devnull)).touch()
        hang()
    elif illness in {"fail", "hang"}:
        Runway.pop = {"fail": fail, "hang": hang}[illness]  # type: ignore[method-assign]


once = Path(os.environ.get("SICK_ONCE", "/nowhere/sick"))
if not once.exists():
    fall_ill(*os.environ["SICK"].split(" "))
    if "SICK_ONCE" in os.environ:
        once.touch()
if __name__ == "__main__":
    sys.exit(main())
