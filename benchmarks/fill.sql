-- A past for a database: %(runs)s runs of one task, all succeeded, with their events. Then fresh statistics.
with new as materialized (
    select gen_random_uuid() as run, gen_random_uuid() as task_run, w.id as workflow, w.organization_id, t.id as task,
           clock_timestamp() - n * interval '1 second' as at
      from generate_series(1, %(runs)s) n
     cross join flowforge.workflow w
      join flowforge.task t on t.workflow_id = w.id
     where w.name = 'single'
), run as (
    insert into flowforge.workflow_run (id, organization_id, workflow_id, state, tasks_remaining, created_at, started_at,
                                        finished_at)
    select run, organization_id, workflow, 'succeeded', 0, at, at, at
      from new
), task_run as (
    insert into flowforge.task_run (id, organization_id, workflow_run_id, task_id, state, fencing_token, failures_left,
                                    losses_left, result, created_at, started_at, finished_at)
    select task_run, organization_id, run, task, 'succeeded', 1, 0, 2, '{"rows": 1}', at, at, at
      from new
), run_event as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, to_state, created_at)
    select organization_id, run, kind, 'succeeded', at
      from new, unnest(array['created', 'started', 'succeeded']) kind
)
insert into flowforge.task_run_event (organization_id, task_run_id, kind, to_state, attempt, fencing_token, created_at)
select organization_id, task_run, kind, 'succeeded', 1, 1, at
  from new, unnest(array['created', 'claimed', 'succeeded']) kind;
