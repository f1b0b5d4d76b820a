"""Who owns the rows, and which requests were answered before."""

from __future__ import annotations

from uuid import UUID

from peewee import CharField, UUIDField

from flowforge.models.base import Row, TimestampField, clocked, reference

#: The organization that exists from the start.
DEFAULT_ORGANIZATION = UUID("00000000-0000-4000-8000-000000000000")


class Organization(Row):
    """A tenant."""

    slug = CharField(max_length=63, unique=True)
    name = CharField(max_length=200)
    created_at = clocked()


class IdempotencyKey(Row):
    """A request's key and the run that it stands for."""

    organization = reference(Organization, on_delete="CASCADE")
    user_id = CharField(max_length=200, null=True)
    key = CharField(max_length=255)
    fingerprint = CharField(max_length=64)
    workflow_run_id = UUIDField()
    expires_at = TimestampField()
    created_at = clocked()

    class Meta:
        """One answer for each organization, user and key."""

        indexes = ((("organization", "user_id", "key"), True), (("expires_at",), False))
