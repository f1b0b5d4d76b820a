-- Reads for which plain SQL says it better than a query builder.

-- name: waiting_queues
-- One descent of idx_outbox_pending for each queue, however many messages wait.
with recursive queue (name) as (
    (select o.routing_key
       from flowforge.outbox_message o
      where o.published_at is null and not o.held
      order by o.routing_key
      limit 1)
    union all
    select (select o.routing_key
              from flowforge.outbox_message o
             where o.published_at is null and not o.held and o.routing_key > queue.name
             order by o.routing_key
             limit 1)
      from queue
     where queue.name is not null
)
select name as queue
  from queue
 where name is not null;


-- name: asked_for
-- What a run is of, and with which parameters; on the connection of whoever asks, for whom it may not be committed yet.
select w.name, r.parameters::text
  from flowforge.workflow_run r
  join flowforge.workflow w on w.id = r.workflow_id
 where r.id = %(run)s::uuid;


-- name: published_before
select o.id, o.task_run_id, o.fencing_token_snapshot as token, o.routing_key as queue, o.published_at
  from flowforge.outbox_message o
 where o.published_at is not null and o.published_at < (select flowforge.clock()) - %(age)s::interval
 order by o.published_at
 limit %(limit)s;


-- name: unstarted
-- Ready task runs that no worker has taken by the time that they were to be started.
with due as materialized (
    select o.task_run_id, o.fencing_token_snapshot as token, o.start_by, o.held
      from flowforge.outbox_message o
     where o.start_by < (select flowforge.clock())
     order by o.start_by
     limit %(limit)s
)
select t.id, t.workflow_run_id as run_id, t.fencing_token as token, due.start_by, due.held
  from due
  join flowforge.task_run t on t.id = due.task_run_id and t.fencing_token = due.token
 where t.id = any(array(select task_run_id from due)) and t.state || '' = 'ready'
 order by due.start_by;


-- name: asked_before
-- Running task runs that were asked to stop longer ago than they may take.
select t.id, t.workflow_run_id as run_id, t.fencing_token as token, t.lease_owner as owner
  from flowforge.task_run t
 where t.state = 'running' and t.cancel_requested_at < (select flowforge.clock()) - %(age)s::interval
 order by t.cancel_requested_at
 limit %(limit)s;


-- name: past_deadline
select r.id, r.deadline
  from flowforge.workflow_run r
 where r.deadline < (select flowforge.clock()) and r.finished_at is null and r.cancel_requested_at is null
 order by r.deadline
 limit %(limit)s;


-- name: orders
-- What the engine says of task runs that somebody carries out: are they still owned, and are they to stop?
select t.id, t.fencing_token as token, t.cancel_requested_at is not null as cancel
  from flowforge.task_run t
 where t.id = any(%(ids)s::uuid[]);


-- name: workflows
select w.name,
       (select c.version
          from flowforge.deployment d
          join flowforge.workflow c on c.id = d.workflow_id
         where c.organization_id = %(organization)s::uuid and c.name = w.name
         order by d.number desc
         limit 1) as version,
       (select max(d.created_at)
          from flowforge.deployment d
          join flowforge.workflow c on c.id = d.workflow_id
         where c.organization_id = %(organization)s::uuid and c.name = w.name) as deployed_at,
       (select count(*)
          from flowforge.workflow_run r
          join flowforge.workflow v on v.id = r.workflow_id
         where v.organization_id = %(organization)s::uuid and v.name = w.name and r.state in ('pending', 'running')
       ) as unfinished
  from (select distinct name from flowforge.workflow where organization_id = %(organization)s::uuid) w
 order by w.name;


-- name: queues
with named as (
    select t.queue as name
      from flowforge.task t
      join flowforge.workflow w on w.id = t.workflow_id
     where w.organization_id = %(organization)s::uuid
     union
    select o.routing_key
      from flowforge.outbox_message o
     where o.organization_id = %(organization)s::uuid
), owed as (
    select o.routing_key as name,
           count(*) filter (where not o.held and o.available_at <= flowforge.clock()) as due,
           count(*) filter (where not o.held and o.available_at > flowforge.clock()) as delayed,
           count(*) filter (where o.held) as held,
           min(o.available_at) filter (where not o.held and o.available_at <= flowforge.clock()) as oldest
      from flowforge.outbox_message o
     where o.organization_id = %(organization)s::uuid
     group by o.routing_key
), running as (
    select d.queue as name, count(*) as number
      from flowforge.task_run t
      join flowforge.task d on d.id = t.task_id
     where t.state = 'running' and t.organization_id = %(organization)s::uuid
     group by d.queue
)
select named.name, coalesce(owed.due, 0) as due, coalesce(owed.delayed, 0) as delayed, coalesce(owed.held, 0) as held,
       owed.oldest, coalesce(running.number, 0) as running
  from named
  left join owed on owed.name = named.name
  left join running on running.name = named.name
 order by named.name;


-- name: age_of_last
-- Seconds since something was last done, by the audit log.
select extract(epoch from flowforge.clock() - max(a.created_at))::double precision as age
  from flowforge.audit_log a
 where a.action = %(action)s;


-- name: idle_queues
-- Queues of which something has been due for long while nothing runs: does any worker serve them?
select o.routing_key as name, count(*)::int as due,
       extract(epoch from flowforge.clock() - min(o.available_at))::double precision as age
  from flowforge.outbox_message o
 where not o.held and o.available_at < (select flowforge.clock()) - %(age)s::interval
   and not exists (select from flowforge.task_run t
                     join flowforge.task d on d.id = t.task_id
                    where t.state = 'running' and d.queue = o.routing_key)
 group by o.routing_key
 order by o.routing_key;


-- name: refused
-- Outcomes that came too late, of attempts that were lost, cut off or cancelled: since when, and how many.
select count(*)::int as number, max(e.created_at) as last
  from flowforge.task_run_event e
 where e.kind = 'refused';


-- name: workflows_of_paused_queues
select distinct w.name, p.kind, p.subject
  from flowforge.pause p
  join flowforge.task t on t.queue = p.subject
  join flowforge.workflow w on w.id = t.workflow_id and w.organization_id = p.organization_id
 where p.organization_id = %(organization)s::uuid and p.kind = 'queue'
 order by w.name, p.subject;


-- name: queues_of_paused_others
-- Queues in which a paused workflow, or run, holds something.
select distinct o.routing_key as name, p.kind, p.subject
  from flowforge.pause p
  join flowforge.outbox_message o
    on o.organization_id = p.organization_id and o.held
   and p.subject = case p.kind when 'workflow' then o.payload ->> 'workflow' else o.workflow_run_id::text end
 where p.organization_id = %(organization)s::uuid and p.kind <> 'queue'
 order by o.routing_key, p.subject;
