-- Reads for which plain SQL says it better than a query builder.

-- name: waiting_queues
-- One descent of idx_outbox_pending for each queue, however many messages wait.
with recursive queue (name) as (
    (select o.routing_key
       from flowforge.outbox_message o
      where o.published_at is null
      order by o.routing_key
      limit 1)
    union all
    select (select o.routing_key
              from flowforge.outbox_message o
             where o.published_at is null and o.routing_key > queue.name
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
