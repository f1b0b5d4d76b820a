-- The effects of the chaos load, in a schema of their own.

-- name: schema
create schema if not exists flowforge_chaos;

-- name: table
create table flowforge_chaos.effect (
    task_run_id    uuid not null,
    fencing_token  bigint not null,
    run_id         uuid not null,
    created_at     timestamptz not null default clock_timestamp()
);

-- name: index
create index effect_task_run on flowforge_chaos.effect (task_run_id, fencing_token);

-- name: gone
drop table if exists flowforge_chaos.effect;

-- name: effect
insert into flowforge_chaos.effect (task_run_id, fencing_token, run_id) values (%s, %s, %s);

-- name: deadlocks
select deadlocks as count, flowforge.clock() as now from pg_stat_database where datname = current_database();

-- name: completions without exactly one effect at their token
select count(*)
  from flowforge.task_run t
  join flowforge.task d on d.id = t.task_id
  join flowforge.workflow w on w.id = d.workflow_id
 where left(w.name, 6) = 'chaos-' and t.state = 'succeeded' and t.created_at >= %(since)s
   and 1 <> (select count(*) from flowforge_chaos.effect e
              where e.task_run_id = t.id and e.fencing_token = t.fencing_token);

-- name: effects at a token at which nobody had claimed the task run
select count(*)
  from flowforge_chaos.effect e
 where e.created_at >= %(since)s
   and not exists (select
                     from flowforge.task_run_event v
                    where v.task_run_id = e.task_run_id and v.kind = 'claimed' and v.fencing_token = e.fencing_token);

-- name: counts
-- What became of the load: runs and task runs by state, and how often each thing happened to them.
select 'runs ' || r.state as what, count(*) as number
  from flowforge.workflow_run r
  join flowforge.workflow w on w.id = r.workflow_id
 where left(w.name, 6) = 'chaos-' and r.created_at >= %(since)s
 group by r.state
 union all
select 'task runs ' || t.state, count(*)
  from flowforge.task_run t
  join flowforge.workflow_run r on r.id = t.workflow_run_id
  join flowforge.workflow w on w.id = r.workflow_id
 where left(w.name, 6) = 'chaos-' and r.created_at >= %(since)s
 group by t.state
 union all
select 'events ' || e.kind, count(*)
  from flowforge.task_run_event e
  join flowforge.task_run t on t.id = e.task_run_id
  join flowforge.workflow_run r on r.id = t.workflow_run_id
  join flowforge.workflow w on w.id = r.workflow_id
 where left(w.name, 6) = 'chaos-' and r.created_at >= %(since)s
 group by e.kind
 order by what;

-- name: left
select r.id
  from flowforge.workflow_run r
  join flowforge.workflow w on w.id = r.workflow_id
 where left(w.name, 6) = 'chaos-' and r.created_at >= %(since)s and r.finished_at is null;
