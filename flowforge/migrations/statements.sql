-- What the runner sends besides the migrations themselves. Read by runner.py and steps.py.


-- name: try_lock
-- Held until the transaction ends, so that a pooler between us cannot keep it. Whoever finds it taken asks again: waiting
-- in PostgreSQL would hold a snapshot, for which the holder's `create index concurrently` waits in turn, for ever.
select pg_try_advisory_xact_lock(1718382455);                               -- "flow"


-- name: give_way
-- A statement that waits for a table makes all others wait behind it: for at most two seconds, which is longer than
-- deadlock_timeout (one), when PostgreSQL asks an autovacuum to make room.
set local lock_timeout = '2s';


-- name: stay_open
-- The transaction that holds the lock is idle for as long as the statement on the other connection takes.
set local idle_in_transaction_session_timeout = 0;


-- name: create_schema
create schema if not exists flowforge;


-- name: index_state
select case when i.indisvalid then 'valid'
            when exists (select from pg_stat_progress_create_index p where p.index_relid = i.indexrelid) then 'building'
            else 'invalid' end
  from pg_index i
 where i.indexrelid = to_regclass(%s);


-- name: drop_index
drop index concurrently if exists {};
