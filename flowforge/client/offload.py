"""Blocking calls of the client, made for asynchronous code: in few threads, so that few connections are open."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 4


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="flowforge-client")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads


async def offload(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in one of the client's threads; return what it returns."""
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads(), call)
