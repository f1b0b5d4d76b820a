"""The audit log: who decided what, in the transaction of what it tells, so that neither is without the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowforge.models import AuditLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID


def record(
    organization: UUID, principal: str, action: str, subject: tuple[str, str], detail: Mapping[str, Any] | None = None
) -> None:
    """Write, in the open transaction, that `principal` did `action` to a subject: its kind, and its name or id."""
    kind, name = subject
    AuditLog.insert(
        organization=organization,
        principal=principal,
        action=action,
        subject_kind=kind,
        subject=name,
        detail=dict(detail or {}),
    ).execute()


def entries(organization: UUID, *, subject: str | None = None, limit: int = 50) -> list[AuditLog]:
    """Return the latest rows first, of one subject if it is named."""
    query = AuditLog.select().where(AuditLog.organization == organization)
    query = query.where(AuditLog.subject == subject) if subject else query
    return list(query.order_by(AuditLog.created_at.desc()).limit(limit))
