"""Workflow runs and their history."""

from __future__ import annotations

from peewee import SQL, CharField, DeferredForeignKey, IntegerField, JSONField, SmallIntegerField, UUIDField

from flowforge.models.base import IntervalField, Row, TimestampField, clocked, numbered, reference, state_field
from flowforge.models.definition import Workflow
from flowforge.models.tenancy import Organization


class WorkflowRun(Row):
    """One execution of a workflow's version."""

    organization = reference(Organization, on_delete="RESTRICT")
    workflow = reference(Workflow, backref="runs", on_delete="RESTRICT")
    parent_task_run = DeferredForeignKey("TaskRun", null=True, index=False, on_delete="SET NULL")
    state = state_field()
    parameters = JSONField(default=dict)
    priority = SmallIntegerField(default=0)
    tasks_remaining = IntegerField()
    tasks_failed = IntegerField(default=0)
    tasks_cancelled = IntegerField(default=0)
    cancel_requested_at = TimestampField(null=True)
    allowed = IntervalField(null=True)
    deadline = TimestampField(null=True)
    created_at = clocked()
    started_at = TimestampField(null=True)
    finished_at = TimestampField(null=True)

    class Meta:
        """Swept by state and age."""

        indexes = ((("state", "created_at"), False),)


class WorkflowRunEvent(Row):
    """One change of a workflow run."""

    organization_id = UUIDField()
    workflow_run = reference(WorkflowRun, backref="events", on_delete="CASCADE")
    kind = CharField(max_length=30)
    from_state = CharField(max_length=20, null=True)
    to_state = CharField(max_length=20, null=True)
    detail = JSONField(null=True)
    number = numbered()
    created_at = clocked()

    class Meta:
        """Read by run, in order."""

        indexes = ((("workflow_run", "created_at"), False),)


for _columns, _name in (
    ((WorkflowRun.workflow, SQL("created_at DESC")), "idx_wfrun_wf_recent"),
    ((WorkflowRun.organization, SQL("created_at DESC")), "idx_wfrun_org_recent"),
):
    WorkflowRun.add_index(WorkflowRun.index(*_columns, name=_name))
WorkflowRun.add_index(
    WorkflowRun.index(SQL("parent_task_run_id"), where=SQL("parent_task_run_id IS NOT NULL"), name="idx_wfrun_parent")
)
WorkflowRun.add_index(
    WorkflowRun.index(
        WorkflowRun.deadline, where=SQL("deadline IS NOT NULL AND finished_at IS NULL"), name="idx_wfrun_deadline"
    )
)
