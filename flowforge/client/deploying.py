"""Storing definitions, which never change, and recording which version was deployed when."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from peewee import chunked, fn

from flowforge import insights
from flowforge.client.engine import engine, migrated
from flowforge.client.principal import principal
from flowforge.errors import OptionError
from flowforge.models import DEFAULT_ORGANIZATION, Deployment, Organization, Task, TaskDependency, Workflow
from flowforge.tenancy import audit

if TYPE_CHECKING:
    from uuid import UUID

    from flowforge.workflow import Definition, StoredTask

_ROWS_AT_ONCE = 500


def deploy(
    definition: Definition[Any],
    *,
    repository: str | None = None,
    ref: str | None = None,
    commit: str | None = None,
    by: str | None = None,
    organization: UUID = DEFAULT_ORGANIZATION,
) -> Workflow:
    """
    Store the definition if it is new, and make its version the one that starts by name use.

    Return the version's row. Deploying an older structure again makes that version current again. `by` says who does
    it, for the audit log, where that is not this process's account.
    """
    if repository is None and (ref or commit):
        raise OptionError("repository", repository, "name it, because a ref and a commit are of a repository")
    version, who = ensure_stored(definition, organization), by or principal()
    told = {"repository": repository, "ref": ref, "commit": commit}
    with engine().database.atomic():
        Deployment.create(organization=organization, workflow=version, deployed_by=who, **told)
        row: Workflow = Workflow.get_by_id(version)
        detail = {name: value for name, value in told.items() if value is not None} | {"version": row.version}
        audit.record(organization, who, "workflow.deploy", ("workflow", definition.name), detail)
    return row


def ensure_stored(definition: Definition[Any], organization: UUID) -> UUID:
    """Return the id of the version that has this structure; a new one is stored in a transaction of its own."""
    known, key = engine().versions, (organization, definition.name, definition.digest)
    with migrated():
        version = known.get(key) or insights.version_of(*key) or _store(definition, organization)
    if not engine().database.in_transaction():  # what is not committed is not to be remembered
        known[key] = version
    return version


def _store(definition: Definition[Any], organization: UUID) -> UUID:
    """Insert the next version, if nobody has meanwhile: an organization's definitions are stored one by one."""
    with engine().database.atomic():
        owner: Any = Organization.select().where(Organization.id == organization)
        if owner.for_update("FOR NO KEY UPDATE").first() is None:
            raise OptionError("organization", organization, "there is no such tenant: give the id of one that there is")
        known = insights.version_of(organization, definition.name, definition.digest)
        return known or _insert(definition, organization)


def _insert(definition: Definition[Any], organization: UUID) -> UUID:
    same_name = (Workflow.organization == organization) & (Workflow.name == definition.name)
    latest = Workflow.select(fn.max(Workflow.version)).where(same_name).scalar() or 0
    row = Workflow.create(
        organization=organization,
        name=definition.name,
        version=latest + 1,
        digest=definition.digest,
        description=definition.description,
        deadline=_interval(definition.deadline),
    )
    structure = definition.structure()
    ids = {task.key: uuid4() for task in structure}
    tasks = [
        {"id": ids[task.key], "workflow": row, "position": position, **_columns(task)}
        for position, task in enumerate(structure, 1)
    ]
    edges = [{"upstream": ids[key], "downstream": ids[task.key]} for task in structure for key in task.upstream]
    for model, rows in ((Task, tasks), (TaskDependency, edges)):
        for batch in chunked(rows, _ROWS_AT_ONCE):
            model.insert_many(batch).execute()
    return row.id


def _columns(task: StoredTask) -> dict[str, Any]:
    durations = ("retry_delay", "retry_max_delay", "timeout", "start_by", "lease")
    columns = {name: value for name, value in vars(task).items() if name != "upstream"}
    return columns | {name: _interval(columns[name]) for name in durations}


def _interval(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
