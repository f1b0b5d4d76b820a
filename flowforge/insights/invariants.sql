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
           count(*) filter (where t.state = 'failed' and t.required) as failed,
           count(*) filter (where t.state = 'cancelled' and t.required) as cancelled
      from flowforge.task_run t
     where t.workflow_run_id = r.id) recount
 where (r.tasks_remaining, r.tasks_failed, r.tasks_cancelled)
       is distinct from (recount.remaining::int, recount.failed::int, recount.cancelled::int);

-- name: finished runs with task runs that are not
select count(*)
  from flowforge.workflow_run r
 where r.finished_at is not null
   and exists (select from flowforge.task_run t where t.workflow_run_id = r.id and t.finished_at is null);

-- name: pending task runs that wait for nothing
select count(*)
  from flowforge.task_run t
 where t.state = 'pending' and t.upstream_remaining = 0;

-- name: task runs whose last event does not tell their state, attempt and token
select count(*)
  from flowforge.task_run t
  left join lateral (select e.to_state, e.attempt, e.fencing_token
                       from flowforge.task_run_event e
                      where e.task_run_id = t.id
                      order by e.number desc
                      limit 1) as last on true
 where (t.state, t.attempt, t.fencing_token) is distinct from (last.to_state, last.attempt, last.fencing_token);

-- name: events of task runs that do not begin where the one before has ended
select count(*)
  from (select e.from_state, lag(e.to_state) over (partition by e.task_run_id order by e.number) as before
          from flowforge.task_run_event e) e
 where e.from_state is distinct from e.before;

-- name: events of task runs that are no step
select count(*)
  from flowforge.task_run_event e
 where (e.kind, coalesce(e.from_state, ''), e.to_state) not in (
    select kind, from_state, to_state
      from (values ('created', array[''], array['pending', 'ready', 'skipped']),
                   ('readied', array['pending'], array['ready']),
                   ('claimed', array['ready'], array['running']),
                   ('succeeded', array['running'], array['succeeded']),
                   ('failed', array['ready', 'running'], array['failed']),
                   ('cancelled', array['pending', 'ready', 'running'], array['cancelled']),
                   ('skipped', array['pending', 'ready', 'running'], array['skipped']),
                   ('retried', array['running'], array['ready']),
                   ('handed_back', array['running'], array['ready']),
                   ('expired', array['running'], array['ready']),
                   ('deferred', array['ready'], array['ready']),
                   ('cancel_requested', array['running'], array['running']),
                   ('moved', array['pending', 'ready'], array['pending', 'ready']),
                   ('rerun', array['succeeded', 'failed', 'cancelled', 'skipped'], array['pending', 'ready']))
           as step (kind, leaves, reaches)
     cross join unnest(leaves) as from_state
     cross join unnest(reaches) as to_state)
   and not (e.kind = 'refused' and e.from_state = e.to_state);

-- name: runs whose last event does not tell their state
select count(*)
  from flowforge.workflow_run r
  left join lateral (select e.to_state
                       from flowforge.workflow_run_event e
                      where e.workflow_run_id = r.id
                      order by e.number desc
                      limit 1) as last on true
 where r.state is distinct from last.to_state;

-- name: finished runs whose state does not follow from their counters
select count(*)
  from flowforge.workflow_run r
 where r.finished_at is not null
   and r.state <> case when r.tasks_failed > 0 then 'failed'
                       when r.tasks_cancelled > 0 or r.cancel_requested_at is not null then 'cancelled'
                       else 'succeeded'
                  end;

-- name: events of runs that do not begin where the one before has ended
select count(*)
  from (select e.from_state, lag(e.to_state) over (partition by e.workflow_run_id order by e.number) as before
          from flowforge.workflow_run_event e) e
 where e.from_state is distinct from e.before;

-- name: events of runs that are no step
select count(*)
  from flowforge.workflow_run_event e
 where (e.kind, coalesce(e.from_state, ''), e.to_state) not in (
    select kind, from_state, to_state
      from (values ('created', array[''], array['pending']),
                   ('started', array['pending'], array['running']),
                   ('succeeded', array['pending', 'running'], array['succeeded']),
                   ('failed', array['pending', 'running'], array['failed']),
                   ('cancelled', array['pending', 'running'], array['cancelled']),
                   ('rerun', array['succeeded', 'failed', 'cancelled'], array['running']))
           as step (kind, leaves, reaches)
     cross join unnest(leaves) as from_state
     cross join unnest(reaches) as to_state)
   and not (e.kind in ('moved', 'cancel_requested', 'paused', 'resumed') and e.from_state = e.to_state
            and e.to_state in ('pending', 'running'));

-- name: attempts or tokens that went back
select count(*)
  from (select e.attempt - lag(e.attempt) over history as attempts,
               e.fencing_token - lag(e.fencing_token) over history as tokens
          from flowforge.task_run_event e
        window history as (partition by e.task_run_id order by e.number)) e
 where e.attempts < 0 or e.tokens < 0;

-- name: rows that disagree with what they belong to about the organization
select (select count(*) from flowforge.task_run t
          join flowforge.workflow_run r on r.id = t.workflow_run_id
         where t.organization_id <> r.organization_id)
     + (select count(*) from flowforge.workflow_run r
          join flowforge.workflow w on w.id = r.workflow_id
         where r.organization_id <> w.organization_id)
     + (select count(*) from flowforge.outbox_message o
          join flowforge.task_run t on t.id = o.task_run_id
         where o.organization_id <> t.organization_id or o.workflow_run_id <> t.workflow_run_id)
     + (select count(*) from flowforge.task_run_event e
          join flowforge.task_run t on t.id = e.task_run_id
         where e.organization_id <> t.organization_id)
     + (select count(*) from flowforge.workflow_run_event e
          join flowforge.workflow_run r on r.id = e.workflow_run_id
         where e.organization_id <> r.organization_id)
    as count;
