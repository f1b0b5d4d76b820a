"""What every model shares: the schema, the database, and column types that Peewee lacks."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from peewee import SQL, BigIntegerField, CharField, Field, ForeignKeyField, Function, Model, Select, UUIDField

from flowforge.db import proxy


class TimestampField(Field):
    """An instant: `timestamptz`, always with an offset."""

    field_type = "TIMESTAMPTZ"


class IntervalField(Field):
    """A duration: `interval`, as a timedelta."""

    field_type = "INTERVAL"


class UUIDArrayField(Field):
    """A list of UUIDs: `uuid[]`."""

    field_type = "UUID[]"


def clock() -> Any:
    """Return the database's clock, for use in a query: read once, so that an index can be searched by it."""
    return Select(columns=[Function("flowforge.clock", ())])


def clocked(**options: Any) -> TimestampField:
    """Return a field that the database fills from its own clock."""
    return TimestampField(constraints=[SQL("DEFAULT flowforge.clock()")], **options)


def numbered() -> BigIntegerField:
    """Return a field in which the database counts the rows of a table, so that they have an order without a clock."""
    return BigIntegerField(constraints=[SQL("GENERATED ALWAYS AS IDENTITY")])


def reference(to: type[Model], **options: Any) -> ForeignKeyField:
    """Return a foreign key without Peewee's index of its own: schema.sql says which are worth one."""
    return ForeignKeyField(to, index=False, **options)


class Row(Model):
    """A row with a UUID of its own, in FlowForge's schema."""

    id = UUIDField(primary_key=True, default=uuid4)

    class Meta:
        """Bound to the database that `db.connect` opens."""

        database = proxy
        schema = "flowforge"
        legacy_table_names = False


def state_field() -> CharField:
    """Return a state column: text, because a CHECK holds the legal values."""
    return CharField(max_length=20)
