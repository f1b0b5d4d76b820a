"""What people decide: pauses in force, and the record of who did what."""

from __future__ import annotations

from peewee import SQL, CharField, JSONField, TextField

from flowforge.models.base import Row, clocked, reference
from flowforge.models.tenancy import Organization


class Pause(Row):
    """Nothing of a run, a workflow or a queue is dispatched while this stands."""

    organization = reference(Organization, on_delete="CASCADE")
    kind = CharField(max_length=20)
    subject = CharField(max_length=200)
    reason = TextField(default="")
    paused_by = CharField(max_length=200)
    created_at = clocked()

    class Meta:
        """A subject is paused once."""

        indexes = ((("organization", "kind", "subject"), True),)


class AuditLog(Row):
    """One thing that somebody did. Rows are neither changed nor deleted."""

    organization = reference(Organization, on_delete="RESTRICT")
    principal = CharField(max_length=200)
    action = CharField(max_length=60)
    subject_kind = CharField(max_length=30)
    subject = CharField(max_length=200)
    detail = JSONField(default=dict)
    created_at = clocked()


AuditLog.add_index(AuditLog.index(AuditLog.organization, SQL("created_at DESC"), name="idx_audit_log_org_recent"))
AuditLog.add_index(
    AuditLog.index(AuditLog.organization, AuditLog.subject, SQL("created_at DESC"), name="idx_audit_log_subject")
)
