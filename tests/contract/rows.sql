-- Many rows, set-based: what a database holds after a year, for the tests of indexes and plans.


-- name: workflows
-- Versions of workflows, each of some tasks in a chain.
with workflow as (
    insert into flowforge.workflow (organization_id, name, version, digest)
    select '00000000-0000-4000-8000-000000000000', %(name)s || n, version, repeat(md5(version::text), 2)
      from generate_series(1, %(workflows)s) n
     cross join generate_series(1, %(versions)s) version
    returning id
), task as (
    insert into flowforge.task (workflow_id, key, position)
    select workflow.id, 'task-' || n, n
      from workflow
     cross join generate_series(1, %(tasks)s) n
    returning id, workflow_id, position
)
insert into flowforge.task_dependency (upstream_id, downstream_id)
select upstream.id, downstream.id
  from task upstream
  join task downstream on downstream.workflow_id = upstream.workflow_id and downstream.position = upstream.position + 1;


-- name: runs
-- Runs of the workflows that are called %(name)s…, in turn; all succeeded, or all with their task runs ready and owed.
with workflow as materialized (
    select w.id, w.organization_id, row_number() over () - 1 as turn,
           (select count(*) from flowforge.task t where t.workflow_id = w.id) as tasks
      from flowforge.workflow w
     where starts_with(w.name, %(name)s)
), run as (
    insert into flowforge.workflow_run (organization_id, workflow_id, state, tasks_remaining, created_at, started_at,
                                        finished_at)
    select w.organization_id, w.id, case when %(finished)s then 'succeeded' else 'running' end,
           case when %(finished)s then 0 else w.tasks end, at, at, case when %(finished)s then at end
      from generate_series(1, %(runs)s) n
      join workflow w on w.turn = n %% (select count(*) from workflow)
     cross join lateral (select flowforge.clock() - n * interval '1 minute') as moment (at)
    returning id, organization_id, workflow_id, created_at, started_at, finished_at
), task_run as (
    insert into flowforge.task_run (organization_id, workflow_run_id, task_id, state, fencing_token, failures_left,
                                    losses_left, created_at, started_at, finished_at)
    select r.organization_id, r.id, t.id, case when %(finished)s then 'succeeded' else 'ready' end, 0, 0, 2,
           r.created_at, r.started_at, r.finished_at
      from run r
      join flowforge.task t on t.workflow_id = r.workflow_id
    returning id, organization_id, workflow_run_id, task_id, state, created_at
), owed as (
    insert into flowforge.outbox_message (organization_id, task_run_id, workflow_run_id, routing_key, payload,
                                          fencing_token_snapshot, attempt_snapshot, available_at)
    select organization_id, id, workflow_run_id, 'backlog',
           jsonb_build_object('workflow', 'crowd', 'key', 'task', 'task', task_id), 0, 1, created_at
      from task_run
     where state = 'ready'
), run_told as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, created_at)
    select organization_id, id, 'created', created_at
      from run
)
insert into flowforge.task_run_event (organization_id, task_run_id, kind, attempt, fencing_token, created_at)
select r.organization_id, r.id, 'created', 1, 0, r.created_at
  from task_run r
  join flowforge.task t on t.id = r.task_id
 where t.position = 1;


-- name: finish_everything
-- What is ready succeeds, and nothing is owed any more.
with done as (
    delete from flowforge.outbox_message
), ended as (
    update flowforge.task_run
       set state = 'succeeded', finished_at = started_at
     where state = 'ready'
)
update flowforge.workflow_run
   set state = 'succeeded', tasks_remaining = 0, finished_at = started_at
 where state = 'running';


-- name: records
-- As many of everything else.
with organization as (
    insert into flowforge.organization (slug, name)
    select 'org-' || n, 'Organization'
      from generate_series(1, %(rows)s) n
), deployment as (
    insert into flowforge.deployment (organization_id, workflow_id, deployed_by, created_at)
    select w.organization_id, w.id, 'me', flowforge.clock() - w.row * interval '1 minute'
      from (select *, row_number() over () as row from flowforge.workflow) w
), published as (
    insert into flowforge.outbox_message (organization_id, task_run_id, workflow_run_id, routing_key, payload,
                                          fencing_token_snapshot, attempt_snapshot, published_at)
    select organization_id, id, workflow_run_id, 'backlog', '{}', 1, 1, flowforge.clock()
      from flowforge.task_run
), parent as (
    update flowforge.workflow_run child
       set parent_task_run_id = t.id
      from (select * from flowforge.task_run limit 1000) t
     where t.workflow_run_id = child.id
)
insert into flowforge.idempotency_key (organization_id, key, fingerprint, workflow_run_id, expires_at)
select organization_id, id::text, repeat(md5(id::text), 2), id, flowforge.clock() + row_number() over () * interval '1 s'
  from flowforge.workflow_run;


-- name: decisions
-- As many pauses, of runs that are nowhere, and entries of the log.
with paused as (
    insert into flowforge.pause (organization_id, kind, subject, paused_by)
    select '00000000-0000-4000-8000-000000000000', 'run', gen_random_uuid(), 'me'
      from generate_series(1, %(rows)s)
)
insert into flowforge.audit_log (organization_id, principal, action, subject_kind, subject, created_at)
select '00000000-0000-4000-8000-000000000000', 'me', 'run.pause', 'run', gen_random_uuid(),
       flowforge.clock() - n * interval '1 minute'
  from generate_series(1, %(rows)s) n;


-- name: forget_statistics
delete from pg_statistic;
update pg_class set relpages = 0, reltuples = -1 where relnamespace = 'flowforge'::regnamespace;
