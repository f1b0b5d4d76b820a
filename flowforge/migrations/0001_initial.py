"""The first schema: tables, constraints, indexes, functions and guards, from 0001_initial.sql."""

from pathlib import Path


def up(migrator, db):  # noqa: ARG001
    """Create everything: through the driver's own cursor, because Peewee's would read `%` as a placeholder."""
    with db.connection().cursor() as cursor:
        cursor.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
