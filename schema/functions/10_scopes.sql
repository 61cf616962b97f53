-- Scopes, clock, numbers, locks.
--
-- What runs once a call and is more than an expression is plpgsql: its plans are kept for the
-- session, those of an SQL function that cannot be inlined are made anew in every transaction.
-- The entry points in the files that follow ask for generic plans: planning each call for the
-- arrays it happens to bring cost more than running it (measured: a third of staging a turn).

-- The one clock. `afterturn.clock_offset` (an interval) lets a test live in another time.
create or replace function afterturn.clock() returns timestamptz
language sql stable parallel safe as $$
    select statement_timestamp()
        + coalesce(nullif(current_setting('afterturn.clock_offset', true), ''), '0')::interval
$$;

-- A number that a database which lost its last transactions will not draw again: microseconds of
-- the real clock (never the one a test moves), then random bits.
create or replace function afterturn.draw_number() returns bigint
language sql volatile parallel safe as $$
    select ((extract(epoch from clock_timestamp()) * 1000000)::bigint << 10)
        | floor(random() * 1024)::bigint
$$;

-- The generation after `previous`: the drawn number, or past it when the clock went back.
create or replace function afterturn.following(previous bigint, drawn bigint) returns bigint
language sql immutable parallel safe as $$
    select greatest(drawn, previous + 1 + (drawn & 1023))
$$;

-- The first path after everything under `path` ('0' follows '/').
create or replace function afterturn.under_end(path text) returns text
language sql immutable parallel safe as $$ select left(path, -1) || '0' $$;

-- Ancestors and itself, root first.
create or replace function afterturn.covering(path text) returns text[]
language plpgsql immutable parallel safe as $$
declare
    parts text[] := string_to_array(left(path, -1), '/');
    reached text := parts[1] || '/';
    covers text[] := '{}';
begin
    for n in 2..cardinality(parts) loop
        reached := reached || parts[n] || '/';
        covers := covers || reached;
    end loop;
    return covers;
end $$;

-- Stable, as convert_to is: declared immutable it could not be inlined.
create or replace function afterturn.keyed(hash_key bytea, path text) returns bytea
language sql stable parallel safe as $$
    select substring(sha256(hash_key || sha256(hash_key || convert_to(path, 'UTF8'))) for 16)
$$;

create or replace function afterturn.scope_key(path text) returns bytea
language plpgsql stable parallel safe as $$
begin
    return (select afterturn.keyed(i.hash_key, path) from afterturn.installation i);
end $$;

-- The keyed hash of a turn, record or session at a path. No path ends like this.
create or replace function afterturn.named_key(p_path text, p_kind text, p_name text) returns text
language sql stable as $$
    select encode(afterturn.scope_key(p_path || p_kind || ':' || p_name), 'hex')
$$;

-- 1 bit of space (0 mutations, 1 enqueuing), 3 bits of depth, 60 bits of hash: ascending keys of
-- a space are ascending depths, and a path never collides with its own ancestor.
create or replace function afterturn.lock_key(space integer, path text) returns bigint
language sql immutable parallel safe as $$
    select ((space * 8 + length(path) - length(replace(path, '/', '')) - 2)::bigint << 60)
        | (hashtextextended(path, 0) & ((1::bigint << 60) - 1))
$$;

create or replace function afterturn.require_read_committed() returns void
language plpgsql as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'A transaction that afterturn joins must be READ COMMITTED'
            using errcode = 'AT004', hint = 'Begin it with isolation level READ COMMITTED.';
    end if;
end $$;

-- Acknowledged means on disk, whatever the role's default says; stronger settings stay.
create or replace function afterturn.require_durable_commit() returns void
language plpgsql as $$
begin
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end $$;

-- SHARED mutation locks on the union of the covering paths, ascending. A statement of its own:
-- what is checked after it must be seen by a snapshot younger than the wait.
create or replace function afterturn.lock_shared(paths text[]) returns void
language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(k.key) from (
        select distinct afterturn.lock_key(0, q.path) as key
        from unnest(paths) p(path), unnest(afterturn.covering(p.path)) q(path)
        order by 1) k;
end $$;

-- SHARED on the proper ancestors, then EXCLUSIVE on the paths themselves, never queued for: a
-- queued EXCLUSIVE would make every later SHARED wait behind it.
create or replace function afterturn.try_lock_exclusive(paths text[]) returns boolean
language plpgsql as $$
declare
    got boolean;
begin
    perform pg_advisory_xact_lock_shared(k.key) from (
        select distinct afterturn.lock_key(0, q.path) as key
        from unnest(paths) p(path), unnest(trim_array(afterturn.covering(p.path), 1)) q(path)
        order by 1) k;
    select bool_and(pg_try_advisory_xact_lock(k.key)) into got from (
        select distinct afterturn.lock_key(0, p.path) as key from unnest(paths) p(path)
        order by 1) k;
    return got;
end $$;

-- The waiting form, for callers who write their own short transactions. All in one ascending order,
-- those of ancestors among them, or two callers with several paths could wait in a circle.
create or replace function afterturn.lock_exclusive(paths text[]) returns void
language plpgsql as $$
begin
    perform case when k.own then pg_advisory_xact_lock(k.key)
        else pg_advisory_xact_lock_shared(k.key) end
    from (select afterturn.lock_key(0, q.path) as key, bool_or(q.path = p.path) as own
          from unnest(paths) p(path), unnest(afterturn.covering(p.path)) q(path)
          group by 1 order by 1) k;
end $$;

-- The same as lock_lane, never queued for.
create or replace function afterturn.try_lock_lane(path text) returns boolean
language plpgsql as $$
declare
    got boolean;
begin
    select bool_and(case when k.own then pg_try_advisory_xact_lock(k.key)
        else pg_try_advisory_xact_lock_shared(k.key) end) into got
    from (select afterturn.lock_key(1, q.path) as key, q.path = try_lock_lane.path as own
          from unnest(afterturn.covering(try_lock_lane.path)) q(path) order by 1) k;
    return got;
end $$;

-- Enqueuing of overlapping lifecycle jobs is serial, so their numbers are their commit order.
create or replace function afterturn.lock_lane(path text) returns void
language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(k.key) from (
        select afterturn.lock_key(1, q.path) as key
        from unnest(trim_array(afterturn.covering(path), 1)) q(path)
        order by 1) k;
    perform pg_advisory_xact_lock(afterturn.lock_key(1, path));
end $$;
