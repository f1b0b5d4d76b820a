-- What must never be: each query returns the number of rows that break one rule. Read by `flowforge doctor`.

-- name: ready task runs without exactly one dispatch at their token
select count(*)
  from flowforge.task_run t
 where t.state = 'ready'
   and (select count(*) from flowforge.outbox_message o
         where o.task_run_id = t.id and o.fencing_token_snapshot = t.fencing_token) <> 1;

-- name: dispatches owed for task runs that are not ready, or at another token
select count(*)
  from flowforge.outbox_message o
  join flowforge.task_run t on t.id = o.task_run_id
 where t.state <> 'ready' or t.fencing_token <> o.fencing_token_snapshot;

-- name: running task runs without a lease, or leases without a running task run
select count(*)
  from flowforge.task_run t
 where (t.state = 'running') <> (t.lease_expires_at is not null and t.lease_owner is not null);

-- name: task runs whose upstream counters differ from a recount
select count(*)
  from flowforge.task_run t
 cross join lateral (
    select count(*) filter (where u.state not in ('succeeded', 'failed', 'cancelled', 'skipped')) as remaining,
           count(*) filter (where u.state = 'failed') as failed,
           count(*) filter (where u.state in ('failed', 'cancelled', 'skipped')) as unsucceeded
      from flowforge.task_dependency e
      join flowforge.task_run u on u.workflow_run_id = t.workflow_run_id and u.task_id = e.upstream_id
     where e.downstream_id = t.task_id) recount
 where t.state in ('pending', 'ready')                 -- what had ended before a move was decided by another version
   and (t.upstream_remaining, t.upstream_failed, t.upstream_unsucceeded)
       is distinct from (recount.remaining::int, recount.failed::int, recount.unsucceeded::int);

-- name: runs whose counters differ from a recount
select count(*)
  from flowforge.workflow_run r
 cross join lateral (
    select count(*) filter (where t.finished_at is null) as remaining,
           count(*) filter (where t.state = 'failed' and t.required) as failed
      from flowforge.task_run t
     where t.workflow_run_id = r.id) recount
 where r.tasks_remaining <> recount.remaining or r.tasks_failed <> recount.failed;

-- name: finished runs with task runs that are not
select count(*)
  from flowforge.workflow_run r
 where r.finished_at is not null
   and exists (select from flowforge.task_run t where t.workflow_run_id = r.id and t.finished_at is null);

-- name: pending task runs that wait for nothing
select count(*)
  from flowforge.task_run t
 where t.state = 'pending' and t.upstream_remaining = 0;

-- name: task runs whose last event is not their state
select count(*)
  from flowforge.task_run t
 where t.state is distinct from (
    select e.to_state
      from flowforge.task_run_event e
     where e.task_run_id = t.id and e.kind <> 'refused'
     order by e.created_at desc
     limit 1);

-- name: rows that disagree with their run about the organization
select (select count(*) from flowforge.task_run t
          join flowforge.workflow_run r on r.id = t.workflow_run_id
         where t.organization_id <> r.organization_id)
     + (select count(*) from flowforge.workflow_run r
          join flowforge.workflow w on w.id = r.workflow_id
         where r.organization_id <> w.organization_id)
    as count;
