-- Read by catalogue.py. Every statement leaves out the migration runner's own history table, by name.


-- name: relation
select c.relname as name, c.relkind::text as kind, c.relpersistence::text, c.reloptions::text
  from pg_class c
 where c.relnamespace = 'flowforge'::regnamespace and left(c.relname, 16) <> 'schema_migration';


-- name: column
select c.relname as "table", a.attnum, a.attname as name, format_type(a.atttypid, a.atttypmod) as type,
       a.attnotnull as required, a.attcollation, a.attidentity::text, a.attgenerated::text,
       pg_get_expr(d.adbin, d.adrelid) as "default"
  from pg_attribute a
  join pg_class c on c.oid = a.attrelid
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where c.relnamespace = 'flowforge'::regnamespace and c.relname <> 'schema_migration' and c.relkind = 'r'
   and a.attnum > 0 and not a.attisdropped;


-- name: constraint
select c.relname as "table", k.conname as name, k.contype::text as kind, k.convalidated,
       pg_get_constraintdef(k.oid) as definition
  from pg_constraint k
  join pg_class c on c.oid = k.conrelid
 where k.connamespace = 'flowforge'::regnamespace and c.relname <> 'schema_migration';


-- name: index
select t.relname as "table", c.relname as name, i.indisprimary as primary, i.indisvalid,
       pg_get_indexdef(i.indexrelid) as definition
  from pg_index i
  join pg_class c on c.oid = i.indexrelid
  join pg_class t on t.oid = i.indrelid
 where c.relnamespace = 'flowforge'::regnamespace and t.relname <> 'schema_migration';


-- name: function
select p.proname as name, pg_get_function_identity_arguments(p.oid) as arguments,
       pg_get_function_result(p.oid) as result, l.lanname as language, p.provolatile::text, p.prosecdef, p.proisstrict,
       p.proconfig::text, p.prosrc
  from pg_proc p
  join pg_language l on l.oid = p.prolang
 where p.pronamespace = 'flowforge'::regnamespace;


-- name: guard
select c.relname as "table", t.tgname as name, t.tgenabled::text, pg_get_triggerdef(t.oid) as definition
  from pg_trigger t
  join pg_class c on c.oid = t.tgrelid
 where c.relnamespace = 'flowforge'::regnamespace and not t.tgisinternal;


-- name: seed_row
select id, slug, name
  from flowforge.organization;


-- name: foreign_key
-- With the indexes that lead with its column and hold every row that its own check could ask for.
select k.conname as name, k.confrelid::regclass::text as parent,
       array(select c.relname
               from pg_index i
               join pg_class c on c.oid = i.indexrelid
              where i.indrelid = k.conrelid and i.indkey[0] = k.conkey[1] and i.indisvalid
                and (i.indpred is null
                     or pg_get_expr(i.indpred, i.indrelid) = '(' || a.attname || ' IS NOT NULL)')) as indexes
  from pg_constraint k
  join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
 where k.connamespace = 'flowforge'::regnamespace and k.contype = 'f';
