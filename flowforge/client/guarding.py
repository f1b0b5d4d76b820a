"""The guard of a task run, on whatever connection the user's own work is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowforge import transitions
from flowforge.client import callers
from flowforge.errors import LeaseLost, OptionError

if TYPE_CHECKING:
    from uuid import UUID


def guard(connection: Any, task_run_id: UUID, token: int) -> None:
    """
    Lock a task run in the connection's open transaction if it is still owned at this token.

    Raises `LeaseLost` where it is not, and `OptionError` where the connection is in no transaction.
    """
    ((owned, transaction),) = callers.fetch(connection, transitions.GUARD, {"id": task_run_id, "token": token})
    ((here,),) = callers.fetch(connection, transitions.STILL_HERE, {"transaction": transaction})
    _require(connection, task_run_id, token, owned=owned, here=here)


async def guard_async(connection: Any, task_run_id: UUID, token: int) -> None:
    """Lock a task run like `guard`, on an asynchronous connection."""
    asked = {"id": task_run_id, "token": token}
    ((owned, transaction),) = await callers.fetch_async(connection, transitions.GUARD, asked)
    ((here,),) = await callers.fetch_async(connection, transitions.STILL_HERE, {"transaction": transaction})
    _require(connection, task_run_id, token, owned=owned, here=here)


def _require(connection: Any, task_run_id: UUID, token: int, *, owned: bool, here: bool) -> None:
    if not here:
        raise OptionError("connection", connection, "it is in autocommit: begin a transaction, guard, write, commit")
    if not owned:
        raise LeaseLost(task_run_id, token)
