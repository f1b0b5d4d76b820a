-- What the fixtures do beside FlowForge itself: databases of their own, and the clock.

-- name: create
create database {name};

-- name: clone
create database {name} template {template};

-- name: drop
drop database if exists {name} with (force);

-- name: current
select current_database();

-- name: now
select flowforge.clock();

-- name: move
-- In microseconds: a day of an interval is 23 or 25 hours long when a time zone says so.
create or replace function flowforge.clock() returns timestamptz
    language sql volatile
    as $$ select clock_timestamp() + %(microseconds)s * interval '1 microsecond' $$;

-- name: is_in_use
select exists (select from flowforge.workflow);
