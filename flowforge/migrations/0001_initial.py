"""The first schema: tables, constraints, indexes, functions and guards."""

from flowforge.migrations.steps import run_sql

OLDEST_RELEASE = "0.1.0"


def up(migrator, db):  # noqa: ARG001
    """Create everything."""
    run_sql(db, __file__)
