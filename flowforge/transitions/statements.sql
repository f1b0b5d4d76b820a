-- FlowForge's verbs: every statement that changes a state. The nouns are in schema.sql.
--
-- A verb is one statement over a set: arrays in, accepted rows out. It names the state it leaves and the token it needs,
-- and writes the events and the outbox rows that the change owes. A row that does not come back was not the caller's.
--
-- Lock order, the same for all: idempotency keys, then run rows by id, then task rows by id, then outbox rows; each in a
-- MATERIALIZED CTE on which the next depends, because data-modifying CTEs run in no promised order. Only `for no key
-- update`: `for update` would block on the foreign keys of concurrent inserts. renew, expire, take, resend and forget skip
-- locked rows.
--
-- Whether something is paused is read without a lock, where it would begin: in claim and take. What is claimed after the
-- pause was committed sees it; what is dispatched before is turned back by claim, and `held` until nothing pauses it.
--
-- Only values on locked rows decide: after a wait the locked row is fresh, while other tables and subqueries still show
-- the snapshot from before it. And rows are reached by primary key alone, with state and token tested on the locked row:
-- beside `id = any(…)` an indexable state predicate tempts the planner to walk the whole backlog.


-- name: start_run
-- – -> pending (run); – -> ready | pending (task runs, token 0); idempotency key: – | expired -> stands for the run
-- One run for each element of the arrays, except where its key stands for another run already: that is the answer then,
-- also when it was committed after this statement began, and the fingerprint says whether it was asked for the same.
-- dependents are found by position, each by primary key in a subquery of its own: as a join, without statistics, that was
-- a scan of all tasks for each task (6.2 s instead of 0.4 s for 5,000).
with asked as materialized (
    select asked.*, w.organization_id, flowforge.clock() as now, coalesce(asked.allowed, w.deadline) as span,
           encode(sha256(convert_to(jsonb_build_array(w.name, asked.parameters::jsonb)::text, 'UTF8')), 'hex') as fingerprint
      from unnest(%(runs)s::uuid[], %(workflows)s::uuid[], %(parameters)s::text[], %(priorities)s::smallint[],
                  %(keys)s::text[], %(deadlines)s::interval[]) as asked (id, workflow_id, parameters, priority, key, allowed)
      join flowforge.workflow w on w.id = asked.workflow_id
), reserved as (
    insert into flowforge.idempotency_key as k (organization_id, user_id, key, fingerprint, workflow_run_id, expires_at,
                                                created_at)
    select organization_id, %(user)s::text, key, fingerprint, id, now + %(ttl)s::interval, now
      from asked
     where key is not null
     order by key                                            -- two batches at once wait for each other in one order
        on conflict on constraint uniq_idempotency_organization_user_key
        do update
       set fingerprint = case when k.expires_at < excluded.created_at then excluded.fingerprint else k.fingerprint end,
           workflow_run_id = case when k.expires_at < excluded.created_at then excluded.workflow_run_id
                                  else k.workflow_run_id end,
           created_at = case when k.expires_at < excluded.created_at then excluded.created_at else k.created_at end,
           expires_at = case when k.expires_at < excluded.created_at then excluded.expires_at else k.expires_at end
    returning k.organization_id, k.key, k.fingerprint, k.workflow_run_id
), answer as materialized (
    select asked.id, coalesce(reserved.workflow_run_id, asked.id) as run_id,
           coalesce(reserved.fingerprint, asked.fingerprint) = asked.fingerprint as same
      from asked
      left join reserved on reserved.organization_id = asked.organization_id and reserved.key = asked.key
), own as materialized (
    select asked.*,
           array(select gen_random_uuid() from flowforge.task t where t.workflow_id = asked.workflow_id) as task_runs
      from asked
      join answer on answer.id = asked.id and answer.run_id = asked.id
), run as (
    insert into flowforge.workflow_run (id, organization_id, workflow_id, parameters, priority, tasks_remaining, allowed,
                                        deadline, created_at)
    select id, organization_id, workflow_id, parameters::jsonb, priority, cardinality(task_runs), span, now + span, now
      from own
), fresh as materialized (
    select o.task_runs[t.position] as id, o.organization_id, o.id as workflow_run_id, t.id as task_id, o.priority,
           t.queue, t.attempts - 1 as failures_left, t.lost as losses_left, t."when", t.required, upstream.remaining,
           case when upstream.remaining = 0 then 'ready' else 'pending' end as state,
           array(select o.task_runs[(select d.position from flowforge.task d where d.id = e.downstream_id)]
                   from flowforge.task_dependency e
                  where e.upstream_id = t.id) as dependents,
           jsonb_build_object('workflow', w.name, 'key', t.key, 'task', t.id) as payload, o.now, o.now + t.start_by as start_by
      from own o
      join flowforge.workflow w on w.id = o.workflow_id
      join flowforge.task t on t.workflow_id = o.workflow_id
     cross join lateral (select count(*)::int from flowforge.task_dependency e where e.downstream_id = t.id)
           as upstream (remaining)
), created as (
    insert into flowforge.task_run (id, organization_id, workflow_run_id, task_id, state, failures_left, losses_left,
                                    upstream_remaining, "when", required, dependents)
    select id, organization_id, workflow_run_id, task_id, state, failures_left, losses_left,
           remaining, "when", required, dependents
      from fresh
), owed as (
    insert into flowforge.outbox_message (organization_id, task_run_id, workflow_run_id, routing_key, priority, payload,
                                          fencing_token_snapshot, attempt_snapshot, start_by, created_at)
    select organization_id, id, workflow_run_id, queue, priority, payload, 0, 1, start_by, now
      from fresh
     where state = 'ready'
), run_told as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, to_state)
    select organization_id, id, 'created', 'pending'
      from own
), task_told as (
    insert into flowforge.task_run_event (organization_id, task_run_id, kind, to_state, attempt, fencing_token)
    select organization_id, id, 'created', state, 1, 0
      from fresh
)
select id, run_id, same
  from answer;


-- name: claim
-- ready -> running at the message's token, which becomes one more; run: pending -> running
-- Also returns what it already gave this owner, whose reply was lost. The outbox row has done its duty and goes; of what
-- is paused it stays, held.
with asked as materialized (
    select distinct on (id, token) *                         -- a message may be doubled
      from unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(leases)s::interval[]) as asked (id, token, lease)
), run as materialized (
    select r.id
      from flowforge.workflow_run r
     where r.id = any(%(runs)s::uuid[]) and r.state || '' = 'pending'   -- not indexable, on purpose
     order by r.id
       for no key update
), held as materialized (
    select t.id, t.organization_id, t.workflow_run_id, t.task_id, t.state, t.attempt, t.fencing_token, t.lease_owner,
           t.failures_left
      from flowforge.task_run t
     where (select count(*) from run) >= 0 and t.id = any(%(ids)s::uuid[])
     order by t.id
       for no key update
), paused as materialized (
    select o.id, o.task_run_id
      from flowforge.outbox_message o
     where (select count(*) from held) >= 0 and exists (select from flowforge.pause)
       and o.task_run_id = any(%(ids)s::uuid[])
       and (o.task_run_id, o.fencing_token_snapshot) in (select id, token from asked)
       and flowforge.is_paused(o.organization_id, o.workflow_run_id, o.payload ->> 'workflow', o.routing_key)
), own as materialized (
    select held.*, asked.token, asked.lease
      from held
      join asked on asked.id = held.id and asked.token = held.fencing_token
     where held.state = 'ready' and held.id not in (select task_run_id from paused)
), claimed as (
    update flowforge.task_run t
       set state = 'running', fencing_token = t.fencing_token + 1, lease_owner = %(owner)s,
           lease_expires_at = flowforge.clock() + own.lease, started_at = flowforge.clock(),
           deferred_because = null
      from own
     where t.id = own.id
), started as (
    update flowforge.workflow_run r
       set state = 'running', started_at = flowforge.clock()
      from run
     where r.id = run.id and run.id in (select workflow_run_id from own)
    returning r.id, r.organization_id
), done as (
    delete from flowforge.outbox_message o
     where o.task_run_id = any(array(select id from own))
), kept as (
    update flowforge.outbox_message o
       set held = true, published_at = null
     where o.id = any(array(select id from paused))
), run_told as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, from_state, to_state)
    select organization_id, id, 'started', 'pending', 'running'
      from started
), task_told as (
    insert into flowforge.task_run_event (organization_id, task_run_id, kind, from_state, to_state, attempt,
                                          fencing_token, detail)
    select organization_id, id, 'claimed', 'ready', 'running', attempt, fencing_token + 1,
           jsonb_build_object('owner', %(owner)s::text)
      from own
)
select held.id, held.organization_id, held.workflow_run_id, held.task_id, held.attempt, asked.token + 1 as token,
       held.failures_left, r.parameters::text as parameters
  from held
  join asked on asked.id = held.id
  join flowforge.workflow_run r on r.id = held.workflow_run_id
 where held.id in (select id from own) and held.fencing_token = asked.token
    or held.state = 'running' and held.fencing_token = asked.token + 1 and held.lease_owner = %(owner)s;


-- name: renew
-- running -> running, at the caller's token, with a later expiry: but none that outlives the attempt's own time
-- Answers for each: renewed, cancel (renewed, and asked to stop), busy (locked by another, so still ours), lost.
with asked as materialized (
    select *
      from unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(leases)s::interval[], %(spans)s::interval[])
           as asked (id, token, lease, span)
), held as materialized (
    select t.id, t.state, t.fencing_token, t.cancel_requested_at
      from flowforge.task_run t
     where t.id = any(%(ids)s::uuid[])
     order by t.id
       for no key update skip locked
), renewed as (
    update flowforge.task_run t
       set lease_expires_at = least(flowforge.clock() + asked.lease, t.started_at + asked.span)
      from held
      join asked on asked.id = held.id and asked.token = held.fencing_token
     where t.id = held.id and held.state = 'running'
    returning t.id
)
select asked.id, asked.token,
       case when renewed.id is not null and held.cancel_requested_at is null then 'renewed'
            when renewed.id is not null then 'cancel'
            when held.id is null and seen.state = 'running' and seen.fencing_token = asked.token then 'busy'
            else 'lost'
       end as answer
  from asked
  left join held on held.id = asked.id
  left join renewed on renewed.id = asked.id and held.fencing_token = asked.token
  left join flowforge.task_run seen on seen.id = asked.id and seen.id = any(%(ids)s::uuid[]);


-- name: finish
-- running -> succeeded | failed | cancelled | skipped, at the caller's token; run: running -> its outcome at zero
-- skip: pending -> skipped, for a task run whose rule was not met. give_up: ready -> failed, when no worker took it in
-- time. cut_off: running -> cancelled, when it was asked to stop and has not. All end a task run, so all are this
-- statement, and name the states they may leave. Who ends what another owns or may claim takes the token: it becomes one
-- more. Else it is kept, so that "ended at my token" is its owner's own commit. With `overdue` only a lease that is over
-- may be ended: expire's last word. Who was asked to cancel ends cancelled, however it ended.
-- A dependent that reaches zero becomes ready, or comes back as `unwanted`: skip is then due in the same transaction.
with patience as materialized (
    select set_config('lock_timeout', %(patience)s, true)        -- of this transaction: a user's guard may lock a row
), outcome as materialized (
    select distinct on (id, token) *                         -- the first counts
      from unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(states)s::text[], %(results)s::text[], %(errors)s::text[])
           with ordinality as outcome (id, token, state, result, error, place)
     order by id, token, place
), run as materialized (
    select r.id, r.organization_id, r.workflow_id, r.state, r.priority, r.tasks_remaining
      from flowforge.workflow_run r
     where (select count(*) from patience) = 1 and r.id = any(%(runs)s::uuid[])
     order by r.id
       for no key update
), held as materialized (
    select t.id, t.organization_id, t.workflow_run_id, t.state, t.fencing_token, t.attempt, t.required, t.dependents,
           t.upstream_remaining, t.lease_expires_at, t.cancel_requested_at
      from flowforge.task_run t
     where (select count(*) from run) >= 0 and t.id = any(%(ids)s::uuid[])
     order by t.id
       for no key update
), own as materialized (
    select held.*, outcome.error,
           case when held.cancel_requested_at is null then outcome.state else 'cancelled' end as ending,
           case when held.cancel_requested_at is null then outcome.result end as result,
           case when held.cancel_requested_at is not null and outcome.state <> 'cancelled'
                then jsonb_build_object('outcome', outcome.state) end as in_spite
      from held
      join run on run.id = held.workflow_run_id
      join outcome on outcome.id = held.id and outcome.token = held.fencing_token
     where held.state = any(%(leaves)s::text[]) and held.upstream_remaining = 0
       and (not %(overdue)s or held.lease_expires_at < flowforge.clock())
       and (not %(taken)s or %(overdue)s or held.state = 'ready' or held.cancel_requested_at is not null)
), ended as (
    update flowforge.task_run t
       set state = own.ending, result = own.result::jsonb, error = own.error::jsonb,
           fencing_token = t.fencing_token + %(taken)s::boolean::int, deferred_because = null,
           lease_owner = null, lease_expires_at = null, finished_at = greatest(t.started_at, flowforge.clock())
      from own
     where t.id = own.id
), gone as (
    delete from flowforge.outbox_message o
     where o.task_run_id = any(array(select id from own where state = 'ready'))
), news as materialized (
    select dependent.id, count(*)::int as told, count(*) filter (where own.ending = 'failed')::int as failed,
           count(*) filter (where own.ending <> 'succeeded')::int as unsucceeded
      from own
     cross join unnest(own.dependents) as dependent (id)
     group by dependent.id
), waiting as materialized (
    select t.id, t.state
      from flowforge.task_run t
     where t.id = any(array(select id from news))
     order by t.id
       for no key update
), dependent as (
    update flowforge.task_run t
       set upstream_remaining = t.upstream_remaining - news.told,
           upstream_failed = t.upstream_failed + news.failed,
           upstream_unsucceeded = t.upstream_unsucceeded + news.unsucceeded,
           state = case when t.upstream_remaining > news.told then 'pending'
                        when t."when" = 'all_done'
                          or t."when" = 'all_succeeded' and t.upstream_unsucceeded + news.unsucceeded = 0
                          or t."when" = 'none_failed' and t.upstream_failed + news.failed = 0
                          or t."when" = 'any_failed' and t.upstream_failed + news.failed > 0 then 'ready'
                        else 'pending'
                   end
      from news
      join waiting on waiting.id = news.id
     where t.id = waiting.id and waiting.state = 'pending'
    returning t.id, t.organization_id, t.workflow_run_id, t.task_id, t.state, t.fencing_token, t.attempt,
              t.upstream_remaining
), owed as (
    insert into flowforge.outbox_message (organization_id, task_run_id, workflow_run_id, routing_key, priority, payload,
                                          fencing_token_snapshot, attempt_snapshot, start_by)
    select d.organization_id, d.id, d.workflow_run_id, t.queue, run.priority,
           jsonb_build_object('workflow', w.name, 'key', t.key, 'task', t.id), d.fencing_token, d.attempt,
           flowforge.clock() + t.start_by
      from dependent d
      join run on run.id = d.workflow_run_id
      join flowforge.task t on t.id = d.task_id
      join flowforge.workflow w on w.id = run.workflow_id
     where d.state = 'ready'
), task_told as (
    insert into flowforge.task_run_event (organization_id, task_run_id, kind, from_state, to_state, attempt,
                                          fencing_token, detail)
    select held.organization_id, held.id, 'refused', held.state, held.state, held.attempt, held.fencing_token,
           jsonb_build_object('token', outcome.token, 'outcome', outcome.state)
      from held
      join outcome on outcome.id = held.id
     where outcome.token < held.fencing_token and not %(taken)s
     union all                                               -- what was refused found the states from before
    select organization_id, id, ending, state, ending, attempt, fencing_token + %(taken)s::boolean::int,
           case when in_spite is null then error::jsonb - 'traceback'
                else in_spite || coalesce(error::jsonb - 'traceback', '{}')
           end
      from own
     union all
    select organization_id, id, 'readied', 'pending', 'ready', attempt, fencing_token, null
      from dependent
     where state = 'ready'
), tally as materialized (
    select workflow_run_id, count(*)::int as ended, count(*) filter (where ending = 'failed' and required)::int as failed,
           count(*) filter (where ending = 'cancelled' and required)::int as cancelled
      from own
     group by workflow_run_id
), counted as (
    update flowforge.workflow_run r
       set tasks_remaining = r.tasks_remaining - tally.ended,
           tasks_failed = r.tasks_failed + tally.failed,
           tasks_cancelled = r.tasks_cancelled + tally.cancelled,
           state = case when r.tasks_remaining > tally.ended then r.state
                        when r.tasks_failed + tally.failed > 0 then 'failed'
                        when r.cancel_requested_at is not null or r.tasks_cancelled + tally.cancelled > 0 then 'cancelled'
                        else 'succeeded'
                   end,
           finished_at = case when r.tasks_remaining = tally.ended
                              then greatest(r.started_at, flowforge.clock())
                         end
      from tally
      join run on run.id = tally.workflow_run_id
     where r.id = run.id and run.state in ('pending', 'running')
    returning r.id, r.organization_id, run.state as from_state, r.state, r.tasks_remaining
), run_told as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, from_state, to_state)
    select organization_id, id, state, from_state, state
      from counted
     where tasks_remaining = 0
)
select id, workflow_run_id, fencing_token as token, 'ended' as became
  from own
 union all
select id, workflow_run_id, fencing_token, case state when 'ready' then 'ready' else 'unwanted' end
  from dependent
 where upstream_remaining = 0
 union all
select held.id, held.workflow_run_id, held.fencing_token,
       case when held.fencing_token = outcome.token
             and (held.state = outcome.state or held.state = 'cancelled' and held.cancel_requested_at is not null)
            then 'ended before'
            else 'refused'
       end
  from held
  join outcome on outcome.id = held.id
 where held.id not in (select id from own);


-- name: release
-- running -> ready at the caller's token, which becomes one more, with a new dispatch owed
-- retry charges an attempt and one of failures_left; hand_back charges nothing. Who is asked to cancel is not released:
-- it comes back as `cancel`, and its owner ends it. With an `owner` only what that owns is released: by its heir.
with patience as materialized (
    select set_config('lock_timeout', %(patience)s, true)        -- of this transaction: a user's guard may lock a row
), asked as materialized (
    select distinct on (id, token) *
      from unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(delays)s::interval[], %(errors)s::text[])
           as asked (id, token, delay, error)
), held as materialized (
    select t.id, t.state, t.fencing_token, t.attempt, t.failures_left, t.cancel_requested_at, t.organization_id,
           t.lease_owner
      from flowforge.task_run t
     where (select count(*) from patience) = 1 and t.id = any(%(ids)s::uuid[])
     order by t.id
       for no key update
), own as materialized (
    select held.*, asked.delay, asked.error
      from held
      join asked on asked.id = held.id and asked.token = held.fencing_token
     where held.state = 'running' and (%(owner)s::text is null or held.lease_owner = %(owner)s::text)
), released as (
    update flowforge.task_run t
       set state = 'ready', attempt = t.attempt + %(charge)s, failures_left = t.failures_left - %(charge)s,
           fencing_token = t.fencing_token + 1, lease_owner = null, lease_expires_at = null, started_at = null,
           error = coalesce(own.error::jsonb, t.error)
      from own
     where t.id = own.id and own.cancel_requested_at is null and own.failures_left >= %(charge)s
    returning t.id, t.organization_id, t.workflow_run_id, t.task_id, t.attempt, t.fencing_token, own.delay, own.error
), owed as (
    insert into flowforge.outbox_message (organization_id, task_run_id, workflow_run_id, routing_key, priority, payload,
                                          fencing_token_snapshot, attempt_snapshot, available_at, start_by)
    select m.organization_id, m.id, m.workflow_run_id, t.queue, r.priority,
           jsonb_build_object('workflow', w.name, 'key', t.key, 'task', t.id), m.fencing_token, m.attempt,
           flowforge.clock() + m.delay, flowforge.clock() + m.delay + t.start_by
      from released m
      join flowforge.workflow_run r on r.id = m.workflow_run_id
      join flowforge.task t on t.id = m.task_id
      join flowforge.workflow w on w.id = r.workflow_id
), task_told as (
    insert into flowforge.task_run_event (organization_id, task_run_id, kind, from_state, to_state, attempt,
                                          fencing_token, detail)
    select held.organization_id, held.id, 'refused', held.state, held.state, held.attempt, held.fencing_token,
           jsonb_build_object('token', asked.token, 'outcome', %(kind)s::text)
      from held
      join asked on asked.id = held.id
     where asked.token < held.fencing_token and %(owner)s::text is null
       and 0 = (select count(*) from flowforge.task_run_event e  -- its own release, whose reply was lost, is no refusal
                 where e.task_run_id = held.id and e.kind in ('retried', 'handed_back')
                   and e.fencing_token = asked.token + 1)
     union all                                               -- what was refused found the states from before
    select organization_id, id, %(kind)s, 'running', 'ready', attempt, fencing_token,
           coalesce(error::jsonb - 'traceback', '{}') || jsonb_build_object('delay', extract(epoch from delay))
      from released
)
select own.id, case when own.cancel_requested_at is not null then 'cancel'
                    when own.failures_left < %(charge)s then 'exhausted'
                    else 'ready'
               end as became
  from own;


-- name: defer
-- ready -> ready at the message's token, due later: this worker cannot take it. One event for each new reason.
with asked as materialized (
    select distinct on (id, token) *
      from unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(reasons)s::text[]) as asked (id, token, reason)
), held as materialized (
    select t.id, t.organization_id, t.state, t.attempt, t.fencing_token, t.deferred_because
      from flowforge.task_run t
     where t.id = any(%(ids)s::uuid[])
     order by t.id
       for no key update
), own as materialized (
    select held.*, asked.reason
      from held
      join asked on asked.id = held.id and asked.token = held.fencing_token
     where held.state = 'ready'
), deferred as (
    update flowforge.task_run t
       set deferred_because = own.reason
      from own
     where t.id = own.id and own.deferred_because is distinct from own.reason
), later as (
    update flowforge.outbox_message o
       set published_at = null, available_at = flowforge.clock() + %(delay)s::interval
     where o.task_run_id = any(array(select id from own))
), task_told as (
    insert into flowforge.task_run_event (organization_id, task_run_id, kind, from_state, to_state, attempt,
                                          fencing_token, detail)
    select organization_id, id, 'deferred', 'ready', 'ready', attempt, fencing_token,
           jsonb_build_object('reason', reason)
      from own
     where deferred_because is distinct from reason
)
select id
  from own;


-- name: expire
-- running, lease over -> ready at the next token, attempt + 1, one of losses_left, with backoff and jitter
-- The first loss is due at once. What has no loss left, or is asked to cancel, comes back to be finished as overdue.
-- Rows are locked as they are found, within the limit: locked ones, which open guards may hold for long, hide no others.
-- Those come back as `locked`; who was so a moment ago is spared: its owner could not renew, and is about to.
with late as materialized (
    select t.id, t.workflow_run_id, t.fencing_token, t.lease_owner, t.losses_left, t.cancel_requested_at
      from flowforge.task_run t
     where t.state = 'running' and t.lease_expires_at < (select flowforge.clock())
     order by t.lease_expires_at
     limit %(limit)s
       for no key update skip locked
), own as materialized (
    select late.*
      from late
     where late.id <> all(%(spared)s::uuid[])
), expired as (
    update flowforge.task_run t
       set state = 'ready', attempt = t.attempt + 1, losses_left = t.losses_left - 1,
           fencing_token = t.fencing_token + 1, lease_owner = null, lease_expires_at = null, started_at = null
      from own
     where t.id = own.id and own.losses_left > 0 and own.cancel_requested_at is null
    returning t.id, t.organization_id, t.workflow_run_id, t.task_id, t.attempt, t.fencing_token, t.losses_left,
              own.lease_owner as owner
), owed as (
    insert into flowforge.outbox_message (organization_id, task_run_id, workflow_run_id, routing_key, priority, payload,
                                          fencing_token_snapshot, attempt_snapshot, available_at, start_by)
    select x.organization_id, x.id, x.workflow_run_id, t.queue, r.priority,
           jsonb_build_object('workflow', w.name, 'key', t.key, 'task', t.id), x.fencing_token, x.attempt,
           again.due, again.due + t.start_by
      from expired x
      join flowforge.workflow_run r on r.id = x.workflow_run_id
      join flowforge.task t on t.id = x.task_id
      join flowforge.workflow w on w.id = r.workflow_id
     cross join lateral (select flowforge.clock() + least(2 ^ least(t.lost - 1 - x.losses_left, 20) - 1, 300)
                                                    * (0.5 + random() / 2) * interval '1 second') as again (due)
), task_told as (
    insert into flowforge.task_run_event (organization_id, task_run_id, kind, from_state, to_state, attempt,
                                          fencing_token, detail)
    select organization_id, id, 'expired', 'running', 'ready', attempt, fencing_token,
           jsonb_build_object('owner', owner)
      from expired
)
select id, workflow_run_id, fencing_token as token, lease_owner as owner,
       case when cancel_requested_at is not null then 'cancel'
            when losses_left = 0 then 'exhausted'
            else 'ready'
       end as became
  from own
 union all
select t.id, t.workflow_run_id, t.fencing_token, t.lease_owner, 'locked'
  from flowforge.task_run t
 where t.state = 'running' and t.lease_expires_at < (select flowforge.clock()) and t.id not in (select id from late)
   and (select count(*) from late) < %(limit)s;


-- name: lose
-- running -> running at the token, with a lease that is over: its owner is known to be gone. expire is due then.
with asked as materialized (
    select *
      from unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) as asked (id, token)
), held as materialized (
    select t.id, t.state, t.fencing_token, t.lease_owner
      from flowforge.task_run t
     where t.id = any(%(ids)s::uuid[])
     order by t.id
       for no key update skip locked
)
update flowforge.task_run t
   set lease_expires_at = least(t.lease_expires_at, flowforge.clock())
  from held
  join asked on asked.id = held.id and asked.token = held.fencing_token
 where t.id = held.id and held.state = 'running' and held.lease_owner = %(owner)s
returning t.id;


-- name: take
-- outbox: due -> published, for one queue, most urgent first; committed only after the broker has confirmed
-- What is paused is held instead: it comes back too, so that the caller knows how far it has read.
-- The low-water mark spares a walk over dead entries that an old snapshot keeps in the index. Nothing waits for the disk:
-- a mark that a crash of the server loses makes its dispatch due again, and a dispatch sent twice does no harm.
with unhurried as materialized (
    select set_config('synchronous_commit', 'off', true)        -- of this transaction
), due as materialized (
    select o.id, exists (select from flowforge.pause)
                 and flowforge.is_paused(o.organization_id, o.workflow_run_id, o.payload ->> 'workflow', o.routing_key)
                 as paused
      from flowforge.outbox_message o
     where (select count(*) from unhurried) = 1
       and o.routing_key = %(queue)s and o.published_at is null and not o.held
       and o.available_at <= (select flowforge.clock())
       and (o.priority, o.available_at) >= (cast(%(priority)s as smallint), %(available_at)s::timestamptz)
     order by o.priority, o.available_at
     limit %(limit)s
       for no key update skip locked
)
update flowforge.outbox_message o
   set held = o.id = any(array(select id from due where paused)),
       published_at = case when o.id <> all(array(select id from due where paused)) then flowforge.clock() end
 where o.id = any(array(select id from due))
returning o.held, o.task_run_id, o.workflow_run_id, o.organization_id, o.fencing_token_snapshot as token,
          o.attempt_snapshot as attempt, o.payload, o.priority, o.available_at;


-- name: resend
-- outbox: published -> due again, where it is still as it was when it was found missing from the broker
-- A locked row is being claimed, so it was not lost.
with asked as materialized (
    select *
      from unnest(%(ids)s::uuid[], %(published)s::timestamptz[]) as asked (id, published_at)
), held as materialized (
    select o.id, o.published_at
      from flowforge.outbox_message o
     where o.id = any(%(ids)s::uuid[])
     order by o.id
       for no key update skip locked
)
update flowforge.outbox_message o
   set published_at = null
 where o.id = any(array(select held.id
                          from held
                          join asked on asked.id = held.id and asked.published_at = held.published_at))
returning o.routing_key as queue;


-- name: hold
-- no change: locks a run and all its task runs. What comes after it in the transaction sees them as they are, and also
-- what their last holders have inserted: a statement that waits for a lock itself still has the snapshot from before. So
-- move, cancel and rerun follow upon it.
with patience as materialized (
    select set_config('lock_timeout', %(patience)s, true)        -- of this transaction: a user's guard may lock a row
), run as materialized (
    select r.id
      from flowforge.workflow_run r
     where (select count(*) from patience) = 1 and r.id = %(run)s::uuid
     order by r.id
       for no key update
), held as materialized (
    select t.id, t.task_id, t.state, t.fencing_token, t.required
      from flowforge.task_run t
     where (select count(*) from run) >= 0 and t.workflow_run_id = %(run)s::uuid
     order by t.id
       for no key update
)
select held.id, d.key, held.state, held.fencing_token as token, held.required, d.queue
  from held
  join flowforge.task d on d.id = held.task_id
 order by d.position;


-- name: move
-- ready | pending -> ready | pending | skipped, at the token seen, which becomes one more; others keep state and token
-- The run goes on by another version of its workflow: its task runs are now of that version's tasks, new ones are made,
-- and those that the version does not have are skipped. Counters come from a plan made while all rows were held.
with asked as materialized (
    select *
      from jsonb_to_recordset(%(moved)s::jsonb)
           as asked (id uuid, token bigint, state text, becomes text, task uuid, "when" text, required boolean,
                     dependents uuid[], remaining int, failed int, unsucceeded int)
), fresh as materialized (
    select *
      from jsonb_to_recordset(%(fresh)s::jsonb)
           as fresh (id uuid, becomes text, task uuid, "when" text, required boolean, dependents uuid[], remaining int,
                     failed int, unsucceeded int)
), run as materialized (
    select r.id, r.organization_id, r.workflow_id, r.state, r.priority, r.cancel_requested_at, r.started_at
      from flowforge.workflow_run r
     where r.id = %(run)s::uuid
     order by r.id
       for no key update
), held as materialized (
    select t.id, t.organization_id, t.state, t.fencing_token, t.attempt
      from flowforge.task_run t
     where (select count(*) from run) >= 0 and t.id = any(array(select id from asked))
     order by t.id
       for no key update
), as_planned as materialized (
    select asked.*, held.organization_id, held.attempt, (asked.state in ('pending', 'ready'))::int as hands,
           asked.state in ('pending', 'ready') and held.attempt = 1 as untried, d.attempts, d.lost
      from held
      join asked on asked.id = held.id and asked.token = held.fencing_token
      left join flowforge.task d on d.id = asked.task
     where held.state = asked.state
), going as materialized (                                   -- the run, if it goes on and the plan is true of every row
    select run.*
      from run
     where run.state in ('pending', 'running') and run.cancel_requested_at is null
       and (select count(*) from as_planned) = (select count(*) from asked)
), own as materialized (
    select as_planned.*
      from as_planned
     cross join going
), moved as (
    update flowforge.task_run t
       set task_id = coalesce(own.task, t.task_id), state = own.becomes, fencing_token = t.fencing_token + own.hands,
           "when" = coalesce(own."when", t."when"), required = coalesce(own.required, t.required),
           dependents = own.dependents,
           failures_left = case when own.untried then coalesce(own.attempts - 1, t.failures_left)
                                else t.failures_left
                           end,
           losses_left = case when own.untried then coalesce(own.lost, t.losses_left) else t.losses_left end,
           upstream_remaining = case when own.hands = 1 then own.remaining else t.upstream_remaining end,
           upstream_failed = case when own.hands = 1 then own.failed else t.upstream_failed end,
           upstream_unsucceeded = case when own.hands = 1 then own.unsucceeded else t.upstream_unsucceeded end,
           deferred_because = null,
           finished_at = case when own.becomes = own.state then t.finished_at
                              when own.becomes = 'skipped' then flowforge.clock()
                         end
      from own
     where t.id = own.id
), created as (
    insert into flowforge.task_run (id, organization_id, workflow_run_id, task_id, state, failures_left, losses_left,
                                    upstream_remaining, upstream_failed, upstream_unsucceeded, "when", required,
                                    dependents, finished_at)
    select fresh.id, run.organization_id, run.id, d.id, fresh.becomes, d.attempts - 1, d.lost, fresh.remaining,
           fresh.failed, fresh.unsucceeded, fresh."when", fresh.required, fresh.dependents,
           case when fresh.becomes = 'skipped' then flowforge.clock() end
      from fresh
     cross join going run
      join flowforge.task d on d.id = fresh.task
), gone as (
    delete from flowforge.outbox_message o
     where o.task_run_id = any(array(select id from own where state = 'ready'))
    returning o.task_run_id, o.available_at
), owed as (
    insert into flowforge.outbox_message (organization_id, task_run_id, workflow_run_id, routing_key, priority, payload,
                                          fencing_token_snapshot, attempt_snapshot, available_at, start_by)
    select run.organization_id, due.id, run.id, d.queue, run.priority,
           jsonb_build_object('workflow', w.name, 'key', d.key, 'task', d.id), due.token, due.attempt,
           coalesce(gone.available_at, flowforge.clock()),   -- the wait before a retry goes on
           greatest(gone.available_at, flowforge.clock()) + d.start_by
      from (select id, task, token + 1 as token, attempt from own where becomes = 'ready'
             union all
            select id, task, 0, 1 from fresh where becomes = 'ready') due
     cross join going run
      join flowforge.task d on d.id = due.task
      join flowforge.workflow w on w.id = d.workflow_id
      left join gone on gone.task_run_id = due.id
), task_told as (
    insert into flowforge.task_run_event (organization_id, task_run_id, kind, from_state, to_state, attempt,
                                          fencing_token, detail)
    select organization_id, id, case when becomes = 'skipped' then 'skipped' else 'moved' end, state, becomes, attempt,
           token + 1, jsonb_build_object('to', %(workflow)s::text)
      from own
     where hands = 1
     union all
    select run.organization_id, fresh.id, 'created', null, fresh.becomes, 1, 0, jsonb_build_object('to', %(workflow)s::text)
      from fresh
     cross join going run
), counted as (
    update flowforge.workflow_run r
       set workflow_id = %(workflow)s::uuid, tasks_remaining = %(remaining)s, tasks_failed = %(failed)s,
           tasks_cancelled = %(cancelled)s,
           state = case when %(remaining)s > 0 then r.state
                        when %(failed)s > 0 then 'failed'
                        when %(cancelled)s > 0 then 'cancelled'
                        else 'succeeded'
                   end,
           finished_at = case when %(remaining)s = 0 then greatest(r.started_at, flowforge.clock()) end
      from going
      join run on run.id = going.id
     where r.id = run.id and run.state in ('pending', 'running')
    returning r.id, r.organization_id, run.workflow_id as before, run.state as from_state, r.state
), run_told as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, from_state, to_state, detail)
    select organization_id, id, 'moved', from_state, from_state,
           jsonb_build_object('from', before, 'to', %(workflow)s::text)
      from counted
     union all
    select organization_id, id, state, from_state, state, null
      from counted
     where state not in ('pending', 'running')
)
select id
  from counted;


-- name: cancel
-- pending, ready -> cancelled, at a token that becomes one more; running is asked; run: -> its outcome at zero
-- Of whole runs, or of the `tasks` that are named of them. Of a run that has begun, `all_done` tasks still run, because
-- cleaning up is what they are for, unless `now`. Nothing of a run that is cancelled stays paused. With `overdue` only a
-- run whose deadline has passed, and that nobody has cancelled yet.
-- A dependent that reaches zero becomes ready, or comes back as `unwanted`: skip is then due in the same transaction.
with run as materialized (
    select r.id, r.organization_id, r.workflow_id, r.state, r.priority, r.cancel_requested_at, r.deadline
      from flowforge.workflow_run r
     where r.id = any(%(runs)s::uuid[])
     order by r.id
       for no key update
), held as materialized (
    select t.id, t.organization_id, t.workflow_run_id, t.state, t.fencing_token, t.attempt, t.required, t."when",
           t.dependents, t.cancel_requested_at
      from flowforge.task_run t
     where (select count(*) from run) >= 0 and t.workflow_run_id = any(%(runs)s::uuid[])
     order by t.id
       for no key update
), going as materialized (
    select run.*
      from run
     where run.state in ('pending', 'running')
       and (not %(overdue)s or run.deadline < flowforge.clock() and run.cancel_requested_at is null)
), chosen as materialized (
    select held.*
      from held
      join going as run on run.id = held.workflow_run_id
     where held.state in ('pending', 'ready', 'running')
       and (%(whole)s and (held."when" <> 'all_done' or %(now)s or run.state = 'pending')
            or held.id = any(%(tasks)s::uuid[]))
), ended as (
    update flowforge.task_run t
       set state = 'cancelled', fencing_token = t.fencing_token + 1, deferred_because = null,
           finished_at = greatest(t.started_at, flowforge.clock())
      from chosen
     where t.id = chosen.id and chosen.state in ('pending', 'ready')
), asked as (
    update flowforge.task_run t
       set cancel_requested_at = flowforge.clock()
      from chosen
     where t.id = chosen.id and chosen.state = 'running' and chosen.cancel_requested_at is null
    returning t.id, t.organization_id, t.attempt, t.fencing_token
), gone as (
    delete from flowforge.outbox_message o
     where o.task_run_id = any(array(select id from chosen where state = 'ready'))
), news as materialized (
    select dependent.id, count(*)::int as told
      from chosen
     cross join unnest(chosen.dependents) as dependent (id)
     where chosen.state in ('pending', 'ready')
     group by dependent.id
), dependent as (
    update flowforge.task_run t
       set upstream_remaining = t.upstream_remaining - news.told,
           upstream_unsucceeded = t.upstream_unsucceeded + news.told,
           state = case when t.upstream_remaining > news.told then 'pending'
                        when t."when" = 'all_done'
                          or t."when" = 'none_failed' and t.upstream_failed = 0
                          or t."when" = 'any_failed' and t.upstream_failed > 0 then 'ready'
                        else 'pending'
                   end
      from news
      join held on held.id = news.id
     where t.id = held.id and held.state = 'pending' and held.id not in (select id from chosen)
    returning t.id, t.organization_id, t.workflow_run_id, t.task_id, t.state, t.fencing_token, t.attempt,
              t.upstream_remaining
), owed as (
    insert into flowforge.outbox_message (organization_id, task_run_id, workflow_run_id, routing_key, priority, payload,
                                          fencing_token_snapshot, attempt_snapshot, start_by)
    select d.organization_id, d.id, d.workflow_run_id, t.queue, run.priority,
           jsonb_build_object('workflow', w.name, 'key', t.key, 'task', t.id), d.fencing_token, d.attempt,
           flowforge.clock() + t.start_by
      from dependent d
      join run on run.id = d.workflow_run_id
      join flowforge.task t on t.id = d.task_id
      join flowforge.workflow w on w.id = run.workflow_id
     where d.state = 'ready'
), lifted as (
    delete from flowforge.pause p
     using going as run
     where %(whole)s and p.kind = 'run' and p.organization_id = run.organization_id and p.subject = run.id::text
), task_told as (
    insert into flowforge.task_run_event (organization_id, task_run_id, kind, from_state, to_state, attempt,
                                          fencing_token, detail)
    select organization_id, id, 'cancelled', state, 'cancelled', attempt, fencing_token + 1, %(detail)s::jsonb
      from chosen
     where state in ('pending', 'ready')
     union all
    select organization_id, id, 'cancel_requested', 'running', 'running', attempt, fencing_token, %(detail)s::jsonb
      from asked
     union all
    select organization_id, id, 'readied', 'pending', 'ready', attempt, fencing_token, null
      from dependent
     where state = 'ready'
), tally as materialized (
    select run.id, count(chosen.id)::int as ended, count(chosen.id) filter (where chosen.required)::int as cancelled
      from going as run
      left join chosen on chosen.workflow_run_id = run.id and chosen.state in ('pending', 'ready')
     group by run.id
), counted as (
    update flowforge.workflow_run r
       set tasks_remaining = r.tasks_remaining - tally.ended,
           tasks_cancelled = r.tasks_cancelled + tally.cancelled,
           cancel_requested_at = case when %(whole)s then coalesce(r.cancel_requested_at, flowforge.clock())
                                      else r.cancel_requested_at
                                 end,
           state = case when r.tasks_remaining > tally.ended then r.state
                        when r.tasks_failed > 0 then 'failed'
                        when %(whole)s or r.cancel_requested_at is not null or r.tasks_cancelled + tally.cancelled > 0
                        then 'cancelled'
                        else 'succeeded'
                   end,
           finished_at = case when r.tasks_remaining = tally.ended
                              then greatest(r.started_at, flowforge.clock())
                         end
      from tally
      join run on run.id = tally.id
     where r.id = run.id and run.state in ('pending', 'running')
    returning r.id, r.organization_id, run.state as from_state, r.state, r.tasks_remaining,
              run.cancel_requested_at is null as first
), run_told as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, from_state, to_state, detail)
    select organization_id, id, 'cancel_requested', from_state, from_state, %(detail)s::jsonb
      from counted
     where %(whole)s and first
     union all
    select organization_id, id, state, from_state, state, null
      from counted
     where tasks_remaining = 0
)
select run.id, run.id as workflow_run_id, null::bigint as token, coalesce(counted.state, run.state) as became,
       counted.id is not null as accepted
  from run
  left join counted on counted.id = run.id
 union all
select id, workflow_run_id, fencing_token, case when state = 'running' then 'asked' else 'cancelled' end, true
  from chosen
 union all
select held.id, held.workflow_run_id, held.fencing_token, held.state, false
  from held
 where held.id = any(%(tasks)s::uuid[]) and held.id not in (select id from chosen)
 union all
select id, workflow_run_id, fencing_token, case state when 'ready' then 'ready' else 'unwanted' end, true
  from dependent
 where upstream_remaining = 0;


-- name: rerun
-- any -> ready | pending at a token that becomes one more, for the chosen task runs and all that depend on them
-- run: succeeded | failed | cancelled -> running. Budgets are fresh, counters are counted anew over the locked rows.
-- Where a chosen task's rule is not met by upstreams that stay as they are, nothing is changed and it comes back.
with recursive run as materialized (
    select r.id, r.organization_id, r.workflow_id, r.state, r.priority
      from flowforge.workflow_run r
     where r.id = %(run)s::uuid
     order by r.id
       for no key update
), held as materialized (
    select t.id, t.organization_id, t.task_id, t.state, t.fencing_token, t.attempt, t.started_at, t."when", t.required,
           t.dependents
      from flowforge.task_run t
     where (select count(*) from run) >= 0 and t.workflow_run_id = %(run)s::uuid
     order by t.id
       for no key update
), chosen as materialized (
    select held.id
      from held
     where held.id = any(%(tasks)s::uuid[])
        or cardinality(%(tasks)s::uuid[]) = 0 and held.state in ('failed', 'cancelled')
), again (id) as (
    select id
      from chosen
     union
    select unnest(held.dependents)
      from again
      join held on held.id = again.id
), upstream as materialized (
    select dependent.id, count(*)::int as number, count(*) filter (where held.id in (select id from again))::int as remaining,
           count(*) filter (where held.id not in (select id from again) and held.state = 'failed')::int as failed,
           count(*) filter (where held.id not in (select id from again) and held.state <> 'succeeded')::int as unsucceeded
      from held
     cross join unnest(held.dependents) as dependent (id)
     where dependent.id in (select id from again)
     group by dependent.id
), recount as materialized (
    select held.*, coalesce(upstream.remaining, 0) as remaining, coalesce(upstream.failed, 0) as failed,
           coalesce(upstream.unsucceeded, 0) as unsucceeded,
           case when upstream.remaining > 0 then 'pending'
                when upstream.number is null or held."when" = 'all_done'
                  or held."when" = 'all_succeeded' and upstream.unsucceeded = 0
                  or held."when" = 'none_failed' and upstream.failed = 0
                  or held."when" = 'any_failed' and upstream.failed > 0 then 'ready'
                else 'unwanted'
           end as becomes
      from held
      left join upstream on upstream.id = held.id
     where held.id in (select id from again)
), going as materialized (
    select run.*
      from run
     where run.state in ('succeeded', 'failed', 'cancelled')
       and (select count(*) from recount) > 0
       and (select count(*) from recount where becomes = 'unwanted') = 0
), own as materialized (
    select recount.*
      from recount
     cross join going
), rerun as (
    update flowforge.task_run t
       set state = own.becomes, fencing_token = t.fencing_token + 1,
           attempt = t.attempt + (own.started_at is not null)::int,
           failures_left = d.attempts - 1, losses_left = d.lost, upstream_remaining = own.remaining,
           upstream_failed = own.failed, upstream_unsucceeded = own.unsucceeded, result = null, error = null,
           deferred_because = null, cancel_requested_at = null, started_at = null, finished_at = null
      from own
      join flowforge.task d on d.id = own.task_id
     where t.id = own.id
    returning t.id, t.organization_id, t.state, t.attempt, t.fencing_token, own.state as before, d.queue, d.key,
              d.id as task_id, d.start_by
), owed as (
    insert into flowforge.outbox_message (organization_id, task_run_id, workflow_run_id, routing_key, priority, payload,
                                          fencing_token_snapshot, attempt_snapshot, start_by)
    select rerun.organization_id, rerun.id, going.id, rerun.queue, going.priority,
           jsonb_build_object('workflow', w.name, 'key', rerun.key, 'task', rerun.task_id), rerun.fencing_token,
           rerun.attempt, flowforge.clock() + rerun.start_by
      from rerun
     cross join going
      join flowforge.workflow w on w.id = going.workflow_id
     where rerun.state = 'ready'
), task_told as (
    insert into flowforge.task_run_event (organization_id, task_run_id, kind, from_state, to_state, attempt,
                                          fencing_token, detail)
    select organization_id, id, 'rerun', before, state, attempt, fencing_token, %(detail)s::jsonb
      from rerun
), counted as (
    update flowforge.workflow_run r
       set state = 'running', finished_at = null, started_at = coalesce(r.started_at, flowforge.clock()),
           cancel_requested_at = null,
           deadline = flowforge.clock() + r.allowed,
           tasks_remaining = (select count(*) from own),
           tasks_failed = (select count(*) from held
                            where held.state = 'failed' and held.required and held.id not in (select id from own)),
           tasks_cancelled = (select count(*) from held
                               where held.state = 'cancelled' and held.required and held.id not in (select id from own))
      from going
      join run on run.id = going.id
     where r.id = run.id and run.state in ('succeeded', 'failed', 'cancelled')
    returning r.id, r.organization_id, run.state as from_state
), run_told as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, from_state, to_state, detail)
    select organization_id, id, 'rerun', from_state, 'running', %(detail)s::jsonb
      from counted
)
select recount.id, d.key, recount.becomes, run.state as run_state, counted.id is not null as accepted
  from run
  left join recount on true
  left join flowforge.task d on d.id = recount.task_id
  left join counted on counted.id = run.id
 order by d.position;


-- name: pause
-- nothing of a run, a workflow or a queue is dispatched from now on; what runs goes on. A run must not have ended.
with run as materialized (
    select r.id, r.organization_id, r.state
      from flowforge.workflow_run r
     where r.id = %(run)s::uuid and r.organization_id = %(organization)s::uuid
     order by r.id
       for no key update
), paused as (
    insert into flowforge.pause (organization_id, kind, subject, reason, paused_by)
    select %(organization)s::uuid, %(kind)s::text, %(subject)s::text, %(reason)s::text, %(by)s::text
     where %(kind)s::text <> 'run' or 0 < (select count(*) from run where run.state in ('pending', 'running'))
        on conflict on constraint uniq_pause_organization_kind_subject do nothing
    returning id
), run_told as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, from_state, to_state, detail)
    select run.organization_id, run.id, 'paused', run.state, run.state,
           jsonb_build_object('by', %(by)s::text, 'reason', %(reason)s::text)
      from run
     cross join paused
)
select id
  from paused;


-- name: resume
-- what a pause held back may be dispatched again; unhold is due then
with run as materialized (
    select r.id, r.organization_id, r.state
      from flowforge.workflow_run r
     where r.id = %(run)s::uuid and r.organization_id = %(organization)s::uuid
     order by r.id
       for no key update
), resumed as (
    delete from flowforge.pause p
     where (select count(*) from run) >= 0
       and p.organization_id = %(organization)s::uuid and p.kind = %(kind)s::text and p.subject = %(subject)s::text
    returning p.id
), run_told as (
    insert into flowforge.workflow_run_event (organization_id, workflow_run_id, kind, from_state, to_state, detail)
    select run.organization_id, run.id, 'resumed', run.state, run.state,
           jsonb_build_object('by', %(by)s::text, 'reason', %(reason)s::text)
      from run
     cross join resumed
     where run.state in ('pending', 'running')
)
select id
  from resumed;


-- name: unhold
-- outbox: held -> due again, where nothing pauses it any more
-- Each kind is looked up by itself: workflows and queues, which are few, in hash tables, and runs by the index. As one
-- join it was each held row for each pause.
with free as materialized (
    select o.id
      from flowforge.outbox_message o
     where o.held
       and (o.organization_id, o.payload ->> 'workflow')
           not in (select p.organization_id, p.subject from flowforge.pause p where p.kind = 'workflow')
       and (o.organization_id, o.routing_key)
           not in (select p.organization_id, p.subject from flowforge.pause p where p.kind = 'queue')
       and 0 = (select count(*)
                  from flowforge.pause p
                 where p.organization_id = o.organization_id and p.kind = 'run' and p.subject = o.workflow_run_id::text)
     order by o.created_at
     limit %(limit)s
       for no key update skip locked
)
update flowforge.outbox_message o
   set held = false
 where o.id = any(array(select id from free))
returning o.id;


-- name: forget
-- idempotency keys: expired -> –
with expired as materialized (
    select k.id
      from flowforge.idempotency_key k
     where k.expires_at < (select flowforge.clock())
     order by k.expires_at
     limit %(limit)s
       for no key update skip locked
)
delete from flowforge.idempotency_key k
 where k.id = any(array(select id from expired))
returning k.id;


-- name: guard
-- running, at the caller's token: locked until the caller's own transaction ends, so that nobody takes it meanwhile
-- flowforge.guard in schema.sql is the same for those who write SQL. `here` then says whether that transaction goes on:
-- in autocommit the lock is gone with the statement, and a guard without a lock does not fence.
with held as materialized (
    select t.id
      from flowforge.task_run t
     where t.id = %(id)s::uuid and t.state || '' = 'running' and t.fencing_token = %(token)s
       for share
)
select count(*) = 1 as owned, pg_current_xact_id()::text as transaction
  from held;


-- name: here
-- no change: whether the transaction of a guard is still open
select coalesce(pg_current_xact_id_if_assigned()::text = %(transaction)s, false) as here;
