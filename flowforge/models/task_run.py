"""Task runs, their history, and the dispatches owed for them."""

from __future__ import annotations

from peewee import (
    SQL,
    BigIntegerField,
    BooleanField,
    CharField,
    IntegerField,
    JSONField,
    SmallIntegerField,
    TextField,
    UUIDField,
)

from flowforge.models.base import Row, TimestampField, UUIDArrayField, clocked, numbered, reference, state_field
from flowforge.models.definition import Task
from flowforge.models.run import WorkflowRun


class TaskRun(Row):
    """One execution of a task in a workflow run; retries reuse the row."""

    organization_id = UUIDField()
    workflow_run = reference(WorkflowRun, backref="task_runs", on_delete="CASCADE")
    task = reference(Task, backref="runs", on_delete="RESTRICT")
    state = state_field()
    attempt = IntegerField(default=1)
    fencing_token = BigIntegerField(default=0)
    lease_owner = CharField(max_length=200, null=True)
    lease_expires_at = TimestampField(null=True)
    failures_left = IntegerField()
    losses_left = IntegerField()
    upstream_remaining = IntegerField(default=0)
    upstream_failed = IntegerField(default=0)
    upstream_unsucceeded = IntegerField(default=0)
    when = CharField(max_length=20, default="all_succeeded")
    required = BooleanField(default=True)
    dependents = UUIDArrayField(default=list)
    result = JSONField(null=True)
    error = JSONField(null=True)
    deferred_because = TextField(null=True)
    cancel_requested_at = TimestampField(null=True)
    created_at = clocked()
    started_at = TimestampField(null=True)
    finished_at = TimestampField(null=True)

    class Meta:
        """One row for each task of a run."""

        indexes = (
            (("workflow_run", "task"), True),
            (("state", "created_at"), False),
            (("workflow_run", "state"), False),
            (("task",), False),
        )


class TaskRunEvent(Row):
    """One change of a task run, or one attempt at a change that was refused."""

    organization_id = UUIDField()
    task_run = reference(TaskRun, backref="events", on_delete="CASCADE")
    kind = CharField(max_length=30)
    from_state = CharField(max_length=20, null=True)
    to_state = CharField(max_length=20, null=True)
    attempt = IntegerField()
    fencing_token = BigIntegerField()
    detail = JSONField(null=True)
    number = numbered()
    created_at = clocked()

    class Meta:
        """Read by task run, in order."""

        indexes = ((("task_run", "created_at"), False),)


class OutboxMessage(Row):
    """One dispatch owed; gone once it was claimed."""

    organization_id = UUIDField()
    task_run = reference(TaskRun, on_delete="CASCADE")
    workflow_run = reference(WorkflowRun, on_delete="CASCADE")
    exchange = CharField(max_length=63, default="flowforge")
    routing_key = CharField(max_length=63)
    priority = SmallIntegerField(default=0)
    payload = JSONField()
    fencing_token_snapshot = BigIntegerField()
    attempt_snapshot = IntegerField()
    available_at = clocked()
    held = BooleanField(default=False)
    start_by = TimestampField(null=True)
    published_at = TimestampField(null=True)
    created_at = clocked()

    class Meta:
        """One dispatch for each change of hands."""

        indexes = ((("task_run", "fencing_token_snapshot"), True), (("workflow_run",), False))


TaskRun.add_index(
    TaskRun.index(
        TaskRun.cancel_requested_at,
        where=SQL("state = 'running' AND cancel_requested_at IS NOT NULL"),
        name="idx_taskrun_cancel_requested",
    )
)
TaskRun.add_index(
    TaskRun.index(TaskRun.lease_expires_at, where=SQL("state = 'running'"), name="idx_taskrun_lease_expiry")
)
OutboxMessage.add_index(
    OutboxMessage.index(
        OutboxMessage.routing_key,
        OutboxMessage.priority,
        OutboxMessage.available_at,
        where=SQL("published_at IS NULL AND NOT held"),
        name="idx_outbox_pending",
    )
)
OutboxMessage.add_index(
    OutboxMessage.index(OutboxMessage.published_at, where=SQL("published_at IS NOT NULL"), name="idx_outbox_published")
)
for _column, _where, _name in (
    (OutboxMessage.created_at, "held", "idx_outbox_held"),
    (OutboxMessage.start_by, "start_by IS NOT NULL", "idx_outbox_start_by"),
):
    OutboxMessage.add_index(OutboxMessage.index(_column, where=SQL(_where), name=_name))
