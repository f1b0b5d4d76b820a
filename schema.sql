-- FlowForge's nouns, whole: every table, constraint, index, function and guard.
-- The verbs, which change the states kept here, are in flowforge/transitions/statements.sql.
-- The query that each index serves is named in docs/data-model.md. PostgreSQL 15 or newer.

create schema if not exists flowforge;

-- The clock of every verb. Tests replace it to move time.
create function flowforge.clock() returns timestamptz
    language sql volatile
    as $$ select clock_timestamp() $$;

create function flowforge.guard_immutable() returns trigger
    language plpgsql
    as $$ begin
        raise exception '%.% rows are immutable: write a new row instead', tg_table_schema, tg_table_name
              using errcode = 'restrict_violation';
    end $$;


-- Tenancy -----------------------------------------------------------------------------------------------------------

create table flowforge.organization (
    id          uuid primary key default gen_random_uuid(),
    slug        varchar(63) not null,
    name        varchar(200) not null,
    created_at  timestamptz not null default flowforge.clock(),
    constraint uniq_organization_slug unique (slug),
    constraint organization_slug_valid check (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$' collate "C"),
    constraint organization_name_not_blank check (length(trim(name)) > 0)
);

insert into flowforge.organization (id, slug, name)
values ('00000000-0000-4000-8000-000000000000', 'default', 'Default');


-- Definitions: immutable once stored --------------------------------------------------------------------------------

create table flowforge.workflow (
    id               uuid primary key default gen_random_uuid(),
    organization_id  uuid not null references flowforge.organization on delete restrict,
    name             varchar(63) not null,
    version          integer not null,
    digest           varchar(64) not null,                  -- SHA-256 of the structure that the version stands for
    description      text not null default '',
    deadline         interval,                              -- of a run, from its start
    created_at       timestamptz not null default flowforge.clock(),
    constraint uniq_workflow_name_version unique (organization_id, name, version),
    constraint uniq_workflow_name_digest unique (organization_id, name, digest),
    constraint workflow_version_positive check (version >= 1),
    constraint workflow_name_valid check (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$' collate "C"),
    constraint workflow_digest_valid check (digest ~ '^[0-9a-f]{64}$' collate "C"),
    constraint workflow_deadline_positive check (deadline > interval '0')
);

create table flowforge.task (
    id               uuid primary key default gen_random_uuid(),
    workflow_id      uuid not null references flowforge.workflow on delete cascade,
    key              varchar(200) not null,
    position         integer not null,                      -- 1, 2, … in the order of definition: upstreams come first
    queue            varchar(63) not null default 'default',
    "when"           varchar(20) not null default 'all_succeeded',
    required         boolean not null default true,
    inputs           jsonb not null default '{}',           -- argument name -> where its value comes from
    attempts         integer not null default 1,            -- starts allowed when the function fails
    lost             integer not null default 2,            -- further starts allowed when its worker is lost
    retry_delay      interval not null default '1 second',
    retry_factor     double precision not null default 2,
    retry_max_delay  interval not null default '5 minutes',
    timeout          interval not null default '1 hour',    -- of one attempt
    start_by         interval,                              -- the longest wait for a worker
    lease            interval,                              -- of one attempt, where it is not the fleet's
    created_at       timestamptz not null default flowforge.clock(),
    constraint uniq_task_workflow_key unique (workflow_id, key),
    constraint uniq_task_workflow_position unique (workflow_id, position),
    constraint task_key_valid check (key ~ '^[A-Za-z0-9_.:-]{1,200}$' collate "C"),
    constraint task_queue_valid check (queue ~ '^[A-Za-z0-9_.:-]{1,63}$' collate "C"),
    constraint task_position_positive check (position >= 1),
    constraint task_when_valid check ("when" in ('all_succeeded', 'none_failed', 'all_done', 'any_failed')),
    constraint task_inputs_object check (jsonb_typeof(inputs) = 'object'),
    constraint task_attempts_in_range check (attempts between 1 and 1000),
    constraint task_lost_in_range check (lost between 0 and 1000),
    constraint task_retry_delay_in_range check (retry_delay >= interval '0' and retry_max_delay >= retry_delay),
    constraint task_retry_factor_in_range check (retry_factor between 1 and 100),
    constraint task_timeout_positive check (timeout > interval '0'),
    constraint task_start_by_positive check (start_by > interval '0'),
    constraint task_lease_positive check (lease > interval '0')
);

create table flowforge.task_dependency (
    upstream_id    uuid not null references flowforge.task on delete cascade,
    downstream_id  uuid not null references flowforge.task on delete cascade,
    primary key (upstream_id, downstream_id),
    constraint task_dependency_not_itself check (upstream_id <> downstream_id)
);

create table flowforge.deployment (
    id               uuid primary key default gen_random_uuid(),
    organization_id  uuid not null references flowforge.organization on delete restrict,
    workflow_id      uuid not null references flowforge.workflow on delete restrict,
    repository       varchar(140),
    ref              varchar(255),
    commit           varchar(64),
    deployed_by      varchar(200) not null,
    number           bigint not null generated always as identity,  -- the order, whatever the clock does
    created_at       timestamptz not null default flowforge.clock(),
    constraint deployment_ref_needs_repository check (repository is not null or (ref is null and commit is null))
);


-- Runs --------------------------------------------------------------------------------------------------------------

create table flowforge.workflow_run (
    id                   uuid primary key default gen_random_uuid(),
    organization_id      uuid not null references flowforge.organization on delete restrict,
    workflow_id          uuid not null references flowforge.workflow on delete restrict,
    parent_task_run_id   uuid,                              -- the task run that started this one, if any
    state                varchar(20) not null default 'pending',
    parameters           jsonb not null default '{}',
    priority             smallint not null default 0,       -- lower goes first
    tasks_remaining      integer not null,                  -- task runs that are not terminal
    tasks_failed         integer not null default 0,        -- required task runs that ended failed
    tasks_cancelled      integer not null default 0,        -- required task runs that ended cancelled
    cancel_requested_at  timestamptz,
    allowed              interval,                          -- from its start, or from a rerun, to its deadline
    deadline             timestamptz,                       -- the run is to be over by then
    created_at           timestamptz not null default flowforge.clock(),
    started_at           timestamptz,
    finished_at          timestamptz,
    constraint wfrun_state_valid
         check (state in ('pending', 'running', 'succeeded', 'failed', 'cancelled')),
    constraint wfrun_finished_at_matches_state
         check ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint wfrun_nothing_remains_iff_finished
         check ((tasks_remaining = 0) = (finished_at is not null)),
    constraint wfrun_started_at_matches_state check (state <> 'running' or started_at is not null),
    constraint wfrun_finished_after_started
         check (finished_at is null or started_at is null or finished_at >= started_at),
    constraint wfrun_counters_non_negative check (tasks_remaining >= 0 and tasks_failed >= 0 and tasks_cancelled >= 0),
    constraint wfrun_parameters_object check (jsonb_typeof(parameters) = 'object'),
    constraint wfrun_priority_in_range check (priority between -100 and 100),
    constraint wfrun_deadline_after_created check (deadline > created_at),
    constraint wfrun_deadline_iff_allowed check ((allowed is null) = (deadline is null))
);

create table flowforge.task_run (
    id                    uuid primary key default gen_random_uuid(),
    organization_id       uuid not null,                    -- copied from the run by the statement
    workflow_run_id       uuid not null references flowforge.workflow_run on delete cascade,
    task_id               uuid not null references flowforge.task on delete restrict,
    state                 varchar(20) not null default 'pending',
    attempt               integer not null default 1,       -- the attempt now owned or next due
    fencing_token         bigint not null default 0,        -- one more with every change of hands
    lease_owner           varchar(200),
    lease_expires_at      timestamptz,
    failures_left         integer not null,
    losses_left           integer not null,
    upstream_remaining    integer not null default 0,       -- direct upstreams that are not terminal
    upstream_failed       integer not null default 0,
    upstream_unsucceeded  integer not null default 0,
    "when"                varchar(20) not null default 'all_succeeded',
    required              boolean not null default true,
    dependents            uuid[] not null default '{}',     -- the task runs that count this one as an upstream
    result                jsonb,
    error                 jsonb,                            -- type, message and traceback of the last failure
    deferred_because      text,                             -- why no worker of this kind could take it, until one does
    cancel_requested_at   timestamptz,
    created_at            timestamptz not null default flowforge.clock(),
    started_at            timestamptz,                      -- of the present attempt, once it has begun
    finished_at           timestamptz,
    constraint uniq_taskrun_per_run_task unique (workflow_run_id, task_id),
    constraint taskrun_state_valid
         check (state in ('pending', 'ready', 'running', 'succeeded', 'failed', 'cancelled', 'skipped')),
    constraint taskrun_attempt_positive check (attempt >= 1),
    constraint taskrun_fencing_non_negative check (fencing_token >= 0),
    constraint taskrun_finished_after_started
         check (finished_at is null or started_at is null or finished_at >= started_at),
    constraint taskrun_lease_iff_running check ((state = 'running') = (lease_expires_at is not null)),
    constraint taskrun_owner_iff_lease check ((lease_owner is null) = (lease_expires_at is null)),
    constraint taskrun_finished_at_matches_state
         check ((state in ('succeeded', 'failed', 'cancelled', 'skipped')) = (finished_at is not null)),
    constraint taskrun_started_at_matches_state check (state <> 'running' or started_at is not null),
    constraint taskrun_budgets_non_negative check (failures_left >= 0 and losses_left >= 0),
    constraint taskrun_upstream_non_negative
         check (upstream_remaining >= 0 and upstream_failed >= 0 and upstream_unsucceeded >= upstream_failed),
    constraint taskrun_waits_only_while_pending
         check (upstream_remaining = 0 or state in ('pending', 'cancelled')),
    constraint taskrun_when_valid check ("when" in ('all_succeeded', 'none_failed', 'all_done', 'any_failed')),
    constraint taskrun_result_only_if_succeeded check (result is null or state = 'succeeded'),
    constraint taskrun_cancel_requested_while_running_or_cancelled
         check (cancel_requested_at is null or state in ('running', 'cancelled'))
);

alter table flowforge.workflow_run
    add constraint wfrun_parent_fkey foreign key (parent_task_run_id)
        references flowforge.task_run on delete set null;

create table flowforge.outbox_message (
    id                      uuid primary key default gen_random_uuid(),
    organization_id         uuid not null,
    task_run_id             uuid not null references flowforge.task_run on delete cascade,
    workflow_run_id         uuid not null references flowforge.workflow_run on delete cascade,
    exchange                varchar(63) not null default 'flowforge',
    routing_key             varchar(63) not null,           -- the queue
    priority                smallint not null default 0,
    payload                 jsonb not null,                 -- what a worker must know before it claims
    fencing_token_snapshot  bigint not null,
    attempt_snapshot        integer not null,
    available_at            timestamptz not null default flowforge.clock(),
    held                    boolean not null default false, -- not to be dispatched until it is released
    start_by                timestamptz,                    -- given up unless a worker has started it by then
    published_at            timestamptz,
    created_at              timestamptz not null default flowforge.clock(),
    constraint uniq_outbox_per_taskrun_generation unique (task_run_id, fencing_token_snapshot),
    constraint outbox_payload_object check (jsonb_typeof(payload) = 'object'),
    constraint outbox_attempt_positive check (attempt_snapshot >= 1),
    constraint outbox_fencing_non_negative check (fencing_token_snapshot >= 0),
    constraint outbox_priority_in_range check (priority between -100 and 100),
    constraint outbox_held_is_not_published check (not held or published_at is null),
    constraint outbox_start_by_after_created check (start_by > created_at)
);


-- History: appended by the statement that makes the change ---------------------------------------------------------

create table flowforge.workflow_run_event (
    id               uuid primary key default gen_random_uuid(),
    organization_id  uuid not null,
    workflow_run_id  uuid not null references flowforge.workflow_run on delete cascade,
    kind             varchar(30) not null,
    from_state       varchar(20),
    to_state         varchar(20),
    detail           jsonb,
    number           bigint not null generated always as identity,  -- the order, whatever the clock does
    created_at       timestamptz not null default flowforge.clock(),
    constraint wfrun_event_kind_valid
         check (kind in ('created', 'started', 'succeeded', 'failed', 'cancelled', 'moved',
                         'cancel_requested', 'paused', 'resumed', 'rerun'))
);

create table flowforge.task_run_event (
    id               uuid primary key default gen_random_uuid(),
    organization_id  uuid not null,
    task_run_id      uuid not null references flowforge.task_run on delete cascade,
    kind             varchar(30) not null,
    from_state       varchar(20),
    to_state         varchar(20),
    attempt          integer not null,
    fencing_token    bigint not null,                       -- as it is after the change
    detail           jsonb,
    number           bigint not null generated always as identity,  -- the order, whatever the clock does
    created_at       timestamptz not null default flowforge.clock(),
    constraint taskrun_event_kind_valid
         check (kind in ('created', 'readied', 'claimed', 'succeeded', 'failed', 'cancelled', 'skipped',
                         'retried', 'handed_back', 'deferred', 'expired', 'refused', 'moved',
                         'cancel_requested', 'rerun'))
);


-- What people decide ------------------------------------------------------------------------------------------------

create table flowforge.pause (
    id               uuid primary key default gen_random_uuid(),
    organization_id  uuid not null references flowforge.organization on delete cascade,
    kind             varchar(20) not null,
    subject          varchar(200) not null,                 -- a run's id, a workflow's name, or a queue
    reason           text not null default '',
    paused_by        varchar(200) not null,
    created_at       timestamptz not null default flowforge.clock(),
    constraint uniq_pause_organization_kind_subject unique (organization_id, kind, subject),
    constraint pause_kind_valid check (kind in ('run', 'workflow', 'queue'))
);

-- Whether anything of this may be dispatched. Asked only while there is any pause.
create function flowforge.is_paused(organization uuid, run uuid, workflow text, queue text) returns boolean
    language sql stable
    as $$
        select exists (select
                         from flowforge.pause p
                        where p.organization_id = organization
                          and (p.kind, p.subject) in (('run', run::text), ('workflow', workflow), ('queue', queue)))
    $$;

create table flowforge.audit_log (
    id               uuid primary key default gen_random_uuid(),
    organization_id  uuid not null references flowforge.organization on delete restrict,
    principal        varchar(200) not null,                 -- who: `cli:user@host`
    action           varchar(60) not null,                  -- what was done, as `run.cancel`
    subject_kind     varchar(30) not null,
    subject          varchar(200) not null,
    detail           jsonb not null default '{}',
    created_at       timestamptz not null default flowforge.clock(),
    constraint audit_log_principal_not_blank check (length(trim(principal)) > 0),
    constraint audit_log_action_valid check (action ~ '^[a-z_]+\.[a-z_]+$' collate "C"),
    constraint audit_log_detail_object check (jsonb_typeof(detail) = 'object')
);


-- Idempotency -------------------------------------------------------------------------------------------------------

create table flowforge.idempotency_key (
    id               uuid primary key default gen_random_uuid(),
    organization_id  uuid not null references flowforge.organization on delete cascade,
    user_id          varchar(200),
    key              varchar(255) not null,
    fingerprint      varchar(64) not null,                  -- SHA-256 of the workflow's name and the canonical parameters
    workflow_run_id  uuid not null,                         -- no foreign key: the answer outlives the run
    expires_at       timestamptz not null,
    created_at       timestamptz not null default flowforge.clock(),
    constraint uniq_idempotency_organization_user_key unique nulls not distinct (organization_id, user_id, key),
    constraint idempotency_key_not_empty check (length(key) > 0),
    constraint idempotency_fingerprint_valid check (fingerprint ~ '^[0-9a-f]{64}$' collate "C"),
    constraint idempotency_expires_after_created check (expires_at > created_at)
);


-- Indexes -----------------------------------------------------------------------------------------------------------

create index idx_dependency_downstream on flowforge.task_dependency (downstream_id);
create index idx_deployment_workflow   on flowforge.deployment (workflow_id, number desc);
create index idx_wfrun_wf_recent       on flowforge.workflow_run (workflow_id, created_at desc);
create index idx_wfrun_org_recent      on flowforge.workflow_run (organization_id, created_at desc);
create index idx_wfrun_state_age       on flowforge.workflow_run (state, created_at);
create index idx_wfrun_parent          on flowforge.workflow_run (parent_task_run_id) where parent_task_run_id is not null;
create index idx_taskrun_state_age     on flowforge.task_run (state, created_at);
create index idx_taskrun_run_state     on flowforge.task_run (workflow_run_id, state);
create index idx_taskrun_task          on flowforge.task_run (task_id);
create index idx_taskrun_lease_expiry  on flowforge.task_run (lease_expires_at) where state = 'running';
create index idx_taskrun_cancel_requested on flowforge.task_run (cancel_requested_at)
                                       where state = 'running' and cancel_requested_at is not null;
create index idx_wfrun_deadline        on flowforge.workflow_run (deadline)
                                       where deadline is not null and finished_at is null;
create index idx_outbox_pending        on flowforge.outbox_message (routing_key, priority, available_at)
                                       where published_at is null and not held;
create index idx_outbox_held           on flowforge.outbox_message (created_at) where held;
create index idx_outbox_start_by       on flowforge.outbox_message (start_by) where start_by is not null;
create index idx_outbox_published      on flowforge.outbox_message (published_at) where published_at is not null;
create index idx_outbox_run            on flowforge.outbox_message (workflow_run_id);
create index idx_wfrun_event_run_created on flowforge.workflow_run_event (workflow_run_id, created_at);
create index idx_event_taskrun_created on flowforge.task_run_event (task_run_id, created_at);
create index idx_idempotency_expiry    on flowforge.idempotency_key (expires_at);
create index idx_audit_log_org_recent  on flowforge.audit_log (organization_id, created_at desc);
create index idx_audit_log_subject     on flowforge.audit_log (organization_id, subject, created_at desc);


-- Guards ------------------------------------------------------------------------------------------------------------

create trigger guard_immutable before update on flowforge.workflow
    for each statement execute function flowforge.guard_immutable();
create trigger guard_immutable before update on flowforge.task
    for each statement execute function flowforge.guard_immutable();
create trigger guard_immutable before update on flowforge.task_dependency
    for each statement execute function flowforge.guard_immutable();
create trigger guard_immutable before update on flowforge.deployment
    for each statement execute function flowforge.guard_immutable();
create trigger guard_immutable before update on flowforge.workflow_run_event
    for each statement execute function flowforge.guard_immutable();
create trigger guard_immutable before update on flowforge.task_run_event
    for each statement execute function flowforge.guard_immutable();
create trigger guard_immutable before update or delete or truncate on flowforge.audit_log
    for each statement execute function flowforge.guard_immutable();


-- For everything that is not Python ------------------------------------------------------------------------------------

-- Lock a task run in the caller's transaction, so that nobody takes it until that ends. Raises where it is not owned at
-- this token any more: the transaction is to be rolled back then.
create function flowforge.guard(task_run uuid, token bigint) returns void
    language plpgsql
    as $$
begin
    perform from flowforge.task_run t
      where t.id = guard.task_run and t.state || '' = 'running' and t.fencing_token = guard.token
        for share;
    if not found then
        raise exception 'task run % is no longer owned at token %', guard.task_run, guard.token
              using errcode = 'serialization_failure', hint = 'roll back, and write nothing: another worker owns it';
    end if;
end $$;


-- Start a run of a workflow's current version (the one deployed last) in the caller's transaction; return its id.
-- The statement in it is the verb start_run, word for word: tests/contract compares them.
create function flowforge.start(
    workflow         text,
    parameters       jsonb    default '{}',
    idempotency_key  text     default null,
    priority         integer  default 0,
    organization     text     default 'default',
    deadline         interval default null                  -- from now; null: the workflow's own, if it has one
) returns uuid
    language plpgsql
    as $$
#variable_conflict use_column
<<given>>
declare
    runs        uuid[] := array[gen_random_uuid()];
    workflows   uuid[];
    parameters  text[] := array[start.parameters::text];
    priorities  smallint[];
    deadlines   interval[] := array[start.deadline];
    keys        text[] := array[start.idempotency_key];
    "user"      text;
    ttl         interval := '1 day';
    answer      record;
begin
    if jsonb_typeof(start.parameters) is distinct from 'object' then
        raise exception 'parameters of workflow % must be a JSON object, not %', start.workflow, start.parameters
              using errcode = 'invalid_parameter_value';
    end if;
    if start.priority is null or start.priority not between -100 and 100 then
        raise exception 'priority must lie between -100 and 100, not %', start.priority
              using errcode = 'invalid_parameter_value';
    end if;
    given.priorities := array[start.priority];
    if start.deadline <= interval '0' then
        raise exception 'deadline must be positive, not %', start.deadline using errcode = 'invalid_parameter_value';
    end if;
    if length(start.idempotency_key) not between 1 and 255 then
        raise exception 'idempotency_key must be 1-255 characters, not %', length(start.idempotency_key)
              using errcode = 'invalid_parameter_value';
    end if;
    select array_agg(found.id) into given.workflows
      from (select w.id
              from flowforge.workflow w
              join flowforge.organization g on g.id = w.organization_id
              join flowforge.deployment d on d.workflow_id = w.id
             where g.slug = start.organization and w.name = start.workflow
             order by d.number desc
             limit 1) found;
    if given.workflows is null then
        raise exception 'no workflow % was deployed in organization %: check the name, or run flowforge deploy',
              quote_nullable(start.workflow), quote_nullable(start.organization) using errcode = 'no_data_found';
    end if;
    for given.answer in
        with asked as materialized (
            select asked.*, w.organization_id, flowforge.clock() as now, coalesce(asked.allowed, w.deadline) as span,
                   encode(sha256(convert_to(jsonb_build_array(w.name, asked.parameters::jsonb)::text, 'UTF8')), 'hex') as fingerprint
              from unnest(given.runs::uuid[], given.workflows::uuid[], given.parameters::text[], given.priorities::smallint[],
                          given.keys::text[], given.deadlines::interval[]) as asked (id, workflow_id, parameters, priority, key, allowed)
              join flowforge.workflow w on w.id = asked.workflow_id
        ), reserved as (
            insert into flowforge.idempotency_key as k (organization_id, user_id, key, fingerprint, workflow_run_id, expires_at,
                                                        created_at)
            select organization_id, given.user::text, key, fingerprint, id, now + given.ttl::interval, now
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
          from answer
    loop
        if not given.answer.same then
            raise exception 'idempotency_key % already stands for run %, which had another workflow or other parameters',
                  quote_literal(start.idempotency_key), given.answer.run_id using errcode = 'unique_violation';
        end if;
        return given.answer.run_id;
    end loop;
end $$;
