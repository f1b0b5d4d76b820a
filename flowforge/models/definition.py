"""Definitions: a workflow's versions, its tasks and edges, and which version was deployed when. Never updated."""

from __future__ import annotations

from typing import Any

from peewee import SQL, BooleanField, CharField, CompositeKey, DoubleField, IntegerField, JSONField, TextField

from flowforge.models.base import IntervalField, Row, clocked, numbered, reference
from flowforge.models.tenancy import Organization


class Workflow(Row):
    """One version of a workflow's structure."""

    organization = reference(Organization, on_delete="RESTRICT")
    name = CharField(max_length=63)
    version = IntegerField()
    digest = CharField(max_length=64)
    description = TextField(default="")
    deadline = IntervalField(null=True)
    created_at = clocked()

    class Meta:
        """A version has one structure, and a structure one version."""

        indexes = ((("organization", "name", "version"), True), (("organization", "name", "digest"), True))


class Task(Row):
    """One task of a version."""

    workflow = reference(Workflow, backref="tasks", on_delete="CASCADE")
    key = CharField(max_length=200)
    position = IntegerField()
    queue = CharField(max_length=63, default="default")
    when = CharField(max_length=20, default="all_succeeded")
    required = BooleanField(default=True)
    inputs = JSONField(default=dict)
    attempts = IntegerField(default=1)
    lost = IntegerField(default=2)
    retry_delay = IntervalField()
    retry_factor = DoubleField(default=2.0)
    retry_max_delay = IntervalField()
    timeout = IntervalField()
    start_by = IntervalField(null=True)
    lease = IntervalField(null=True)
    created_at = clocked()

    class Meta:
        """Keys and positions are unique in a version."""

        indexes = ((("workflow", "key"), True), (("workflow", "position"), True))


class TaskDependency(Row):
    """An edge: the downstream task waits for the upstream one."""

    id: Any = None
    upstream = reference(Task, on_delete="CASCADE")
    downstream = reference(Task, on_delete="CASCADE")

    class Meta:
        """Read downstream by the primary key, upstream by its index."""

        primary_key = CompositeKey("upstream", "downstream")
        indexes = ((("downstream",), False),)


class Deployment(Row):
    """A record that a version was deployed; the last one for a name is current."""

    organization = reference(Organization, on_delete="RESTRICT")
    workflow = reference(Workflow, backref="deployments", on_delete="RESTRICT")
    repository = CharField(max_length=140, null=True)
    ref = CharField(max_length=255, null=True)
    commit = CharField(max_length=64, null=True)
    deployed_by = CharField(max_length=200)
    number = numbered()
    created_at = clocked()


Deployment.add_index(Deployment.index(Deployment.workflow, SQL("number DESC"), name="idx_deployment_workflow"))
