"""The consent of a database's owner: a row of its audit log that is not an hour old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge import insights
from flowforge.errors import FlowForgeError
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.tenancy import audit

if TYPE_CHECKING:
    from flowforge.db import Database

ACTION = "chaos.allow"
_GOOD_FOR = 3600.0  # seconds


def allow(database: Database, principal: str) -> None:
    """Let `flowforge chaos` run on this database for an hour."""
    with database.atomic():
        audit.record(DEFAULT_ORGANIZATION, principal, ACTION, ("database", database.raw().info.dbname))


def require_consent(database: Database) -> None:
    """Raise FlowForgeError unless the database holds a consent that is not an hour old, by the database's clock."""
    age = insights.age_of_last(database.raw(), ACTION)
    if age is None or age > _GOOD_FOR:
        said = "holds no consent" if age is None else f"holds a consent that is {age / 60:.0f} minutes old"
        raise FlowForgeError(
            f"database {database.raw().info.dbname!r} {said}: `flowforge doctor --allow-chaos` gives one for an hour"
        )
